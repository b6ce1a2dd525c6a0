"""What an asynchronous call returns: works to wait for, and futures."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.futures import Future

from course.worlds.simulated_calls import Call

_Work = getattr(dist, "_Work", dist.Work)


class SimulatedWork(_Work):
    """What an asynchronous call returns. Its outputs are there after `wait()`."""

    def __init__(self, simulation, call: Call, value: list):
        super().__init__()
        self._simulation, self._call, self._value = simulation, call, value
        self._future = None

    def wait(self, timeout=None) -> bool:
        self._simulation.wait(self._call)
        future, self._future = self._future, None
        if future is not None:
            future.fill(self._value)
        return True

    def is_completed(self) -> bool:
        if self._call.end_s is None:
            self._simulation.poll(self._call)
        return self._call.end_s is not None

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self):
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list:
        self.wait()
        return self._value

    def source_rank(self) -> int:
        """Group rank of the sender, for a receive from any source."""
        return self._call.source

    _source_rank = source_rank

    def get_future(self) -> Future:
        """A future that is filled when its rank waits, so that callbacks run on its thread.

        C++ code (DDP's reducer) waits for it without giving way to the other ranks. It
        does so at the end of backward: an engine callback, which runs before, waits first.
        With static_graph it both asks and waits in one such callback: so wait at once.
        """
        future = self._future or SimulatedFuture(self.wait)
        self._future = future
        in_backward = torch._C._current_graph_task_id() != -1
        in_callback = in_backward and torch._C._current_autograd_node() is None
        if self._call.end_s is not None or in_callback:
            self.wait()
        elif in_backward:
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        return future


class SimulatedFuture(Future):
    """A future whose `wait` gives way to the other ranks."""

    def __new__(cls, wait):
        return super().__new__(cls)

    def __init__(self, wait):
        super().__init__()
        self._wait_first = wait

    def fill(self, value) -> None:
        # Without a way back to the work there is no cycle: tensors go when they should
        self._wait_first = None
        self.set_result(value)

    def wait(self):
        if self._wait_first is not None:
            self._wait_first()
        return super().wait()

    def value(self):
        return self.wait()

    def then(self, callback) -> Future:
        child = SimulatedFuture(self.wait)

        def run(parent):
            try:
                child.fill(callback(parent))
            except Exception as error:
                child.set_exception(error)

        super().then(run)
        return child


class AllOf(_Work):
    """Several works as one."""

    def __init__(self, works: list):
        super().__init__()
        self._works = works

    def wait(self, timeout=None) -> bool:
        for work in self._works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)
