"""When bytes move: transfers that wait for ports, in virtual time. No torch here.

A port (a GPU's way out or in, a network card's way out or in) carries one transfer
at a time. A transfer starts when it is ready and all its ports are free. Those that
wait for a port go in the order in which they became ready.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


class Network:
    """Transfers over ports. `at(time_s, action)` is the clock's."""

    def __init__(self, at: Callable):
        self._at = at
        self._free_at: dict = {}  # port: when its last transfer leaves it
        self._queues: dict = {}  # port: transfers that wait for it, oldest first

    def submit(
        self,
        ready_s: float,
        ports: tuple,
        hold_s: float,
        total_s: float,
        done: Callable,
        turn: int = 0,
    ) -> None:
        """Hold all `ports` for hold_s; call done(start_s, end_s) total_s after the start.

        A message of M bytes holds its ports for M / B and is there alpha + M / B after
        its start: latencies of successive messages overlap, their bytes do not.
        Of transfers that are ready at the same time those with a low turn go first.
        """
        transfer = (ready_s, ports, hold_s, total_s, done)
        self._at(ready_s, partial(self._try, transfer), turn)

    def _try(self, transfer: tuple, now_s: float) -> None:
        _, ports, hold_s, total_s, done = transfer
        free_at = self._free_at
        for port in ports:
            if free_at.get(port, 0.0) > now_s:
                self._queue(port, transfer)
                return
        for port in ports:
            free_at[port] = now_s + hold_s
        end_s = now_s + total_s
        self._at(end_s, lambda _: done(now_s, end_s))

    def _queue(self, port, transfer: tuple) -> None:
        queue = self._queues.get(port)
        if queue is None:
            queue = self._queues[port] = []
            self._at(self._free_at[port], partial(self._release, port))
        queue.append(transfer)

    def _release(self, port, now_s: float) -> None:
        if self._free_at[port] > now_s:
            self._at(self._free_at[port], partial(self._release, port))
            return
        for transfer in self._queues.pop(port):
            self._try(transfer, now_s)
