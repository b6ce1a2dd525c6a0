"""Dispatch and combine with no copy: each block of rows goes straight to its place.

    n   ranks of the group        e   experts on each        h   hidden

In place of one all-to-all and a sort by expert, e messages to every other rank, all at
once: the rows of rank s for expert j are received where that expert's rows from s are to
lie. On NCCL an all-to-all is a batch of sends and receives as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from course.parallel.messages import place
from course.parallel.moe_exchange import Plan, grid, totals, transposed

Blocks = list[list[torch.Tensor]]  # views, [other rank][my expert]


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, how, group):
        ctx.how, ctx.group = how, group
        return tuple(_dispatch(rows.contiguous(), how, group))

    @staticmethod
    def backward(ctx, *gradients):
        return combine_pairs(gradients, ctx.how, ctx.group), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, how, group, *outputs):
        ctx.how, ctx.group = how, group
        return _combine([output.contiguous() for output in outputs], how, group)

    @staticmethod
    def backward(ctx, gradient):
        return None, None, *dispatch_pairs(gradient, ctx.how, ctx.group)


def dispatch_pairs(rows: torch.Tensor, how: Plan, group=None) -> list[torch.Tensor]:
    """As `moe_exchange.dispatch`: rows [kept, h], sorted by expert -> [any, h] for each."""
    return list(_Dispatch.apply(rows, how, group))


def combine_pairs(outputs: Sequence[torch.Tensor], how: Plan, group=None) -> torch.Tensor:
    """As `moe_exchange.combine`: outputs of my experts -> rows as they were sent."""
    return _Combine.apply(how, group, *outputs)


def _dispatch(rows: torch.Tensor, how: Plan, group) -> list[torch.Tensor]:
    sizes = totals(transposed(how.incoming))
    parts = [rows.new_empty(size, rows.shape[1]) for size in sizes]
    _swap(_of_rows(rows, how), _of_experts(parts, how), group)
    return parts


def _combine(parts: list[torch.Tensor], how: Plan, group) -> torch.Tensor:
    rows = parts[0].new_empty(sum(totals(how.outgoing)), parts[0].shape[1])
    _swap(_of_experts(parts, how), _of_rows(rows, how), group)
    return rows


def _of_rows(rows: torch.Tensor, how: Plan) -> Blocks:
    """Rows that lie by rank and then by that rank's expert."""
    sizes = [size for some in how.outgoing for size in some]
    return grid(rows.split(sizes), len(how.outgoing[0]))


def _of_experts(parts: list[torch.Tensor], how: Plan) -> Blocks:
    """Rows that lie by my expert and then by rank."""
    each = zip(parts, transposed(how.incoming), strict=True)
    return transposed([part.split(sizes) for part, sizes in each])


def _swap(outs: Blocks, intos: Blocks, group) -> None:
    """Give every rank its blocks, and receive mine. Empty ones are not sent."""
    n, me = place(group)
    steps = [((me + d) % n, (me - d) % n) for d in range(1, n)]
    sends = [
        dist.P2POp(dist.isend, block, group=group, group_peer=to)
        for to, _ in steps
        for block in outs[to]
        if len(block)
    ]
    receives = [
        dist.P2POp(dist.irecv, block, group=group, group_peer=source)
        for _, source in steps
        for block in intos[source]
        if len(block)
    ]
    works = dist.batch_isend_irecv(sends + receives) if sends or receives else []
    for out, into in zip(outs[me], intos[me], strict=True):
        into.copy_(out)
    for work in works:
        work.wait()
