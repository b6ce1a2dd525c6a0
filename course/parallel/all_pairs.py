"""All-reduce in two steps: every rank exchanges pieces with every other at once.

As many bytes as the ring, 2 (n - 1) / n of the tensor sent by each rank, but two
latencies where the ring has 2 (n - 1): fit for few ranks that all reach each other.
"""

import torch
import torch.distributed as dist

from course.parallel.messages import combine, finish, flattened, place

SUM = dist.ReduceOp.SUM


def all_pairs_all_reduce(tensor: torch.Tensor, op=SUM, group=None) -> None:
    """Rank r gets piece r of all others and sums them, then gives all the sum. In place.

    Needs room for n - 1 more pieces, nearly the size of the tensor.
    Time: 2 (alpha + (n - 1) / n * M / B), where all pairs are joined alike.
    """
    n, me = place(group)
    others = [(me + k) % n for k in range(1, n)]
    with flattened(tensor) as row:
        pieces = row.tensor_split(n)
        mine = pieces[me]
        incoming = [torch.empty_like(mine) for _ in others]
        _exchange(others, [pieces[r] for r in others], incoming, group)
        for partial in incoming:
            combine(mine, partial, op)
        finish(mine, op, n)
        _exchange(others, [mine] * len(others), [pieces[r] for r in others], group)


def _exchange(others: list[int], outs: list, intos: list, group) -> None:
    """Send one contiguous tensor to each of the others, and receive one from each."""
    sends = [
        dist.P2POp(dist.isend, out, group=group, group_peer=rank)
        for rank, out in zip(others, outs, strict=True)
    ]
    receives = [
        dist.P2POp(dist.irecv, into, group=group, group_peer=rank)
        for rank, into in zip(others, intos, strict=True)
    ]
    if others:  # on gloo it is faster to begin with the sends
        for work in dist.batch_isend_irecv(sends + receives):
            work.wait()
