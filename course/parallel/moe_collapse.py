"""A mixture small enough to train in a second, on tokens that suit as many experts.

    b   tokens of a step, BATCH       h   hidden, HIDDEN       E   experts, FAMILIES

With no balancing its router collapses, as large ones do: what all tokens share suits some
rows of the first gate, and whoever has tokens learns. One process, plain torch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from course.parallel.moe import DenseMoE
from course.parallel.moe_balance import switch_loss, updated_bias

BATCH, HIDDEN, FAMILIES = 256, 8, 8


class Trained(NamedTuple):
    """loads: copies of each expert, step by step; error: mean of the last ten steps."""

    loads: list[list[int]]
    error: float
    layer: DenseMoE


def families(numbers: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, targets), [b, h] each, of FAMILIES families mixed at random.

    Each family has a place of its own and a linear map to learn. All tokens have a large
    part in common, as hidden states of real models do; the maps do not see it.
    """
    own = _drawn(17, FAMILIES, HIDDEN)
    maps = _drawn(18, FAMILIES, HIDDEN, HIDDEN) / HIDDEN**0.5
    family = torch.randint(FAMILIES, (BATCH,), generator=numbers)
    special = own[family] + 0.3 * torch.randn(BATCH, HIDDEN, generator=numbers)
    targets = torch.einsum("th,thi->ti", special, maps[family])
    return special + 2**0.5 * _drawn(19, HIDDEN), targets


def _drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def train_experts(
    steps: int = 120, *, weight: float = 0.0, speed: float = 0.0, top_k: int = 1
) -> Trained:
    """Train the layer; the same first weights and the same tokens at every call.

    weight: of Switch's balance loss
    speed:  above 0, a sigmoid router whose bias moves by so much after each step
    """
    router = "sigmoid" if speed else "softmax"
    layer = DenseMoE(HIDDEN, HIDDEN, FAMILIES, top_k, router=router, seed=0)
    adam = torch.optim.Adam(layer.parameters(), lr=0.02)
    numbers, loads, errors = torch.Generator().manual_seed(0), [], []
    for _ in range(steps):
        x, y = families(numbers)
        error = (layer(x) - y).square().mean()
        routing = layer.routings[0]
        adam.zero_grad()
        (error + switch_loss(routing, weight)).backward()
        adam.step()
        if speed:
            layer.router.bias.copy_(updated_bias(layer.router.bias, routing.load(), speed))
        loads.append(routing.load().tolist())
        errors.append(error.item())
    return Trained(loads, sum(errors[-10:]) / len(errors[-10:]), layer)
