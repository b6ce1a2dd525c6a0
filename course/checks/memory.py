"""Tensor bytes that an answer holds, as the simulated world counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course.checks.compare import Fault
from course.checks.exercise import Case, OnRanks
from course.worlds import Run
from course.worlds.simulated_memory import memory_here


@dataclass
class Held:
    """What an answer has left (as without a meter), and what it held.

    held: {"between steps": bytes}
    """

    left: Any
    held: dict[str, int]


class Scale:
    """Live tensor bytes of the calling rank, above those at the time it was made."""

    def __init__(self):
        self._memory = memory_here()
        self._tare = self._memory.live_bytes
        self._marked = len(self._memory.log), self._tare

    def now(self) -> int:
        return self._memory.live_bytes - self._tare

    def mark(self) -> None:
        """From here on counts for `most`."""
        self._marked = len(self._memory.log), self._memory.live_bytes

    def most(self) -> int:
        """The most that was held at once since the last mark."""
        start, live = self._marked
        most = live
        for _, _, change in self._memory.log[start:]:
            live += change
            most = max(most, live)
        return most - self._tare


def held_by(run: Run) -> list[dict[str, int]]:
    """What each rank held; nothing where it was not metered."""
    return [r.held if isinstance(r, Held) else {} for r in run.results]


def memory_summary(run: Run) -> str:
    """ ", held at most 68 bytes between steps"."""
    held = held_by(run)
    return "".join(
        f", held at most {max(each[moment] for each in held)} bytes {moment}"
        for moment in held[0]
    )


def memory_complaint(run: Run, case: Case, exercise: OnRanks) -> Fault | None:
    """The first bound on memory that a run breaks."""
    limits, held = exercise.limits(case), held_by(run)
    for moment, least in limits.held_least.items():
        total = sum(each.get(moment, 0) for each in held)
        if total < least:
            says = (
                f"all ranks together hold {total} bytes {moment} where {least} are needed"
            )
            return "too little memory", f"right values, but {says}"
    for moment, enough in limits.held.items():
        for rank, each in enumerate(held):
            if each.get(moment, 0) > enough:
                says = f"rank {rank} holds {each[moment]} bytes {moment}"
                hint = exercise.hints.get(moment, "")
                rest = f"where {enough} are enough" + (f": {hint}" if hint else "")
                return "too much memory", f"right values, but {says} {rest}"
    return None
