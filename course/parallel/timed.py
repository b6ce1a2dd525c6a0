"""What one rank does to one buffer of M bytes, to be timed by `course.worlds.timing`.

M is counted as nccl-tests counts it: the whole buffer. For all-gather and reduce-scatter
a rank brings or keeps the piece M / n, so M must divide by the number of ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.parallel.collectives import ring_all_reduce
from course.parallel.halving_doubling import (
    halving_doubling_all_reduce,
    recursive_doubling_all_reduce,
)
from course.parallel.messages import place, receive, send
from course.parallel.trees import tree_all_reduce


def round_trip(tensor: torch.Tensor, peer: int = 1) -> None:
    """Rank 0 sends to the peer, which sends back; half of the time is alpha + M / B."""
    me = dist.get_rank()
    if me == 0:
        send(tensor, peer)
        receive(tensor, peer)
    if me == peer:
        receive(tensor, 0)
        send(tensor, 0)


def _mine(whole: torch.Tensor) -> torch.Tensor:
    n, me = place()
    return whole.tensor_split(n)[me].clone()


def _all_gather(whole: torch.Tensor) -> None:
    dist.all_gather_into_tensor(whole, _mine(whole))


def _reduce_scatter(whole: torch.Tensor) -> None:
    dist.reduce_scatter_tensor(_mine(whole), whole)


def _all_to_all(whole: torch.Tensor) -> None:
    dist.all_to_all_single(torch.empty_like(whole), whole)


def _broadcast(whole: torch.Tensor) -> None:
    dist.broadcast(whole, 0)


def _reduce(whole: torch.Tensor) -> None:
    dist.reduce(whole, 0)


# torch's own collectives, by their names in `course.costs.collectives`
COLLECTIVES = {
    "all_reduce": dist.all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
}

# the course's all-reduces, by their names in `course.costs.collectives`
ALL_REDUCES = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "recursive_doubling": recursive_doubling_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
}
