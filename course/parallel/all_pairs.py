"""All-reduce in two steps: every rank exchanges pieces with every other at once.

As many bytes as the ring, 2 (n - 1) / n of the tensor sent by each rank, but two
latencies where the ring has 2 (n - 1): fit for few ranks that all reach each other.
"""

import torch
import torch.distributed as dist

from course.parallel.messages import combine, finish, flattened, place

SUM = dist.ReduceOp.SUM


def all_pairs_all_reduce(
    tensor: torch.Tensor, op=SUM, group=None, *, block_bytes: int | None = None
) -> None:
    """Rank r gets piece r of all others and sums them, then gives all the sum. In place.

    block_bytes: work on so much of the tensor at a time (None: on all of it)

    Needs room for n - 1 more pieces of a block, nearly its size.
    Time of a block: 2 (alpha + (n - 1) / n * M / B), where all pairs are joined alike.
    Raises ValueError if block_bytes is less than 1.
    """
    if block_bytes is not None and block_bytes < 1:
        raise ValueError(f"block_bytes must be 1 or more, not {block_bytes}")
    n, me = place(group)
    with flattened(tensor) as row:
        whole = max(len(row), 1)
        most = whole if block_bytes is None else max(block_bytes // row.itemsize, 1)
        blocks = row.split(min(most, whole))
        room = [torch.empty_like(blocks[0].tensor_split(n)[0]) for _ in range(n - 1)]
        for block in blocks:
            _reduce_block(block, room, op, group, n, me)


def _reduce_block(block, room: list, op, group, n: int, me: int) -> None:
    others = [(me + k) % n for k in range(1, n)]
    pieces = block.tensor_split(n)
    mine = pieces[me]
    incoming = [buffer[: len(mine)] for buffer in room]
    works = _start(others, [pieces[r] for r in others], incoming, group)
    sends, receives = works[: -len(others)], works[-len(others) :]
    for i, partial in enumerate(incoming):
        if i < len(receives):  # NCCL has one work for all
            receives[i].wait()
        combine(mine, partial, op)
    for work in sends:
        work.wait()
    finish(mine, op, n)
    for work in _start(others, [mine] * len(others), [pieces[r] for r in others], group):
        work.wait()


def _start(others: list[int], outs: list, intos: list, group) -> list:
    """Begin to send one contiguous tensor to each of the others, and to receive one.

    Returns what to wait for: the sends, then the receives (which on gloo is faster than
    the other way round); on NCCL one work for all.
    """
    sends = [
        dist.P2POp(dist.isend, out, group=group, group_peer=rank)
        for rank, out in zip(others, outs, strict=True)
    ]
    receives = [
        dist.P2POp(dist.irecv, into, group=group, group_peer=rank)
        for rank, into in zip(others, intos, strict=True)
    ]
    return dist.batch_isend_irecv(sends + receives) if others else []
