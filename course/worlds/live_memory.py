"""Tensor bytes that a real rank holds: counted here on CPUs, by the allocator on GPUs.

CUDA's allocator knows what it has given out. On CPUs nobody does, so every operation's
outputs are watched, as in the simulated world: which takes time, so measure that apart.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course.worlds.simulated_memory import RankMemory, counted_here

SETTLED_S = 0.2  # long for a thread that waits for a busy core; short beside a measurement


class LiveTensors:
    """Bytes of this rank's tensors that were made since it began to count, on CPUs."""

    def __init__(self):
        self.memory = RankMemory(time.perf_counter)

    def now(self) -> int:
        """Once nothing goes any more: gloo's threads drop buffers a little after wait()."""
        gc.collect()  # what only a cycle of references keeps would be gone in a moment
        before = None
        while before != self.memory.live_bytes:
            before = self.memory.live_bytes
            time.sleep(SETTLED_S)
        return before

    def peak(self) -> int:
        return self.memory.peak_bytes

    def peak_kinds(self) -> dict[str, int]:
        """What the peak was made of, as `Run.peak_kinds`."""
        return self.memory.peak_kinds()


class AllocatedMemory:
    """The same from CUDA's allocator, which does not know what its blocks are for.

    It gives out multiples of 512 bytes. What was there before is not counted.
    """

    def __init__(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()

    def now(self) -> int:
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - self._before

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self._before

    def peak_kinds(self) -> dict[str, int]:
        return {"other": self.peak()}


class _Watch(TorchDispatchMode):
    """Shows the memory what each operation has made."""

    def __init__(self, memory: RankMemory):
        super().__init__()
        self.memory = memory

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        self.memory.see(out)
        return out


@contextlib.contextmanager
def live_memory() -> Iterator[LiveTensors | AllocatedMemory]:
    """Count what this rank holds, by the device that new tensors are on."""
    if torch.get_default_device().type == "cuda":
        yield AllocatedMemory()
        return
    live = LiveTensors()
    with counted_here(live.memory), _Watch(live.memory):
        yield live
