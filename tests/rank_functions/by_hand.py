"""The algorithms of course/parallel, each beside torch's own collective."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.parallel import collectives, halving_doubling, segmented, trees
from tests.rank_functions.values import empty, me, mine, size

ALL_REDUCES = (
    collectives.naive_all_reduce,
    collectives.ring_all_reduce,
    halving_doubling.recursive_doubling_all_reduce,
    halving_doubling.halving_doubling_all_reduce,
    trees.tree_all_reduce,
    segmented.fast_all_reduce,
)


def all_reduces_and_torchs_own():
    got = []
    for algorithm in ALL_REDUCES:
        x, same = mine(4, 5), mine(4, 5)
        algorithm(x)
        dist.all_reduce(same)
        got.append((x, torch.equal(x, same)))
    return got


def naive_broadcast_and_reduce():
    x, total = mine(3), mine(3)
    collectives.naive_broadcast(x, size() - 1)
    collectives.naive_reduce(total, 0)
    return x, total if me() == 0 else None


def naive_scatter_and_gather():
    x = empty(2)
    pieces = [mine(2) + r for r in range(size())] if me() == 0 else None
    collectives.naive_scatter(x, pieces, 0)
    got = [empty(2) for _ in range(size())] if me() == 0 else None
    collectives.naive_gather(x, got, 0)
    return x, got


def naive_all_gather_and_all_to_all():
    whole = empty(size(), 2)
    collectives.naive_all_gather(whole, mine(2))
    received = [empty(2) for _ in range(size())]
    collectives.naive_all_to_all(received, [mine(2) + 10 * r for r in range(size())])
    collectives.naive_barrier()
    return whole, received
