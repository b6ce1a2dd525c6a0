"""The models of chapter 08, and a stack of equal layers trained in every way.

Of the stack bytes are counted, sent and held: they are as in any model whose units are
equally large. Each rank trains it on the same ones, and nothing is learned.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from course.parallel.zero import Zero1, Zero2, Zero3


def stack(width: int, depth: int) -> nn.Sequential:
    """Layers of [width, width], no biases: width**2 * depth parameters."""
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(depth)])


def two_layers() -> nn.Sequential:
    """4 -> 4, tanh, 4 -> 4, 32 weights in fp64: the same on every rank."""
    torch.manual_seed(0)
    layers = nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)
    return nn.Sequential(*layers).double()


def ten_batches() -> torch.Tensor:
    """For `two_layers`, [10, 2, 8, 4]: ten steps, x and y, eight rows, four columns."""
    random = torch.Generator().manual_seed(1)
    return torch.randn(10, 2, 8, 4, generator=random, dtype=torch.double)


class BlocksAndRoot(nn.Module):
    """Three blocks of 40, 108 and 208 parameters, and 80 outside of them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(16, 4)
        self.blocks = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 12), nn.Linear(12, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [b, 2] -> [b, 4]
        return self.last(self.blocks(self.first(x)))


# --- The ways -----------------------------------------------------------------------------


def adamw(model: nn.Module, **options) -> Callable[[], None]:
    """What ends a step of a model that torch's AdamW updates."""
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def finish():
        optimizer.step()
        optimizer.zero_grad()

    return finish


def _plain(model: nn.Sequential) -> Callable[[], None]:
    """Whole copies on all ranks: all-reduce the gradients, then AdamW."""
    update = adamw(model)

    def finish():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        update()

    return finish


def _each_layer(model: nn.Sequential, **options) -> Callable[[], None]:
    for part in (*model, model):
        fully_shard(part, **options)
    return adamw(model)


def _root_only(model: nn.Sequential) -> Callable[[], None]:
    fully_shard(model)
    return adamw(model)


def _hybrid(model: nn.Sequential) -> Callable[[], None]:
    """HSDP: shards over four neighbours, copies of these over the rest."""
    shape = dist.get_world_size() // 4, 4
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))
    return _each_layer(model, mesh=mesh)


# {name: model -> what ends a step}
WAYS = {
    "plain": _plain,
    "ZeRO-1": lambda model: Zero1(model).step,
    "ZeRO-2": lambda model: Zero2(model).step,
    "ZeRO-3": lambda model: Zero3(model, blocks=model).step,
    "FSDP2": _each_layer,
    "FSDP2, root only": _root_only,
    "FSDP2, back to 4": lambda model: _each_layer(model, reshard_after_forward=4),
    "HSDP of 4": _hybrid,
}
STAGE = {"plain": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3, "FSDP2": 3}


def train_stack(
    steps: int, way: str, width: int = 24, depth: int = 6, rows: int = 1
) -> None:
    """Build the stack on this rank, and train it in one of WAYS on a batch of ones."""
    model = stack(width, depth)
    finish = WAYS[way](model)
    for _ in range(steps):
        model(torch.ones(rows, width)).sum().backward()
        finish()


def accumulate(steps: int, stage: int, reduce: str, micro_batches: int = 4) -> None:
    """Train the stack with several micro-batches a step, under stage 2 or 3.

    reduce: "each" micro-batch, or the "last" one only, all others in `no_sync`
    """
    model = stack(24, 6)
    zero = Zero3(model, blocks=model) if stage == 3 else Zero2(model)
    for number in range(micro_batches * steps):
        last = (number + 1) % micro_batches == 0
        with nullcontext() if last or reduce == "each" else zero.no_sync():
            model(torch.ones(1, 24)).sum().backward()
        if last:
            zero.step()


def widths_at_rest(dtype: torch.dtype, policy: MixedPrecisionPolicy) -> list[int]:
    """Bytes an element of a weight's shard, its gradient, its two moments, under FSDP2.

    dtype: in which the model is created
    """
    model = stack(24, 6).to(dtype)
    for part in (*model, model):
        fully_shard(part, mp_policy=policy)
    adam = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 24, dtype=dtype)).sum().backward()
    adam.step()
    weight = model[0].weight
    moments = adam.state[weight]["exp_avg"], adam.state[weight]["exp_avg_sq"]
    return [tensor.to_local().itemsize for tensor in (weight, weight.grad, *moments)]
