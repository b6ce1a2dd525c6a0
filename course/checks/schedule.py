"""The exercise that has no ranks: which chunk goes out at which step of a ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from course.checks.exercise import Exercise
from course.checks.verdict import Verdict, of_error, right, wrong

RANKS = (4, 1, 2, 3, 5, 8)


@dataclass(frozen=True, repr=False)
class RingSchedule(Exercise):
    """Any schedule that is right passes, whichever rank ends with which chunk."""

    name: str = "ring schedule"
    chapter: str = "03"
    signature: str = "def my_schedule(rank, step, ranks): return chunk"
    task: str = (
        "A ring all-reduce of n = `ranks` ranks has 2(n - 1) steps; the tensor has chunks "
        "0 to n - 1. At each step every rank sends one chunk to the next rank, (rank + 1) "
        "% n. In steps 0 to n - 2 (reduce-scatter) the receiver adds what comes in, in "
        "the rest (all-gather) it overwrites. Return the number of the chunk that `rank` "
        "sends at `step`."
    )
    lines: int = 2
    target: str = (
        "after n - 1 steps each rank has one full sum, after 2(n - 1) all have all"
    )

    def grade(self, function: Callable) -> Verdict:
        for n in RANKS:
            try:
                fault = _fault(function, n)
            except Exception as error:
                return of_error(error, f"{n} ranks")
            if fault:
                return wrong(*fault, f"{n} rank{'s' * (n > 1)}")
        *most, last = map(str, sorted(RANKS))
        return right(
            f"right: with {', '.join(most)} and {last} ranks all end with all sums"
        )


def _fault(function: Callable, n: int) -> tuple[str, str] | None:
    """Play the schedule with sets of ranks for sums: who is in each chunk of each "
    "rank."""
    held = [[{rank} for _ in range(n)] for rank in range(n)]
    for step in range(2 * (n - 1)):
        chunks = [function(rank, step, n) for rank in range(n)]
        fault = _not_chunks(chunks, step, n) or _play(held, chunks, step, n)
        if fault:
            return fault
    return None if n > 1 else _not_chunks([0], 0, 1)


def _not_chunks(chunks: list, step: int, n: int) -> tuple[str, str] | None:
    for rank, chunk in enumerate(chunks):
        if isinstance(chunk, bool) or not isinstance(chunk, int):
            kind = type(chunk).__name__
            says = f"rank {rank} sends {chunk!r} (a {kind}) at step {step}"
            return "wrong shape", f"wrong shape: {says}, should be a whole number"
        if not 0 <= chunk < n:
            says = f"rank {rank} sends chunk {chunk} at step {step}"
            return "wrong values", f"wrong values: {says}, there are 0 to {n - 1}"
    return None


def _play(held: list, chunks: list, step: int, n: int) -> tuple[str, str] | None:
    """One step for all ranks at once, in place; the first fault."""
    sent = [set(held[rank][chunk]) for rank, chunk in enumerate(chunks)]
    for rank, chunk in enumerate(chunks):
        to = (rank + 1) % n
        says = f"wrong values: at step {step} rank {rank} sends chunk {chunk}"
        if step < n - 1:
            double = held[to][chunk] & sent[rank]
            if double:
                return "wrong values", f"{says}; rank {min(double)} is then in it twice"
            held[to][chunk] |= sent[rank]
        elif len(sent[rank]) < n:
            return "wrong values", f"{says}, the sum of {len(sent[rank])} ranks only"
        else:
            held[to][chunk] = sent[rank]
    return _unfinished(held, step, n)


def _unfinished(held: list, step: int, n: int) -> tuple[str, str] | None:
    if step == n - 2:
        for rank, chunks in enumerate(held):
            if not any(len(who) == n for who in chunks):
                says = f"after step {step} rank {rank} has no chunk that is a full sum"
                return "wrong values", f"wrong values: {says}"
    if step == 2 * (n - 1) - 1:
        for rank, chunks in enumerate(held):
            for chunk, who in enumerate(chunks):
                if len(who) < n:
                    says = f"in the end chunk {chunk} of rank {rank} is no full sum"
                    return "wrong values", f"wrong values: {says}"
    return None
