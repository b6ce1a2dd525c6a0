"""All-reduce in log2(n) steps with partners at distances 1, 2, 4, ...

    n  ranks in the group, p  the largest power of two in n

Ranks p and above sit out: they hand their tensor to rank - p first, and get the result
from it last (folding). Sources: Thakur, Rabenseifner, Gropp 2005; costs: `halving_doubling`
and `recursive_doubling` in `course.costs.collectives`.
"""

import torch
import torch.distributed as dist

from course.parallel.messages import (
    check_op,
    combine,
    exchange,
    finish,
    flattened,
    place,
    receive,
    send,
)

SUM = dist.ReduceOp.SUM


def run_folded(core, row: torch.Tensor, op, group) -> None:
    """Run core(row, distances, op, group) on the first p ranks, and let the rest share."""
    check_op(op)
    n, me = place(group)
    distances = [1 << bit for bit in range(n.bit_length() - 1)]  # 1, 2, 4, ... p / 2
    p = 1 << len(distances)
    if me >= p:
        send(row, me - p, group)
        return receive(row, me - p, group)
    if me + p < n:
        incoming = torch.empty_like(row)
        receive(incoming, me + p, group)
        combine(row, incoming, op)
    core(row, distances, op, group)
    finish(row, op, n)
    if me + p < n:
        send(row, me + p, group)


def double_whole(row, distances, op, group) -> None:
    """At each step swap all of the row with the partner at that distance, and add."""
    _, me = place(group)
    incoming = torch.empty_like(row)
    for distance in distances:
        partner = me ^ distance
        exchange(row, partner, incoming, partner, group)
        combine(row, incoming, op)


def recursive_doubling_all_reduce(tensor: torch.Tensor, op=SUM, group=None) -> None:
    """Swap everything with a partner, log2(n) times, each time twice as far. In place.

    The fewest steps there can be, but each moves the whole tensor.
    """
    with flattened(tensor) as row:
        run_folded(double_whole, row, op, group)


def halve_then_double(row, distances, op, group) -> None:
    """At each step keep one half and give the other; then walk back the same way."""
    _, me = place(group)
    incoming = torch.empty_like(row[: (len(row) + 1) // 2])
    steps = []
    for distance in distances:
        low, high = row.tensor_split(2)
        keep, give = (high, low) if me & distance else (low, high)
        partial_sum = incoming[: len(keep)]
        exchange(give, me ^ distance, partial_sum, me ^ distance, group)
        combine(keep, partial_sum, op)
        steps.append((me ^ distance, keep, give))
        row = keep
    for partner, have, lack in reversed(steps):
        exchange(have, partner, lack, partner, group)


def halving_doubling_all_reduce(
    tensor: torch.Tensor, op=SUM, group=None, *, first: str = "near"
) -> None:
    """Reduce-scatter by halving, all-gather by doubling (Rabenseifner). In place.

    first: "near" begins with the neighbour, as MPICH's all-reduce does; "far" with the
           partner p / 2 away, as Thakur's reduce-scatter does, and leaves piece r to
           rank r in between. Both send the same; on two nodes "near" keeps the large
           halves inside a node.
    """
    if first not in ("near", "far"):
        raise ValueError(f'first must be "near" or "far", not {first!r}')

    def core(row, distances, op, group):
        order = distances if first == "near" else distances[::-1]
        halve_then_double(row, order, op, group)

    with flattened(tensor) as row:
        run_folded(core, row, op, group)
