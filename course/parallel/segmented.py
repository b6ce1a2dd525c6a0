"""All-reduce made for speed on real CPU ranks: short messages take few steps, long ones
are cut into segments that overlap. Same results as the plain ring, less easy to read.
"""

from collections import deque

import torch
import torch.distributed as dist

from course.parallel.halving_doubling import recursive_doubling_all_reduce
from course.parallel.messages import combine, finish, flattened, place, start_exchange

SUM = dist.ReduceOp.SUM

# Both found by `make bench`, 4 gloo ranks on 2 cores.
SEGMENT_BYTES = 2 * 2**20
SHORT_BYTES = 2**20


def segmented_ring_all_reduce(
    tensor: torch.Tensor, op=SUM, group=None, *, segment_bytes: int = SEGMENT_BYTES
) -> None:
    """The ring all-reduce with all segments of a piece in flight together. In place.

    While one segment is added, the next ones are on the wire. A segment that has come
    in at one step is the one that goes out at the next.
    """
    if segment_bytes < 1:
        raise ValueError(f"segment_bytes must be 1 or more, not {segment_bytes}")
    n, me = place(group)
    with flattened(tensor) as row:
        pieces = row.tensor_split(n)
        k = max(1, -(-pieces[0].nbytes // segment_bytes))
        segments = [piece.tensor_split(k) for piece in pieces]
        incoming = torch.empty_like(pieces[0]).tensor_split(k)
        if n == 1:
            return finish(row, op, n)

        def start(step, j):
            into = segments[(me - step - 2) % n][j]
            target = incoming[j][: len(into)] if step < n - 1 else into
            out = segments[(me - step - 1) % n][j]
            return start_exchange(out, (me + 1) % n, target, (me - 1) % n, group)

        def land(step, j, works):
            works[-1].wait()
            into = segments[(me - step - 2) % n][j]
            if step < n - 1:
                combine(into, incoming[j][: len(into)], op)
            if step == n - 2:
                finish(into, op, n)

        flying, sends = deque(), []
        for step in range(2 * (n - 1)):
            for j in range(k):
                if step > 0:
                    land(*flying.popleft())
                works = start(step, j)
                sends += works[:-1]
                flying.append((step, j, works))
        for job in flying:
            land(*job)
        for work in sends:
            work.wait()


def fast_all_reduce(tensor: torch.Tensor, op=SUM, group=None) -> None:
    """Recursive doubling up to SHORT_BYTES, the segmented ring above. In place."""
    if tensor.nbytes <= SHORT_BYTES:
        recursive_doubling_all_reduce(tensor, op, group)
    else:
        segmented_ring_all_reduce(tensor, op, group)
