"""Exercises of chapter 04: trees, butterflies, two levels.

n ranks, M bytes in a rank's tensor, k nodes of g GPUs.
"""

from __future__ import annotations

from course.checks.chapter_03 import all_reduce_needs, play_in_place, sums
from course.checks.compare import InPlace
from course.checks.exercise import ITEM, Case, Limits, OnRanks
from course.checks.inputs import tensor_of
from course.costs.collectives import core, rounds
from course.parallel.hierarchical import node_groups

_ANY_RANKS = (
    Case(8), Case(1, (5,)), Case(2, (6,)), Case(3, (7,)), Case(4, (1,)), Case(5, (3,)),
    Case(6, (4,)), Case(7, (9,)),
)  # fmt: skip

# --- Recursive doubling ---------------------------------------------------------------


def _butterfly_limits(case: Case) -> Limits:
    """log2(p) swaps of M, p the largest power of two in n; the rest hand over and back."""
    n, p = case.ranks, core(case.ranks)
    most = (rounds(p) + (p < n)) * case.nbytes
    total_most = (p * rounds(p) + 2 * (n - p)) * case.nbytes
    steps = rounds(p) + 2 * (p < n)
    return Limits(most, most, total_most=total_most, steps=steps, **all_reduce_needs(case))


DOUBLING = OnRanks(
    "recursive doubling",
    "04",
    "def my_butterfly(tensor): ...",
    "Turn `tensor`, in place, into the sum over all n ranks in log2(n) steps. n is a "
    "power of two. In each step swap the whole tensor with a partner, each time twice as "
    "far.",
    8,
    cases=(
        Case(8), Case(1, (5,)), Case(2, (6,)), Case(4, (3,)), Case(16, (1,)),
        Case(8, (7,)),
    ),
    play=play_in_place,
    expected=sums,
    limits=_butterfly_limits,
)  # fmt: skip

ANY_RANKS = OnRanks(
    "any rank count",
    "04",
    "def my_folded_butterfly(tensor): ...",
    "Recursive doubling for any n. Let p be the largest power of two that is not above n. "
    "Ranks p and above hand their tensor to a partner below p, wait, and get the result "
    "at the end: log2(p) + 2 steps, or log2(n) where n = p.",
    16,
    cases=(Case(6), *_ANY_RANKS[:-2], Case(7, (9,)), Case(12, (2,))),
    play=play_in_place,
    expected=sums,
    limits=_butterfly_limits,
)

# --- Tree -------------------------------------------------------------------------------


def _tree_limits(case: Case) -> Limits:
    n, up = case.ranks, rounds(case.ranks)
    return Limits(
        up * case.nbytes,
        up * case.nbytes,
        total_most=2 * (n - 1) * case.nbytes,
        steps=2 * up,
        **all_reduce_needs(case),
    )


TREE = OnRanks(
    "tree all-reduce",
    "04",
    "def my_tree_all_reduce(tensor): ...",
    "Turn `tensor`, in place, into the sum over all n ranks. Going up, in each round half "
    "of the ranks that are left hand their tensor to another one and are done; rank 0 "
    "ends with the sum. Going down, the same messages the other way. ceil(log2 n) rounds "
    "each way, for any n, and no more than 2(n - 1) messages of the whole tensor in all.",
    15,
    cases=_ANY_RANKS,
    play=play_in_place,
    expected=sums,
    limits=_tree_limits,
)

# --- Hierarchical -----------------------------------------------------------------------


def _play_hierarchical(function, case: Case, rank: int):
    inside, across = node_groups(case.gpus)
    tensor = tensor_of(case, rank)
    returned = function(tensor, inside, across)
    return InPlace(tensor, returned)


def _hierarchical_limits(case: Case) -> Limits:
    """Rings on both levels: 2(g-1)/g M inside, 2(k-1)/k M/g by each network card."""
    g, k = case.gpus, case.nodes
    piece = -(-case.elements // g)
    card = 2 * (k - 1) * -(-piece // k) * ITEM
    most = 2 * (g - 1) * piece * ITEM + card
    return Limits(
        most,
        most,
        steps=2 * (g - 1) + 2 * (k - 1),
        node_sent=g * card,
        card_sent=card,
        **all_reduce_needs(case),
    )


HIERARCHICAL = OnRanks(
    "hierarchical all-reduce",
    "04",
    "def my_hierarchical_all_reduce(tensor, inside, across): ...",
    "`inside` is the group of this rank's node (g ranks), `across` the group of the ranks "
    "with the same place in all k nodes. Each rank has a network card of its own. Turn "
    "`tensor` (one dim, any length), in place, into the sum over all ranks. Let each card "
    "carry an equal share of the 2(k - 1)/k M bytes that must leave a node. You may call "
    "functions of course.parallel.collectives or torch's collectives on the two groups.",
    6,
    cases=(
        Case(4, gpus=2), Case(1, (5,), gpus=1), Case(2, (6,), gpus=1),
        Case(3, (7,), gpus=3), Case(6, (12,), gpus=3), Case(6, (5,), gpus=2),
        Case(8, (3,), gpus=4), Case(8, (16,), gpus=4),
    ),
    play=_play_hierarchical,
    expected=sums,
    limits=_hierarchical_limits,
    by_hand=False,
)  # fmt: skip

EXERCISES = (TREE, DOUBLING, ANY_RANKS, HIERARCHICAL)
