"""The few words in which one rank speaks to another, for hand-written collectives.

Peers are named by their rank inside `group` (None: the whole world). All of it is plain
torch.distributed, and names no device: it runs on any backend that has send and receive.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist

SUM, MEAN, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX


def place(group=None) -> tuple[int, int]:
    """(ranks in the group, my rank in it)."""
    return dist.get_world_size(group), dist.get_rank(group)


def send(tensor: torch.Tensor, to: int, group=None) -> None:
    """Send a tensor of any strides to one rank; back when the buffer may be changed."""
    dist.send(tensor.contiguous(), group=group, group_dst=to)


def receive(tensor: torch.Tensor, source: int, group=None) -> None:
    """Fill the tensor, of any strides, with what one rank sends."""
    whole = tensor.contiguous()
    dist.recv(whole, group=group, group_src=source)
    if whole is not tensor:
        tensor.copy_(whole)


def start_exchange(out, to: int, into, source: int, group=None) -> list:
    """Begin to receive one contiguous tensor and to send another.

    Returns what to wait for, the receive first, each to be waited for once. NCCL needs
    both in one batch (and returns one work): a send and a receive that are launched one
    after the other may wait for each other forever.
    """
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, into, group=group, group_peer=source),
            dist.P2POp(dist.isend, out, group=group, group_peer=to),
        ]
    )


def exchange(out, to: int, into, source: int, group=None) -> None:
    """Send one contiguous tensor while receiving another; back when both are done."""
    for work in start_exchange(out, to, into, source, group):
        work.wait()


def start_all(outs: list, intos: list, group=None) -> list:
    """Begin to send and to receive contiguous tensors: lists of (tensor, rank).

    Returns what to wait for: the sends, then the receives (which on gloo is faster than
    the other way round); on NCCL one work for all, which needs them in one batch. On
    CPUs a batch does nothing but cost time.
    """
    if all(tensor.is_cpu for tensor, _ in outs):
        sends = [dist.isend(t, group=group, group_dst=r) for t, r in outs]
        return sends + [dist.irecv(t, group=group, group_src=r) for t, r in intos]
    sends = [dist.P2POp(dist.isend, t, group=group, group_peer=r) for t, r in outs]
    receives = [dist.P2POp(dist.irecv, t, group=group, group_peer=r) for t, r in intos]
    return dist.batch_isend_irecv(sends + receives)


def check_op(op) -> None:
    if op not in (SUM, MEAN, MAX):
        raise ValueError(f"op must be ReduceOp.SUM, AVG or MAX, not {op}")


def combine(into: torch.Tensor, other: torch.Tensor, op=SUM) -> None:
    """into = into + other, or the larger of the two, element by element, in place."""
    check_op(op)
    if op == MAX:
        torch.maximum(into, other, out=into)
    else:
        into.add_(other)


def finish(total: torch.Tensor, op, ranks: int) -> None:
    """Turn a sum into a mean, in place, where a mean was asked for."""
    check_op(op)
    if op == MEAN:
        total.div_(ranks)


@contextmanager
def flattened(tensor: torch.Tensor):
    """The tensor as one row that can be cut into views: work on it, the tensor changes.

    A view where the memory is one row already, else a copy that is written back.
    """
    row = tensor.detach().contiguous().view(-1)
    yield row
    if not tensor.is_contiguous():
        tensor.detach().copy_(row.view(tensor.shape))
