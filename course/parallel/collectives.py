"""Collectives by hand, for one rank: first naive, then the ring.

    n   ranks in the group, me is one of them, root another (ranks count inside the group)
    piece r   part r of n of a buffer, as `tensor_split` cuts it: sizes differ by 1 at most

Reductions take op=ReduceOp.SUM, AVG or MAX, work in place, and are for any dtype that
torch can add (AVG: that it can divide). What each costs: `course.costs.collectives`.
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

# --- Naive: everything goes through one rank ----------------------------------------


def naive_broadcast(tensor: torch.Tensor, root: int = 0, group=None) -> None:
    """The root sends its tensor to each other rank in turn."""
    n, me = place(group)
    if me != root:
        return receive(tensor, root, group)
    for peer in range(n):
        if peer != root:
            send(tensor, peer, group)


def naive_reduce(tensor: torch.Tensor, root: int = 0, op=SUM, group=None) -> None:
    """The root takes each rank's tensor in turn and adds it to its own.

    The other ranks' tensors stay as they are.
    """
    check_op(op)
    n, me = place(group)
    if me != root:
        return send(tensor, root, group)
    incoming = torch.empty_like(tensor)
    for peer in range(n):
        if peer != root:
            receive(incoming, peer, group)
            combine(tensor, incoming, op)
    finish(tensor, op, n)


def naive_all_reduce(tensor: torch.Tensor, op=SUM, group=None) -> None:
    """Rank 0 collects and adds, then sends the result to all. In place."""
    naive_reduce(tensor, 0, op, group)
    naive_broadcast(tensor, 0, group)


def naive_scatter(tensor: torch.Tensor, pieces=None, root: int = 0, group=None) -> None:
    """The root sends piece r to rank r, which receives it in `tensor`.

    pieces: n tensors, on the root only
    """
    _, me = place(group)
    if me != root:
        return receive(tensor, root, group)
    for peer, piece in enumerate(pieces):
        if peer != root:
            send(piece, peer, group)
    tensor.copy_(pieces[root])


def naive_gather(tensor: torch.Tensor, pieces=None, root: int = 0, group=None) -> None:
    """Rank r sends `tensor` to the root, which receives it in pieces[r].

    pieces: n tensors, on the root only
    """
    _, me = place(group)
    if me != root:
        return send(tensor, root, group)
    for peer, piece in enumerate(pieces):
        if peer != root:
            receive(piece, peer, group)
    pieces[root].copy_(tensor)


def naive_all_gather(whole: torch.Tensor, tensor: torch.Tensor, group=None) -> None:
    """Rank 0 gathers every rank's tensor into whole, then sends the whole to all.

    tensor: this rank's piece, shape (k, ...)
    whole:  shape (n * k, ...), piece r from rank r
    """
    n, _ = place(group)
    naive_gather(tensor, whole.tensor_split(n), 0, group)
    naive_broadcast(whole, 0, group)


def naive_reduce_scatter(tensor: torch.Tensor, whole: torch.Tensor, op=SUM, group=None):
    """Rank 0 adds every rank's whole, then sends piece r of the sum to rank r.

    tensor: receives this rank's piece, shape (k, ...)
    whole:  shape (n * k, ...), left as it is
    """
    n, _ = place(group)
    total = whole.clone()
    naive_reduce(total, 0, op, group)
    naive_scatter(tensor, total.tensor_split(n), 0, group)


def naive_all_to_all(received: list, sent: list, group=None) -> None:
    """Rank r sends sent[q] to rank q, which receives it in received[r].

    received, sent: n contiguous tensors each. At shift s everybody sends to the rank
    s places on and receives from the rank s places back, so that no port is asked twice.
    """
    n, me = place(group)
    received[me].copy_(sent[me])
    for shift in range(1, n):
        to, source = (me + shift) % n, (me - shift) % n
        exchange(sent[to], to, received[source], source, group)


def naive_barrier(group=None) -> None:
    """Nobody goes on before everybody has come: an all-reduce of nothing."""
    naive_all_reduce(torch.empty(0), SUM, group)


# --- The ring: every rank sends to the next, and all wires are busy at once -----------


def ring_reduce_scatter(tensor: torch.Tensor, op=SUM, group=None) -> torch.Tensor:
    """Add up all ranks' tensors; rank r ends with the finished piece r, and returns it.

    The tensor is the workspace: its other pieces are left half summed.
    """
    n, me = place(group)
    with flattened(tensor) as row:
        pieces = row.tensor_split(n)
        incoming = torch.empty_like(pieces[0])
        for step in range(n - 1):
            out, into = (me - step - 1) % n, (me - step - 2) % n
            partial_sum = incoming[: len(pieces[into])]
            exchange(pieces[out], (me + 1) % n, partial_sum, (me - 1) % n, group)
            combine(pieces[into], partial_sum, op)
        finish(pieces[me], op, n)
    return pieces[me]


def ring_all_gather(tensor: torch.Tensor, group=None) -> None:
    """Rank r brings the right piece r; in the end all ranks have all pieces. In place."""
    n, me = place(group)
    with flattened(tensor) as row:
        pieces = row.tensor_split(n)
        for step in range(n - 1):
            out, into = (me - step) % n, (me - step - 1) % n
            exchange(pieces[out], (me + 1) % n, pieces[into], (me - 1) % n, group)


def ring_all_reduce(tensor: torch.Tensor, op=SUM, group=None) -> None:
    """All ranks end with the sum (mean, maximum) of all ranks' tensors. In place.

    Reduce-scatter, then all-gather: each rank sends 2 (n - 1) / n of the tensor.
    """
    with flattened(tensor) as row:
        ring_reduce_scatter(row, op, group)
        ring_all_gather(row, group)
