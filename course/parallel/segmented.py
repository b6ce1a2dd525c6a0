"""All-reduce made for speed on real CPU ranks. Same results as the plain ring, less easy
to read.
"""

import threading
from collections import deque
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist

from course.parallel.all_pairs import all_pairs_all_reduce
from course.parallel.messages import combine, finish, flattened, place, start_exchange

SUM = dist.ReduceOp.SUM

# All found by `make bench`, 4 gloo ranks on 2 cores.
SEGMENT_BYTES = 8 * 2**20
BLOCK_BYTES = 8 * 2**20
SHORT_BYTES = 2 * 2**20
FEW_RANKS = 8


@dataclass
class _Ring:
    """One rank's view of a segmented ring.

    segments:  [piece][j], views into the tensor
    incoming:  [j], where partial sums arrive
    """

    n: int
    me: int
    segments: list
    incoming: list
    op: object
    group: object

    def start(self, step: int, j: int) -> list:
        """Pass on segment j, which has arrived at the step before, and await the next."""
        into = self._arrives(step, j)
        target = self.incoming[j][: len(into)] if step < self.n - 1 else into
        out = self._arrives(step - 1, j)
        right, left = (self.me + 1) % self.n, (self.me - 1) % self.n
        return start_exchange(out, right, target, left, self.group)

    def land(self, step: int, j: int, works: list) -> None:
        """Wait for segment j of a step; in the first half of the steps, add it."""
        works[0].wait()
        into = self._arrives(step, j)
        if step < self.n - 1:
            combine(into, self.incoming[j][: len(into)], self.op)
        if step == self.n - 2:
            finish(into, self.op, self.n)

    def _arrives(self, step: int, j: int) -> torch.Tensor:
        return self.segments[(self.me - step - 2) % self.n][j]


def segmented_ring_all_reduce(
    tensor: torch.Tensor, op=SUM, group=None, *, segment_bytes: int = SEGMENT_BYTES
) -> None:
    """The ring all-reduce with all segments of a piece in flight together. In place.

    While one segment is added, the next ones are on the wire. Nobody waits for a send
    until the end: by then it has long been received.
    """
    if segment_bytes < 1:
        raise ValueError(f"segment_bytes must be 1 or more, not {segment_bytes}")
    n, me = place(group)
    with flattened(tensor) as row:
        if n == 1:
            return finish(row, op, n)
        pieces = row.tensor_split(n)
        k = max(1, -(-pieces[0].nbytes // segment_bytes))
        segments = [piece.tensor_split(k) for piece in pieces]
        incoming = torch.empty_like(pieces[0]).tensor_split(k)
        ring = _Ring(n, me, segments, incoming, op, group)
        flying, sends = deque(), []
        for step, j in product(range(2 * (n - 1)), range(k)):
            if step > 0:
                ring.land(*flying.popleft())
            works = ring.start(step, j)
            flying.append((step, j, works))
            sends += works[1:]
        for arriving in flying:
            ring.land(*arriving)
        for work in sends:
            work.wait()


class _Kept(threading.local):
    """Each thread's own, since simulated ranks are threads."""

    room: torch.Tensor | None = None


_kept = _Kept()


def _kept_room(tensor: torch.Tensor) -> torch.Tensor | None:
    """A block's room, kept between calls as NCCL keeps its buffers: the first touch of
    fresh memory costs a page fault. None where a tensor is not plain memory.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cpu:
        return None
    if _kept.room is None:
        _kept.room = torch.empty(BLOCK_BYTES, dtype=torch.uint8)
    return _kept.room.view(tensor.dtype)


def fast_all_reduce(tensor: torch.Tensor, op=SUM, group=None) -> None:
    """All pairs at once, a block at a time, on few ranks. In place.

    Ranks that share cores pay for each step and for each message more than for bytes: two
    steps a block are few. Blocks, because the room that they need is then small enough to
    stay in the cache, and to be kept. Long tensors on many ranks take the segmented ring.
    """
    n, _ = place(group)
    if n <= FEW_RANKS or tensor.nbytes <= SHORT_BYTES:
        room = _kept_room(tensor)
        all_pairs_all_reduce(tensor, op, group, block_bytes=BLOCK_BYTES, room=room)
    else:
        segmented_ring_all_reduce(tensor, op, group)
