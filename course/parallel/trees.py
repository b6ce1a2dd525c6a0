"""Reduce up a tree, then broadcast down it.

    n   ranks in the group, me is one of them, rank 0 is the root of the simple tree

The simple tree is binomial: in each round half of the ranks that are left hand over, so
that no rank hears from two at once. The double tree is NCCL's: two binary trees in which
each rank has children in one only, half of the tensor to each.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from course.parallel.messages import (
    check_op,
    combine,
    finish,
    flattened,
    place,
    receive,
    send,
)

SUM = dist.ReduceOp.SUM


def distances_below(n: int) -> list[int]:
    """1, 2, 4, ... below n."""
    return [1 << bit for bit in range((n - 1).bit_length())]


def tree_reduce(tensor: torch.Tensor, op=SUM, group=None) -> None:
    """Rank 0 ends with the sum, after ceil(log2 n) rounds. Others keep partial sums."""
    check_op(op)
    n, me = place(group)
    incoming = torch.empty_like(tensor)
    for distance in distances_below(n):
        if me & distance:
            return send(tensor, me - distance, group)
        if me + distance < n:
            receive(incoming, me + distance, group)
            combine(tensor, incoming, op)
    finish(tensor, op, n)


def tree_broadcast(tensor: torch.Tensor, group=None) -> None:
    """Rank 0's tensor reaches all: each round, whoever has it passes it on once."""
    n, me = place(group)
    for distance in reversed(distances_below(n)):
        if me % (2 * distance) == distance:
            receive(tensor, me - distance, group)
        elif me % (2 * distance) == 0 and me + distance < n:
            send(tensor, me + distance, group)


def tree_all_reduce(tensor: torch.Tensor, op=SUM, group=None) -> None:
    """Up the tree, down the tree: 2 ceil(log2 n) messages of the whole tensor. In place."""
    tree_reduce(tensor, op, group)
    tree_broadcast(tensor, group)


# --- Two binary trees at once -------------------------------------------------------


@dataclass(frozen=True)
class Seat:
    """Where one rank sits in a tree. parent is None at the root."""

    parent: int | None
    children: tuple[int, ...]


def binary_tree(n: int) -> list[Seat]:
    """Rank 0 above one binary tree of the others; every odd rank is a leaf.

    A rank whose lowest set bit is b has its children b / 2 to either side. Where the right
    one would be n or more, it is moved nearer until it exists (NCCL src/graph/trees.cc).
    """
    parents = [_parent(rank, n) for rank in range(n)]
    children: list[list[int]] = [[] for _ in range(n)]
    for rank, parent in enumerate(parents[1:], start=1):
        children[parent].append(rank)
    return [Seat(p, tuple(c)) for p, c in zip(parents, children, strict=True)]


def _parent(rank: int, n: int) -> int | None:
    if rank == 0:
        return None
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    return above if above < n else rank ^ bit


def double_tree(n: int) -> tuple[list[Seat], list[Seat]]:
    """The binary tree, and its twin with leaves and inner ranks changed over.

    The twin is the mirror image for even n, the same tree shifted by one for odd n, where
    rank 0 alone may have children in both.
    """
    tree = binary_tree(n)
    to = [(n - 1 - r) if n % 2 == 0 else (r + 1) % n for r in range(n)]
    twin: list = [None] * n
    for rank, seat in enumerate(tree):
        parent = None if seat.parent is None else to[seat.parent]
        twin[to[rank]] = Seat(parent, tuple(to[child] for child in seat.children))
    return tree, twin


def _reduce_up(parts, seat: Seat, op, group) -> list:
    """Add my children's parts to mine, and start each on its way to my parent."""
    started = []
    for part in parts:
        for child in seat.children:
            incoming = torch.empty_like(part)
            dist.recv(incoming, group=group, group_src=child)
            combine(part, incoming, op)
        if seat.parent is not None:
            started.append(dist.isend(part, group=group, group_dst=seat.parent))
    return started


def _send_down(parts, seat: Seat, group) -> list:
    """Take finished parts from my parent, and start each on its way to my children."""
    if not seat.children and seat.parent is not None:
        return [dist.irecv(part, group=group, group_src=seat.parent) for part in parts]
    started = []
    for part in parts:
        if seat.parent is not None:
            dist.recv(part, group=group, group_src=seat.parent)
        for child in seat.children:
            started.append(dist.isend(part, group=group, group_dst=child))
    return started


def double_tree_all_reduce(
    tensor: torch.Tensor, op=SUM, group=None, *, segments: int = 8
) -> None:
    """Half of the tensor up and down each of two trees. In place.

    A rank with children in one tree is a leaf of the other, so that every port carries
    the tensor about once up and once down, in about 2 log2(n) hops. It starts with the
    tree where it is a leaf: there it has nothing to wait for.
    segments: pieces of each half that follow one another through the tree. Each adds
              messages, and lets an upper level work while a lower one goes on.
    """
    check_op(op)
    if segments < 1:
        raise ValueError(f"segments must be 1 or more, not {segments}")
    n, me = place(group)
    with flattened(tensor) as row:
        halves = [half.tensor_split(segments) for half in row.tensor_split(2)]
        seats = [tree[me] for tree in double_tree(n)]
        # Rank 0 of three has children in both trees; the twin first, as its child 2 does.
        jobs = list(zip(halves, seats, strict=True))[::-1]
        jobs.sort(key=lambda job: bool(job[1].children))
        started = [
            work for parts, seat in jobs for work in _reduce_up(parts, seat, op, group)
        ]
        for work in started:
            work.wait()
        started = [work for parts, seat in jobs for work in _send_down(parts, seat, group)]
        for work in started:
            work.wait()
        finish(row, op, n)
