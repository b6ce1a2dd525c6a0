"""Exercises of chapter 02: collectives from send and receive.

n ranks, M bytes in a rank's tensor.
"""

from __future__ import annotations

import torch

from course.checks.compare import InPlace
from course.checks.exercise import Case, Limits, OnRanks
from course.checks.inputs import every, tensor_of, total

# --- Broadcast ------------------------------------------------------------------------


def _play_broadcast(function, case: Case, rank: int):
    tensor = tensor_of(case, rank)
    returned = function(tensor, case.root)
    return InPlace(tensor, returned)


def _broadcast_limits(case: Case) -> Limits:
    n, m = case.ranks, case.nbytes
    needs = tuple(0 if rank == case.root else m for rank in range(n))
    return Limits((n - 1) * m, m, needs, total=(n - 1) * m, total_most=(n - 1) * m)


BROADCAST = OnRanks(
    "broadcast",
    "02",
    "def my_broadcast(tensor, root): ...",
    "The tensor of rank `root` is to be on every rank. Write into `tensor`, with send and "
    "recv alone. No rank receives the tensor more than once, and the root not at all.",
    5,
    cases=(
        Case(4), Case(4, root=2), Case(1, (3,)), Case(2, (5,), root=1), Case(3, (2, 3)),
        Case(5, (1,), root=4), Case(8, (7,), root=3),
    ),
    play=_play_broadcast,
    expected=lambda case: [tensor_of(case, case.root)] * case.ranks,
    limits=_broadcast_limits,
)  # fmt: skip

# --- All-gather -----------------------------------------------------------------------


def _play_all_gather(function, case: Case, rank: int):
    gathered = function(tensor_of(case, rank))
    listed = isinstance(gathered, list | tuple) and len(gathered) == case.ranks
    if listed and all(isinstance(t, torch.Tensor) and t.dim() for t in gathered):
        return torch.cat(list(gathered))
    return gathered


def _all_gather_limits(case: Case) -> Limits:
    n, m = case.ranks, case.nbytes
    others = (n - 1) * m
    return Limits(others, others, (others,) * n, total=n * others)


ALL_GATHER = OnRanks(
    "all-gather",
    "02",
    "def my_all_gather(shard): return whole",
    "Each rank brings a shard, all of one shape. Return the shards of all ranks in rank "
    "order, as a list or concatenated along dim 0. Pass shards on around a ring with send "
    "and recv: no rank sends more than n - 1 shards.",
    10,
    cases=(
        Case(4, (2,)), Case(1, (3,)), Case(2, (5,)), Case(3, (2, 3)), Case(5, (1,)),
        Case(8, (3,)),
    ),
    play=_play_all_gather,
    expected=lambda case: [torch.cat(every(case))] * case.ranks,
    limits=_all_gather_limits,
)  # fmt: skip

# --- Mean gradient ----------------------------------------------------------------------


def _gradient_shapes(case: Case) -> tuple:
    """Three gradients that have the elements of the case together."""
    return (3,), (2, 2), (case.elements - 7,)


def _play_mean(function, case: Case, rank: int):
    gradients = [tensor_of(case, rank, i, s) for i, s in enumerate(_gradient_shapes(case))]
    returned = function(list(gradients))
    return InPlace(gradients, returned)


def _means(case: Case) -> list:
    shapes = enumerate(_gradient_shapes(case))
    return [[total(case, i, shape) / case.ranks for i, shape in shapes]] * case.ranks


def _mean_limits(case: Case) -> Limits:
    n, m = case.ranks, case.nbytes
    most = 2 * (n - 1) * case.piece_bytes
    needs = (m if n > 1 else 0,) * n
    return Limits(most, most, needs, total=2 * (n - 1) * m, steps=2 * (n - 1))


MEAN_GRADIENT = OnRanks(
    "mean gradient",
    "02",
    "def my_mean_gradient(gradients): ...",
    "`gradients` is a list of tensors of several shapes, other values on "
    "each rank. Turn each into its mean over all ranks, in "
    "place. Torch's collectives are allowed: call as few as you can.",
    6,
    cases=(
        Case(4), Case(1, (9,)), Case(2, (11,)), Case(3, (13,)), Case(5, (10,)),
        Case(8, (21,)),
    ),
    play=_play_mean,
    expected=_means,
    limits=_mean_limits,
    by_hand=False,
)  # fmt: skip

# --- All-to-all -------------------------------------------------------------------------


def _play_all_to_all(function, case: Case, rank: int):
    return function([tensor_of(case, rank, to) for to in range(case.ranks)])


def _exchanged(case: Case) -> list:
    ranks = range(case.ranks)
    return [[tensor_of(case, source, me) for source in ranks] for me in ranks]


ALL_TO_ALL = OnRanks(
    "all-to-all",
    "02",
    "def my_all_to_all(pieces): return received",
    "pieces[q] is for rank q; all pieces have one shape. Return a list whose item q is "
    "the piece that rank q had for this rank. Use send and recv (or isend and irecv) "
    "alone, and send no piece by a detour.",
    8,
    cases=(
        Case(4, (2,)), Case(1, (3,)), Case(2, (5,)), Case(3, (2, 3)), Case(5, (1,)),
        Case(8, (3,)),
    ),
    play=_play_all_to_all,
    expected=_exchanged,
    limits=_all_gather_limits,
)  # fmt: skip

EXERCISES = (BROADCAST, ALL_GATHER, MEAN_GRADIENT, ALL_TO_ALL)
