"""torch's DistributedDataParallel on simulated ranks, unmodified: equal to one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook,
)
from torch.distributed.nn.functional import all_reduce
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

from course import World
from tests.sameness import difference
from tests.training import TOLERANCE, adamw, alone, batches, build, share, state, train


def _me() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def ddp(options: dict, seed_of_rank: bool = False) -> dict:
    """Train under DDP; what rank 0 built must reach all."""
    model = build(dist.get_rank() if seed_of_rank else 0)
    wrapped = DDP(model, **options)
    train(wrapped, *_me())
    return state(model)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.0005},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"broadcast_buffers": False},
    ],
    ids=str,
)
def test_ddp(options, ranks):
    want = alone()
    for got in World(ranks).run(ddp, options).results:
        assert not difference(got, want, tolerance=TOLERANCE)


def test_ranks_that_begin_with_other_parameters():
    for got in World(3).run(ddp, {}, True).results:
        assert not difference(got, alone(), tolerance=TOLERANCE)


def test_buckets_are_reduced_as_backward_goes():
    """Small buckets: one all-reduce each, after the two broadcasts of the construction."""
    run = World(2).run(ddp, {"bucket_cap_mb": 0.0005})
    one = World(2).run(ddp, {})

    def reduces(run):
        return sum(e.name == "all_reduce" and e.rank == 0 for e in run.events)

    assert reduces(run) > reduces(one)
    assert run.bytes_sent[0] >= one.bytes_sent[0]


def accumulating(pieces: int) -> tuple[dict, int]:
    """no_sync for all but the last micro-batch of a step."""
    rank, ranks = _me()
    model = build()
    wrapped = DDP(model)
    optimizer = adamw(wrapped)
    for x, y in batches():
        optimizer.zero_grad()
        x, y = (share(t, rank, ranks).chunk(pieces) for t in (x, y))
        for k in range(pieces - 1):
            with wrapped.no_sync():
                (mse_loss(wrapped(x[k]), y[k]) / pieces).backward()
        (mse_loss(wrapped(x[-1]), y[-1]) / pieces).backward()
        optimizer.step()
    return state(model)


def test_no_sync_accumulates_and_sends_once():
    run = World(2).run(accumulating, 3)
    assert not difference(run.results[1], alone(), tolerance=TOLERANCE)
    assert run.bytes_sent == World(2).run(accumulating, 1).bytes_sent


class Forked(nn.Module):
    """A branch that only even steps use, and one that nobody does."""

    def __init__(self):
        super().__init__()
        self.body = build()
        self.extra = nn.Linear(4, 4).double()
        self.idle = nn.Linear(4, 4).double()

    def forward(self, x):
        y = self.body(x)
        return y if self.body[0].weight.grad is None else self.extra(y)


def forked() -> dict:
    torch.manual_seed(3)
    model = Forked()
    train(DDP(model, find_unused_parameters=True), *_me())
    return state(model)


def test_find_unused_parameters():
    run = World(2).run(forked)
    assert not difference(run.results[0], run.results[1])
    assert run.results[0]["idle.weight"][1] is None
    assert run.results[0]["body.0.weight"][1].abs().sum() > 0


def hooked(hook, state_of_hook) -> dict:
    model = build()
    wrapped = DDP(model)
    if state_of_hook == "powerSGD":
        state_of_hook = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=WHOLE_RANK, start_powerSGD_iter=2
        )
    wrapped.register_comm_hook(state_of_hook, hook)
    train(wrapped, *_me())
    return state(model)


WHOLE_RANK = 12  # of every weight matrix, so that PowerSGD's approximation is exact


@pytest.mark.parametrize(
    "hook, hook_state, tolerance",
    [
        (default_hooks.allreduce_hook, None, TOLERANCE),
        (default_hooks.fp16_compress_hook, None, 1e-2),
        (powerSGD_hook.powerSGD_hook, "powerSGD", 1e-6),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_communication_hooks(hook, hook_state, tolerance):
    run = World(2).run(hooked, hook, hook_state)
    assert not difference(run.results[0], run.results[1])
    assert not difference(run.results[0], alone(), tolerance=tolerance)


def test_hook_that_sends_nothing():
    run = World(2).run(hooked, debugging_hooks.noop_hook, None)
    assert difference(run.results[0], run.results[1], tolerance=1e-3)


def test_fp16_hook_sends_a_quarter_of_float64():
    plain = World(2).run(hooked, default_hooks.allreduce_hook, None)
    half = World(2).run(hooked, default_hooks.fp16_compress_hook, None)

    def reduced(run):
        return sum(e.bytes for e in run.events if e.name == "all_reduce" and e.rank == 0)

    assert reduced(half) < reduced(plain) / 2


def normalised() -> dict:
    model = nn.Sequential(build(), nn.BatchNorm1d(4).double())
    wrapped = DDP(model)
    train(wrapped, *_me())
    with torch.no_grad():
        wrapped(batches()[0][0])  # the buffers of rank 0 go out before a forward
    return state(model)


def test_buffers_follow_rank_0():
    first, second = World(2).run(normalised).results
    assert not difference(first, second)
    assert int(first["1.num_batches_tracked"]) == 4


class Centred(nn.Module):
    """Takes the mean of the whole batch away, by a collective that is differentiated."""

    def __init__(self, alone: bool):
        super().__init__()
        self.body, self.alone = build(), alone

    def forward(self, x):
        y = self.body(x)
        if self.alone:
            return y - y.mean(0)
        return y - all_reduce(y.mean(0)) / dist.get_world_size()


def centred() -> dict:
    model = Centred(alone=False)
    train(DDP(model), *_me())
    return state(model)


def test_collective_inside_the_model_is_differentiated():
    for got in World(2).run(centred).results:
        assert not difference(got, alone(Centred(alone=True)), tolerance=TOLERANCE)


def zero_optimizer() -> dict:
    model = build()
    wrapped = DDP(model)
    optimizer = ZeroRedundancyOptimizer(
        wrapped.parameters(), torch.optim.AdamW, lr=1e-2, weight_decay=0.1
    )
    train(wrapped, *_me(), optimizer)
    mine = sum(len(group["params"]) for group in optimizer.optim.param_groups)
    return state(model), mine


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_zero_redundancy_optimizer(ranks):
    run = World(ranks).run(zero_optimizer)
    for got, _ in run.results:
        assert not difference(got, alone(), tolerance=TOLERANCE)
    assert sum(mine for _, mine in run.results) == 6
