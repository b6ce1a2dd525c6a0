"""torch's fully_shard on simulated ranks, unmodified: equal to one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.nn.functional import mse_loss

from course import World
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


def _me() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def sharded(model: nn.Module, *, blocks: bool = True, **options) -> nn.Module:
    """fully_shard on each linear layer, then on the root."""
    if blocks:
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, **options)
    return fully_shard(model, **options)


def plain(options: dict) -> dict:
    model = sharded(build(), **options)
    train(model, *_me())
    return state(model)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"blocks": False},
        {"reshard_after_forward": True},
        {"reshard_after_forward": False},
        {"offload_policy": OffloadPolicy()},
    ],
    ids=str,
)
def test_fully_shard(options, ranks):
    for got in World(ranks).run(plain, options).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)


def same_rows() -> dict:
    """Every rank works on the whole batch: the mean of its gradients is the gradient."""
    model = sharded(build())
    train(model)
    return state(model)


def test_ranks_that_do_not_divide_the_parameters():
    for got in World(5).run(same_rows).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)


def reshard_to_pairs() -> dict:
    model = sharded(build(), reshard_after_forward=2)
    train(model, *_me())
    return state(model)


def test_reshard_after_forward_to_a_smaller_group():
    for got in World(4).run(reshard_to_pairs).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)


def hybrid() -> dict:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(build(), mesh=mesh)
    train(model, *_me())
    return state(model)


def test_hybrid_sharding():
    run = World(4).run(hybrid)
    for got in run.results:
        assert not difference(got, alone(), tolerance=TOLERANCE)
    assert {e.name for e in run.events} >= {"all_gather", "reduce_scatter", "all_reduce"}


def shard_sizes() -> list[int]:
    return [p.to_local().numel() for p in sharded(build()).parameters()]


def test_each_rank_holds_its_share_only():
    shards = World(4).run(shard_sizes).results
    whole = [p.numel() for p in build().parameters()]
    assert [sum(part) for part in zip(*shards, strict=True)] == whole


def mixed() -> dict:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(build().float(), mp_policy=policy)
    x, y = (t.bfloat16() for t in batches()[0])
    rank, ranks = _me()
    loss = mse_loss(model(share(x, rank, ranks)), share(y, rank, ranks))
    loss.backward()
    return loss.dtype, state(model)


def test_mixed_precision():
    """Gradients in bfloat16 of each half, added in float32, as one process would."""
    x, y = (t.bfloat16() for t in batches()[0])
    halves = []
    for k in range(2):
        model = build().bfloat16()
        mse_loss(model(share(x, k, 2)), share(y, k, 2)).backward()
        halves.append([p.grad.float() for p in model.parameters()])
    want = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
    run = World(2).run(mixed)
    for dtype, got in run.results:
        assert dtype == torch.bfloat16
        assert not difference([g for _, g in got.values()], want, tolerance=1e-6)
        assert all(p.dtype == torch.float32 for p, _ in got.values())
    gathered = [e.bytes for e in run.events if e.name == "all_gather" and e.rank == 0]
    layers = [sum(p.numel() for p in m.parameters()) for m in build()[::2]]
    assert gathered[:3] == [2 * numbers for numbers in layers]


class Tied(nn.Module):
    """One matrix in two places, and a layer that is not trained."""

    def __init__(self):
        super().__init__()
        self.body = build()
        self.first = nn.Linear(4, 4, bias=False).double()
        self.again = nn.Linear(4, 4, bias=False).double()
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(4, 4).double().requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.again(self.first(self.body(x))))


def build_tied() -> Tied:
    torch.manual_seed(7)
    return Tied()


def tied() -> tuple:
    model = build_tied()
    fully_shard(model.body)
    fully_shard(model)
    train(model, *_me())
    return model.first.weight is model.again.weight, state(model)


def test_tied_and_frozen_parameters():
    want = alone(build_tied())
    for still_tied, got in World(2).run(tied).results:
        assert still_tied
        assert not difference(got, want, tolerance=TOLERANCE)


def accumulating(setting: str) -> dict:
    rank, ranks = _me()
    model = sharded(build(), blocks=False)
    optimizer = adamw(model)
    for x, y in batches():
        optimizer.zero_grad()
        x, y = (share(t, rank, ranks).chunk(3) for t in (x, y))
        for k in range(3):
            if setting == "sync":
                model.set_requires_gradient_sync(k == 2)
            if setting == "reshard":
                model.set_reshard_after_backward(k == 2)
            (mse_loss(model(x[k]), y[k]) / 3).backward()
        optimizer.step()
    return state(model)


@pytest.mark.parametrize("setting", ["none", "sync", "reshard"])
def test_gradient_accumulation(setting):
    for got in World(2).run(accumulating, setting).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)


def test_gradient_accumulation_without_sync_sends_less():
    sent = {s: World(2).run(accumulating, s).bytes_sent[0] for s in ("none", "sync")}
    assert sent["sync"] < sent["none"]


def prefetching() -> dict:
    model = sharded(build())
    layers = [layer for layer in model if isinstance(layer, FSDPModule)]
    for before, after in zip(layers[:-1], layers[1:], strict=True):
        before.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([before])
    model.unshard()
    train(model, *_me())
    return state(model)


def test_explicit_prefetch():
    for got in World(2).run(prefetching).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)


def unsharding_by_hand() -> dict:
    model = sharded(build(), blocks=False)
    handle = model.unshard(async_op=True)
    handle.wait()
    whole = [p.detach().clone() for p in model.parameters()]
    model.reshard()
    return whole


def test_unshard_and_reshard():
    want = [p.detach() for p in build().parameters()]
    assert not difference(World(3).run(unsharding_by_hand).results, [want] * 3)


def clipping(kind: str) -> tuple:
    model = sharded(build()) if kind == "sharded" else build()
    rank, ranks = _me() if kind == "sharded" else (0, 1)
    optimizer = adamw(model)
    norms = []
    for x, y in batches():
        optimizer.zero_grad()
        mse_loss(model(share(x, rank, ranks)), share(y, rank, ranks)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        norms.append(full(norm))
        optimizer.step()
    return norms, state(model)


def test_clip_grad_norm():
    want = clipping("alone")
    for got in World(4).run(clipping, "sharded").results:
        assert not difference(got, want, tolerance=TOLERANCE)
    assert max(want[0]) > 0.1


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = build()

    def forward(self, x):
        return self.body(x)

    def evaluate(self, x):
        return self.forward(x) * 2


def other_method() -> torch.Tensor:
    model = Named()
    fully_shard(model)
    register_fsdp_forward_method(model, "evaluate")
    return model.evaluate(batches()[0][0]).detach()


def test_another_method_than_forward():
    want = Named().evaluate(batches()[0][0]).detach()
    assert not difference(World(2).run(other_method).results, [want] * 2, tolerance=1e-12)


def offloaded() -> dict:
    return plain({"offload_policy": CPUOffloadPolicy(pin_memory=False)})


def test_cpu_offload():
    for got in World(2).run(offloaded).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)
