"""Answers to the exercises of chapter 08 and of lab 03, to be shown under their checks.

n ranks. A row of P elements is cut into n shards, filled up with zeros where need be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import pad

from course.parallel.collectives import ring_all_gather, ring_reduce_scatter

# --- Chapter 08 -----------------------------------------------------------------------


def shard_the_optimizer(parameter: nn.Parameter, make_optimizer: Callable) -> Callable:
    """The shard is a view of the row: what AdamW writes there is in the row, too."""
    n, rank = dist.get_world_size(), dist.get_rank()
    shard = nn.Parameter(parameter.detach().tensor_split(n)[rank])
    optimizer = make_optimizer([shard])

    def step():
        shard.grad = ring_reduce_scatter(parameter.grad) / n  # no view: the row may go
        optimizer.step()
        ring_all_gather(parameter.detach())

    return step


def scatter_in_hooks(buckets: Sequence[Sequence[nn.Parameter]]) -> Callable:
    """Count each bucket's gradients; the last one to arrive sends them all."""
    n, shards = dist.get_world_size(), [None] * len(buckets)
    arrived = [0] * len(buckets)

    def arrive(k: int, _: nn.Parameter):
        arrived[k] += 1
        if arrived[k] == len(buckets[k]):
            arrived[k] = 0
            row = torch.cat([p.grad.flatten() for p in buckets[k]])
            for p in buckets[k]:
                p.grad = None
            row = pad(row, (0, -len(row) % n))
            shards[k] = row.new_empty(len(row) // n)
            dist.reduce_scatter_tensor(shards[k], row / n)

    for k, bucket in enumerate(buckets):
        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(partial(arrive, k))
    return lambda: list(shards)


def free_after_use(
    shards: Sequence[torch.Tensor], forward: Callable, backward: Callable, x: torch.Tensor
) -> list[torch.Tensor]:
    """Whole weights have no name here: they are gone as soon as the block has run."""
    n = dist.get_world_size()

    def gathered(shard: torch.Tensor) -> torch.Tensor:
        whole = shard.new_empty(n * len(shard))
        dist.all_gather_into_tensor(whole, shard)
        return whole

    inputs, mine = [], []
    for shard in shards:
        inputs.append(x)
        x = forward(gathered(shard), x)
    grad = torch.ones_like(x)
    for shard in reversed(shards):
        grad, of_whole = backward(gathered(shard), inputs.pop(), grad)
        mine.append(torch.empty_like(shard))
        dist.reduce_scatter_tensor(mine[-1], of_whole / n)
    return mine[::-1]


# --- Lab 03 ---------------------------------------------------------------------------


def which_stage(parameters: int, ranks: int, held: dict[str, int]) -> int:
    """Whole is 4 bytes a parameter, and 8 for the two moments."""
    if held["optimizer state"] >= 8 * parameters:
        return 0
    if held["parameters"] < 4 * parameters:
        return 3
    return 1 if held["gradients"] >= 4 * parameters else 2
