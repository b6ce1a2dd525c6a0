"""Who runs next, and what time it is: the scheduler of the simulated world.

Ranks are threads, and one of them runs at a time. A rank runs until it must wait.
Then whatever comes first in virtual time goes on: the rank with the smallest clock
(ties by rank), or an event of the network, once no rank is as early as it. So two runs
are the same to the last digit, and "nobody can go on" is known at once. No torch here.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
import threading
import time
import traceback
from _thread import allocate_lock
from collections.abc import Callable
from heapq import heappop, heappush

# What one look at `work.is_completed()` costs, so that a rank that polls moves on in time.
POLL_S = 1e-6
DEAD_POLLS = 1000  # looks in a row, when nothing can come any more, that are a deadlock
STACK_BYTES = 64 * 2**20  # of address space: deep models recurse, pages come as touched


class Stalled(Exception):
    """A rank runs on and on. `stack`: its (code, line number), innermost first."""

    def __init__(self, rank: int, stack: list):
        super().__init__(rank)
        self.rank, self.stack = rank, stack


class Stopped(BaseException):
    """Unwinds a rank whose peer has failed. Not an error of its own."""


@contextlib.contextmanager
def _on_one_core():
    """Threads started in here stay on the core that this one is on (Linux).

    One rank runs at a time, so nothing is lost, and waking the next rank on the same
    core is twice as fast as on another.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    core = ctypes.CDLL(None).sched_getcpu()
    os.sched_setaffinity(0, {core} & allowed or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Clockwork:
    """Runs one body per rank, hands the baton from rank to rank, keeps the time.

    explain: called when nobody can go on; returns the exception that says why
    leave, enter: called when a rank gives the baton up, and when it gets it
    """

    def __init__(self, ranks: int, *, explain: Callable, leave: Callable, enter: Callable):
        self.ranks = ranks
        self.clock = [0.0] * ranks
        self.waiting: list = [None] * ranks  # the work that each rank waits for
        self.polled: list = [None] * ranks  # the work that each rank polls
        self.state = ["new"] * ranks  # new, running, waiting, returned
        self.threads: list[threading.Thread] = []
        self.failure: BaseException | None = None
        self.failed_rank: int | None = None
        self.running: int | None = None
        self.progress = 0  # grows with every sign of life
        self._explain, self._leave, self._enter = explain, leave, enter
        self._gates = [allocate_lock() for _ in range(ranks)]
        self._done = allocate_lock()
        self._dead_polls = 0
        self._caught = [0] * ranks  # how often a rank's own code has caught Stopped
        self._aside: set[int] = set()
        self._runnable = [(0.0, rank) for rank in range(ranks)]
        self._events: list = []
        self._order = itertools.count()

    # --- Time ------------------------------------------------------------------------

    def at(self, time_s: float, action: Callable[[float], None], turn: int = 0) -> None:
        """Call action(time_s) when all ranks are past that time. Low turns first."""
        heappush(self._events, (time_s, turn, next(self._order), action))

    def _next_rank(self) -> int | None:
        events, runnable = self._events, self._runnable
        while True:
            if events and (not runnable or events[0][0] < runnable[0][0]):
                time_s, _, _, action = heappop(events)
                action(time_s)
            elif runnable:
                return heappop(runnable)[1]
            else:
                return None

    # --- What a rank may do while it runs --------------------------------------------

    def wait(self, rank: int, work) -> None:
        """Return when `work.end_s` is known, with the rank's clock not before it."""
        if self.failure:
            self._unwind(rank)
        self.progress += 1
        self.polled[rank] = None
        if work.end_s is None:
            self.waiting[rank] = work
            self._give_way(rank)
            self.waiting[rank] = None
        self.clock[rank] = max(self.clock[rank], work.end_s)

    def wake(self, rank: int, work) -> None:
        """`work` is done: let its rank go on, if it waits for it."""
        if self.waiting[rank] is work:
            heappush(self._runnable, (max(self.clock[rank], work.end_s), rank))

    def poll(self, rank: int, work) -> None:
        """Let the others go first, up to a moment later than now."""
        if self.failure:
            self._unwind(rank)
        self.polled[rank] = work
        self._check_polls()
        self.clock[rank] += POLL_S
        heappush(self._runnable, (self.clock[rank], rank))
        self._give_way(rank)

    def _check_polls(self) -> None:
        """A deadlock, too: all who could go on only ask whether something has come."""
        if self._events or any(self.polled[rank] is None for _, rank in self._runnable):
            self._dead_polls = 0
        self._dead_polls += 1
        if self._dead_polls > DEAD_POLLS:
            self.fail(None, self._explain())
            raise Stopped

    def _unwind(self, rank: int) -> None:
        """Stop the rank. Where its code catches even that, again and again, leave it."""
        self._caught[rank] += 1
        if self._caught[rank] > 100:
            self._aside.add(rank)
            self.state[rank] = "returned"
            self._end(rank)
            self._gates[rank].acquire()  # for ever: nobody passes to it any more
        raise Stopped

    def _give_way(self, rank: int) -> None:
        after = self._next_rank()
        if after == rank:
            return
        self.state[rank] = "waiting"
        if after is None:
            self.fail(None, self._explain())
            raise Stopped
        self._leave(rank)
        self._pass_to(after)
        self._gates[rank].acquire()
        self._enter(rank)
        self.state[rank] = "running"
        if self.failure:
            raise Stopped

    def _pass_to(self, rank: int) -> None:
        self.progress += 1
        self.running = rank
        self._gates[rank].release()

    # --- Start, end, failure ---------------------------------------------------------

    def run(self, body: Callable[[int], None], stall_s: float | None = None) -> None:
        """Run body(rank) on every rank; raise what the first failing one raised."""
        for gate in (*self._gates, self._done):
            gate.acquire()
        self._start_threads(body)
        self._pass_to(self._next_rank())
        try:
            self._watch(stall_s)
        except BaseException as interrupt:
            self.stop(interrupt)
            self._done.acquire(timeout=2.0)
            raise
        for rank, thread in enumerate(self.threads):
            if rank not in self._aside:
                thread.join()
        if self.failure:
            raise self.failure

    def _start_threads(self, body: Callable[[int], None]) -> None:
        before = threading.stack_size(STACK_BYTES)
        try:
            with _on_one_core():
                for rank in range(self.ranks):
                    thread = threading.Thread(
                        target=self._thread,
                        args=(rank, body),
                        daemon=True,
                        name=f"rank {rank}",
                    )
                    self.threads.append(thread)
                    thread.start()
        finally:
            threading.stack_size(before)

    def _watch(self, stall_s: float | None) -> None:
        """Wait for the end; stop a rank that runs on and on without a call to its peers."""
        seen, since = -1, time.monotonic()
        while not self._done.acquire(timeout=0.25 if stall_s else -1):
            if self.progress != seen:
                seen, since = self.progress, time.monotonic()
            elif time.monotonic() - since > stall_s:
                raise Stalled(self.running, self._stack(self.running))

    def _stack(self, rank: int) -> list:
        frame = sys._current_frames().get(self.threads[rank].ident)
        return [(frame.f_code, line) for frame, line in traceback.walk_stack(frame)]

    def stop(self, reason: BaseException) -> None:
        """Make the rank that runs now, and then all others, unwind."""
        running = self.running
        self.fail(None, reason)
        if running is not None and self.threads[running].is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.threads[running].ident), ctypes.py_object(Stopped)
            )

    def fail(self, rank: int | None, reason: BaseException) -> None:
        if self.failure is None:
            self.failure, self.failed_rank = reason, rank

    def _thread(self, rank: int, body: Callable[[int], None]) -> None:
        self._gates[rank].acquire()
        self.state[rank] = "running"
        try:
            if not self.failure:
                self._enter(rank)
                body(rank)
        except Stopped:
            pass
        except BaseException as error:
            self.fail(rank, error)
        self.state[rank] = "returned"
        self._end(rank)

    def _end(self, rank: int) -> None:
        """Hand the baton on for good; the last rank wakes the caller of `run`."""
        after = None
        if not self.failure:
            try:
                after = self._next_rank()
                if after is None and "waiting" in self.state:
                    self.fail(None, self._explain())
            except BaseException as error:
                self.fail(rank, error)
        if self.failure:
            left = [r for r, state in enumerate(self.state) if state in ("new", "waiting")]
            after = left[0] if left else None
        if after is None:
            self._done.release()
        else:
            self._pass_to(after)
