"""Exercises of chapter 03: the ring.

n ranks, M bytes in a rank's tensor, piece r: part r of n as `tensor_split` cuts it.
"""

from __future__ import annotations

from course.checks.compare import InPlace
from course.checks.exercise import ITEM, Case, Limits, OnRanks
from course.checks.inputs import every, tensor_of, total
from course.checks.schedule import RingSchedule

CASES = (
    Case(4), Case(1, (5,)), Case(2, (6,)), Case(3, (7,)), Case(5, (3,)), Case(8, (21,)),
    Case(4, (1,)),
)  # fmt: skip


def play_in_place(function, case: Case, rank: int):
    tensor = tensor_of(case, rank)
    returned = function(tensor)
    return InPlace(tensor, returned)


def sums(case: Case) -> list:
    return [total(case)] * case.ranks


# --- Reduce-scatter -------------------------------------------------------------------


def _piece_bytes(case: Case) -> list[int]:
    """Of each piece."""
    return [len(piece) * ITEM for piece in total(case).tensor_split(case.ranks)]


def _reduce_scatter_limits(case: Case) -> Limits:
    n = case.ranks
    most = (n - 1) * case.piece_bytes
    needs = tuple(_piece_bytes(case)) if n > 1 else (0,)
    return Limits(most, most, needs, total=(n - 1) * case.nbytes, steps=n - 1)


REDUCE_SCATTER = OnRanks(
    "ring reduce-scatter",
    "03",
    "def my_reduce_scatter(tensor): return piece",
    "`tensor` has one dim, and other values on each rank. Return piece r of the sum over "
    "all ranks, where r is this rank and the n pieces are tensor.tensor_split(n). "
    "`tensor` may be used as workspace. In each of n - 1 steps send one piece to the next "
    "rank while you receive one from the rank before.",
    10,
    cases=CASES,
    play=lambda function, case, rank: function(tensor_of(case, rank)),
    expected=lambda case: list(total(case).tensor_split(case.ranks)),
    limits=_reduce_scatter_limits,
    ring=True,
)

# --- All-gather -----------------------------------------------------------------------


def _gathered(case: Case) -> list:
    """Piece r is right on rank r alone, and wrong everywhere else."""
    pieces = [t.tensor_split(case.ranks)[r] for r, t in enumerate(every(case))]
    whole = total(case)
    for target, piece in zip(whole.tensor_split(case.ranks), pieces, strict=True):
        target.copy_(piece)
    return [whole] * case.ranks


def _all_gather_limits(case: Case) -> Limits:
    n = case.ranks
    most = (n - 1) * case.piece_bytes
    needs = tuple(case.nbytes - mine for mine in _piece_bytes(case))
    return Limits(most, most, needs, total=(n - 1) * case.nbytes, steps=n - 1)


RING_ALL_GATHER = OnRanks(
    "ring all-gather",
    "03",
    "def my_ring_all_gather(tensor): ...",
    "`tensor` has one dim; of its n pieces, tensor.tensor_split(n), only piece r is right "
    "on rank r. Fill in the others, in place, so that all ranks end with the same tensor. "
    "In each of n - 1 steps pass one piece to the next rank.",
    8,
    cases=CASES,
    play=play_in_place,
    expected=_gathered,
    limits=_all_gather_limits,
    ring=True,
)

# --- All-reduce -----------------------------------------------------------------------


def all_reduce_needs(case: Case) -> dict:
    """The least that any all-reduce must move: each rank needs M, all together "
    "2(n-1)M."""
    n, m = case.ranks, case.nbytes
    return {"needs": (m if n > 1 else 0,) * n, "total": 2 * (n - 1) * m}


def _all_reduce_limits(case: Case) -> Limits:
    n = case.ranks
    most = 2 * (n - 1) * case.piece_bytes
    return Limits(most, most, steps=2 * (n - 1), **all_reduce_needs(case))


RING_ALL_REDUCE = OnRanks(
    "ring all-reduce",
    "03",
    "def my_all_reduce(tensor): ...",
    "`tensor` has one dim of any length, also one that n does not divide or that is less "
    "than n. Turn it, in place, into the sum over all ranks, by a ring: a reduce-scatter, "
    "then an all-gather.",
    15,
    cases=CASES,
    play=play_in_place,
    expected=sums,
    limits=_all_reduce_limits,
    ring=True,
)

EXERCISES = (RingSchedule(), REDUCE_SCATTER, RING_ALL_GATHER, RING_ALL_REDUCE)
