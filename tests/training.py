"""A small model, its data, and its training in one process: what parallel runs must equal.

Everything is float64, so that adding in another order changes nothing that matters.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

STEPS, BATCH, WIDTH = 3, 24, 12
TOLERANCE = 1e-9


def build(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4)).double()


def batches(steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(x, y) for each step: [BATCH, 6] and [BATCH, 4]."""
    random = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randn(BATCH, n, generator=random).double() for n in (6, 4))
        for _ in range(steps)
    ]


def share(tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """The rows of a batch that one rank works on."""
    return tensor.chunk(ranks)[rank]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def train(model: nn.Module, rank: int = 0, ranks: int = 1, optimizer=None) -> list[float]:
    """Train on this rank's rows, and keep the last gradients. Returns the losses."""
    optimizer = optimizer or adamw(model)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = mse_loss(model(share(x, rank, ranks)), share(y, rank, ranks))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def full(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A plain tensor, from whatever holds a part of it."""
    if tensor is not None and hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return None if tensor is None else tensor.detach().clone()


def state(model: nn.Module) -> dict:
    """{name: (parameter, gradient)} and buffers, whole, as one process would hold them."""
    held = {n: (full(p), full(p.grad)) for n, p in model.named_parameters()}
    return held | {n: full(b) for n, b in model.named_buffers()}


def alone(model: nn.Module | None = None) -> dict:
    """The state after training in one process."""
    model = model or build()
    train(model)
    return state(model)
