"""DTensor and parallelize_module on simulated ranks, unmodified: equal to one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, mse_loss

from course import World
from course.worlds import RankError
from tests.sameness import difference
from tests.training import (
    TOLERANCE,
    adamw,
    alone,
    batches,
    build,
    full,
    share,
    state,
    train,
)


def _mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel()}


def columns_then_rows() -> dict:
    plan = PLAN | {"4": ColwiseParallel(output_layouts=Replicate())}
    model = parallelize_module(build(), _mesh(), plan)
    train(model)
    return state(model)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_columns_then_rows(ranks):
    for got in World(ranks).run(columns_then_rows).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)


class Block(nn.Module):
    """Norm and two linear layers around a residual, on [batch, sequence, width]."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.norm = nn.LayerNorm(8).double()
        self.up = nn.Linear(8, 16).double()
        self.down = nn.Linear(16, 8).double()

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def _train_block(model: nn.Module) -> dict:
    optimizer = adamw(model)
    for k in range(3):
        random = torch.Generator().manual_seed(k)
        x = torch.randn(2, 4, 8, generator=random).double()
        optimizer.zero_grad()
        full_loss = model(x).pow(2).mean()
        full_loss.backward()
        optimizer.step()
    return state(model)


def sequence_parallel() -> dict:
    plan = {
        "": PrepareModuleInput(
            input_layouts=Replicate(),
            desired_input_layouts=Shard(1),
            use_local_output=False,
        ),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    model = parallelize_module(Block(), _mesh(), plan)
    model = parallelize_module(
        model,
        _mesh(),
        PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate()),
    )
    return _train_block(model)


@pytest.mark.parametrize("ranks", [2, 4])
def test_sequence_parallel(ranks):
    run = World(ranks).run(sequence_parallel)
    for got in run.results:
        assert not difference(got, _train_block(Block()), tolerance=TOLERANCE)
    assert {e.name for e in run.events} >= {"all_gather", "reduce_scatter"}


def _classes(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batches()[step][0], torch.arange(24) % 4


def loss_over_sharded_classes() -> tuple:
    plan = PLAN | {"4": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    model = parallelize_module(build(), _mesh(), plan)
    x, classes = _classes(0)
    with loss_parallel():
        loss = cross_entropy(model(x), classes)
        loss.backward()
    return full(loss), state(model)


def test_loss_parallel():
    """torch switches it for the whole process; each rank must see a switch of its own."""
    model = build()
    x, classes = _classes(0)
    loss = cross_entropy(model(x), classes)
    loss.backward()
    want = loss.detach(), state(model)
    for got in World(2).run(loss_over_sharded_classes).results:
        assert not difference(got, want, tolerance=TOLERANCE)
    assert not torch_is_in_loss_parallel()


def torch_is_in_loss_parallel() -> bool:
    handlers = DTensor._op_dispatcher._custom_op_handlers
    return torch.ops.aten._log_softmax.default in handlers


def test_loss_parallel_is_left_when_a_rank_fails():
    def fails():
        with loss_parallel():
            raise ValueError("in the middle")

    with pytest.raises(RankError, match="in the middle"):
        World(2).run(fails)
    assert not torch_is_in_loss_parallel()


def embedding() -> dict:
    torch.manual_seed(2)
    table = nn.Embedding(12, 8).double()
    model = parallelize_module(
        nn.Sequential(table),
        _mesh(),
        {"0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())},
    )
    model(torch.arange(10).view(2, 5)).pow(2).mean().backward()
    return state(model)


def test_embedding_cut_by_rows():
    torch.manual_seed(2)
    table = nn.Sequential(nn.Embedding(12, 8).double())
    table(torch.arange(10).view(2, 5)).pow(2).mean().backward()
    for got in World(3).run(embedding).results:
        assert not difference(got, state(table), tolerance=TOLERANCE)


def two_dimensional() -> dict:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = PLAN | {"4": ColwiseParallel(output_layouts=Replicate())}
    model = parallelize_module(build(), mesh["tp"], plan)
    for layer in model[::2]:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    train(model, mesh.get_local_rank("dp"), 2)
    return state(model)


def test_tensor_and_fully_sharded_data_parallel():
    for got in World(4).run(two_dimensional).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)


def three_dimensional() -> dict:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    plan = PLAN | {"4": ColwiseParallel(output_layouts=Replicate())}
    model = parallelize_module(build(), mesh["tp"], plan)
    fully_shard(model, mesh=mesh["replicate", "shard"])
    row = mesh.get_local_rank("replicate") * 2 + mesh.get_local_rank("shard")
    train(model, row, 4)
    return state(model)


def test_hybrid_sharding_and_tensor_parallel():
    for got in World(8).run(three_dimensional).results[::3]:
        assert not difference(got, alone(), tolerance=TOLERANCE)


def clipped(parallel: bool) -> torch.Tensor:
    model = build()
    if parallel:
        plan = PLAN | {"4": ColwiseParallel(output_layouts=Replicate())}
        model = parallelize_module(model, _mesh(), plan)
    x, y = batches()[0]
    mse_loss(model(x), y).backward()
    norm = full(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    return norm, state(model)


def test_clip_grad_norm():
    for got in World(2).run(clipped, True).results:
        assert not difference(got, clipped(False), tolerance=TOLERANCE)


def redistributed() -> list:
    x = torch.arange(24.0).view(6, 4)
    held = distribute_tensor(x, _mesh(), [Shard(0)])
    by_column = held.redistribute(placements=[Shard(1)])
    partial = DTensor.from_local(share(x, 0, 2), _mesh(), [Replicate()])
    return [
        full(by_column),
        by_column.to_local().shape,
        full(held + held),
        full(held.sum()),
        full(held @ held.t()),
        full(partial),
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_dtensor(ranks):
    x = torch.arange(24.0).view(6, 4)
    for rank, got in enumerate(World(ranks).run(redistributed).results):
        columns = share(x.t(), rank, ranks).t().shape
        assert not difference(got, [x, columns, x + x, x.sum(), x @ x.t(), x[:3]])
