"""All-reduce in two steps: every rank exchanges pieces with every other at once.

As many bytes as the ring, 2 (n - 1) / n of the tensor sent by each rank, but two
latencies where the ring has 2 (n - 1): fit for few ranks that all reach each other.
"""

import torch
import torch.distributed as dist

from course.parallel.messages import combine, finish, flattened, place, start_all

SUM = dist.ReduceOp.SUM


def all_pairs_all_reduce(
    tensor: torch.Tensor,
    op=SUM,
    group=None,
    *,
    block_bytes: int | None = None,
    room: torch.Tensor | None = None,
) -> None:
    """Rank r gets piece r of all others and sums them, then gives all the sum. In place.

    block_bytes: work on so much of the tensor at a time (None: on all of it)
    room:        one row of the tensor's dtype, at least a block long, for the n - 1
                 pieces that arrive (None: made for this call)

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
        size = len(blocks[0].tensor_split(n)[0])
        room = row.new_empty((n - 1) * size) if room is None else room
        room = room[: (n - 1) * size].view(n - 1, size)
        for block in blocks:
            _reduce_block(block, room, op, group, n, me)


def _reduce_block(block, room: torch.Tensor, op, group, n: int, me: int) -> None:
    # each sends to the next rank first, so each hears from the rank before first
    after = [(me + k) % n for k in range(1, n)]
    before = after[::-1]
    pieces = block.tensor_split(n)
    mine = pieces[me]
    incoming = [buffer[: len(mine)] for buffer in room]
    to_all = [(pieces[r], r) for r in after]
    works = start_all(to_all, list(zip(incoming, before, strict=True)), group)
    sends, receives = works[: 1 - n], works[1 - n :]
    for i, partial in enumerate(incoming):
        if i < len(receives):  # NCCL has one work for all
            receives[i].wait()
        combine(mine, partial, op)
    for work in sends:
        work.wait()
    finish(mine, op, n)
    from_all = [(pieces[r], r) for r in before]
    for work in start_all([(mine, r) for r in after], from_all, group):
        work.wait()
