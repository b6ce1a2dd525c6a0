"""Exercise of lab 01: one message there and back, to time a single wire.

n ranks, M bytes in a rank's tensor.
"""

from __future__ import annotations

from course.checks.chapter_03 import play_in_place
from course.checks.exercise import Case, Limits, OnRanks
from course.checks.inputs import every


def _there_and_back(case: Case) -> list:
    first, _, *others = every(case)
    return [first, first, *others]


def _limits(case: Case) -> Limits:
    m = case.nbytes
    needs = (m, m) + (0,) * (case.ranks - 2)
    return Limits(m, m, needs, total=2 * m, total_most=2 * m, steps=2)


ROUND_TRIP = OnRanks(
    "round trip",
    "lab 01",
    "def my_round_trip(tensor): ...",
    "Rank 0 sends `tensor` to rank 1, and rank 1 sends it back at once; both end with rank "
    "0's values. All other ranks do nothing.",
    6,
    cases=(Case(2), Case(4, (3,)), Case(3, (1,)), Case(2, (64,))),
    play=play_in_place,
    expected=_there_and_back,
    limits=_limits,
)

EXERCISES = (ROUND_TRIP,)
