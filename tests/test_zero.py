"""ZeRO by hand: equal to AdamW in one process, and its bytes and memory as computed."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from course import World
from course.costs.recipes import FP32_ADAM
from course.costs.zero import state_bytes_per_rank
from course.parallel.zero import Zero1, Zero2, Zero3
from course.parallel.zero_units import buckets, owned
from course.worlds import RankError
from course.worlds.overlap import busy
from tests.sameness import difference
from tests.training import TOLERANCE, batches, share

STEPS, WIDTH = 10, 13  # 13: parameters that 2, 3 and 4 ranks do not divide
ADAMW = {"lr": 1e-2, "weight_decay": 0.1}
FP32 = 4
each_stage = pytest.mark.parametrize("stage", [1, 2, 3])


# --- Models ---------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks between two layers that are in no block. tricks: "tied", "frozen", ..."""

    def __init__(self, *tricks: str):
        super().__init__()
        self.tricks = tricks
        self.first, self.last = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.register_buffer("scale", torch.rand(()) + 0.5)
        if "tied" in tricks:
            self.blocks[2].up.weight = self.blocks[0].up.weight
            self.again = nn.Linear(6, WIDTH, bias=False)
            self.again.weight = self.first.weight
        if "frozen" in tricks:
            self.blocks[0].requires_grad_(False)
            self.blocks[1].norm.requires_grad_(False)
            self.blocks[1].down.weight.requires_grad_(False)
            self.first.bias.requires_grad_(False)
        if "unused" in tricks:
            self.blocks.append(Block())
        self.double()

    def forward(self, x):
        h = self.first(x) + (self.again(x) if "tied" in self.tricks else 0)
        for _ in range(2 if "twice" in self.tricks else 1):
            for block in self.blocks[:3]:
                if "checkpoint" in self.tricks:
                    h = checkpoint(block, h, use_reentrant=False)
                else:
                    h = block(h)
        return self.last(h) * self.scale


def build(seed: int, *tricks: str) -> Net:
    torch.manual_seed(seed)
    return Net(*tricks)


def zero_for(stage: int, model: Net, **options):
    """The stage, with buckets of a few tensors, so that there are many."""
    if stage == 3:
        return Zero3(model, model.blocks, **ADAMW, **options)
    options = {"bucket_bytes": 1000} | options
    return {1: Zero1, 2: Zero2}[stage](model, **ADAMW, **options)


def copies(tensors) -> list[torch.Tensor]:
    return [t.detach().clone() for t in tensors]


def whole(zero, model: nn.Module) -> list[torch.Tensor]:
    shown = zero.gathered() if isinstance(zero, Zero3) else contextlib.nullcontext()
    with shown:
        return copies((*model.parameters(), *model.buffers()))


# --- Equal to one process -------------------------------------------------------------


def alone(*tricks: str, max_norm: float | None = None) -> tuple:
    """(norms, parameters and buffers) after training with torch.optim.AdamW."""
    model = build(0, *tricks)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    norms = []
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        if max_norm:
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            norms.append(norm.clone())
        optimizer.step()
    return norms, copies((*model.parameters(), *model.buffers()))


def in_shards(stage: int, *tricks: str, max_norm: float | None = None, **options) -> tuple:
    """The same with ZeRO: each rank has its own seed, and its own rows."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build(rank, *tricks)
    zero = zero_for(stage, model, **options)
    norms = []
    for x, y in batches(STEPS):
        mse_loss(model(share(x, rank, ranks)), share(y, rank, ranks)).backward()
        norms.append(zero.step(max_norm))
    return (norms if max_norm else []), whole(zero, model)


def assert_all_equal(results, want) -> None:
    for got in results:
        assert not difference(got, want, tolerance=TOLERANCE)


@each_stage
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ten_steps_equal_adamw_in_one_process(stage, ranks):
    assert_all_equal(World(ranks).run(in_shards, stage).results, alone())


@each_stage
@pytest.mark.parametrize("trick", ["tied", "frozen", "twice", "checkpoint"])
def test_awkward_models(stage, trick):
    assert_all_equal(World(3).run(in_shards, stage, trick).results, alone(trick))


def test_all_at_once_on_gloo():
    tricks = ("tied", "frozen")
    with World(3, on="gloo") as world:
        for stage in (1, 2, 3):
            results = world.run(in_shards, stage, *tricks).results
            assert_all_equal(results, alone(*tricks))


@each_stage
def test_a_unit_without_gradients_is_left_alone(stage):
    """As torch leaves alone a parameter without one: no decay, no step."""

    def unused():
        one_each = {} if stage == 3 else {"bucket_bytes": 1}
        return in_shards(stage, "unused", **one_each)

    assert_all_equal(World(2).run(unused).results, alone("unused"))


def test_without_prefetch():
    def late():
        return in_shards(3, prefetch=False)

    assert_all_equal(World(2).run(late).results, alone())


def clipped(stage: int) -> tuple:
    return in_shards(stage, "tied", "frozen", max_norm=0.1)


@each_stage
def test_clipping_is_by_the_norm_over_all_ranks(stage):
    want = alone("tied", "frozen", max_norm=0.1)
    assert max(want[0]) > 0.1  # it has something to do
    assert_all_equal(World(3).run(clipped, stage).results, want)


@each_stage
def test_max_norm_must_be_positive(stage):
    def wrong():
        return in_shards(stage, max_norm=-1.0)

    with pytest.raises(RankError, match="max_norm must be more than 0, not -1.0"):
        World(2).run(wrong)


# --- Micro-batches --------------------------------------------------------------------


def accumulating(stage: int, sync: str, *tricks: str) -> tuple:
    """Three micro-batches a step. sync: which of them reduce gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build(rank, *tricks)
    zero = zero_for(stage, model)
    for x, y in batches(STEPS):
        parts = [share(t, rank, ranks).chunk(3) for t in (x, y)]
        for k, (x_k, y_k) in enumerate(zip(*parts, strict=True)):
            quiet = sync == "none" or (sync == "last" and k < 2)
            with zero.no_sync() if quiet else contextlib.nullcontext():
                (mse_loss(model(x_k), y_k) / 3).backward()
        zero.step()
    return [], whole(zero, model)


@each_stage
@pytest.mark.parametrize("sync", ["each", "last", "none"])
def test_accumulated_gradients_equal_the_whole_batch(stage, sync):
    results = World(2).run(accumulating, stage, sync, "tied").results
    assert_all_equal(results, alone("tied"))


# --- Bytes ----------------------------------------------------------------------------


def mlp(width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(depth)])


def train_mlp(stage: int, steps: int, micro: int = 1, width: int = 24, depth: int = 4):
    """float32, a block and a bucket for each layer, no root."""
    model = mlp(width, depth)
    if stage == 3:
        zero = Zero3(model, model)
    else:
        zero = {1: Zero1, 2: Zero2}[stage](model, bucket_bytes=FP32 * width**2)
    for _ in range(steps):
        for k in range(micro):
            with zero.no_sync() if k < micro - 1 else contextlib.nullcontext():
                model(torch.ones(1, width)).sum().backward()
        zero.step()


def bytes_of_a_step(ranks: int, stage: int, micro: int) -> list[int]:
    two, three = (World(ranks).run(train_mlp, stage, k, micro).bytes_sent for k in (2, 3))
    return [after - before for before, after in zip(two, three, strict=True)]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize(("stage", "times"), [(1, 2), (2, 2), (3, 3)])
def test_bytes_of_a_step(ranks, stage, times, micro):
    """2P, 2P, 3P; with m micro-batches still 2P, 2P, and m * 2P + P for stage 3."""
    if stage == 3:
        times = 2 * micro + 1
    nbytes = FP32 * 4 * 24**2
    sent = times * nbytes * (ranks - 1) // ranks
    assert bytes_of_a_step(ranks, stage, micro) == [sent] * ranks


# --- Memory ---------------------------------------------------------------------------


def train_deep(stage: int, width: int, depth: int) -> None:
    train_mlp(stage, 3, 1, width, depth)


def more_memory(stage: int, ranks: int, width: int = 24, depth: int = 12) -> int:
    """By how much the peak grows with twice as many layers."""
    world = World(ranks, memory=True)
    peaks = [
        world.run(train_deep, stage, width, d).peak_bytes[0] for d in (depth, 2 * depth)
    ]
    return peaks[1] - peaks[0]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("stage", "kept", "divided"), [(1, 8, 8), (2, 4, 12), (3, 0, 16)])
def test_a_layer_more_costs_what_the_arithmetic_says(stage, kept, divided, ranks):
    """8 + 8/N, 4 + 12/N and 16/N bytes a parameter, all in fp32, to the byte."""
    width, depth = 24, 12
    states = (kept + divided // ranks) * width**2
    counter = FP32  # AdamW counts the steps of each shard
    assert more_memory(stage, ranks, width, depth) == depth * (states + counter)


def at_peak(stage: int, ranks: int, width: int = 24, depth: int = 12) -> dict[str, int]:
    run = World(ranks, memory=True).run(train_deep, stage, width, depth)
    assert len(set(run.peak_bytes)) == 1
    return run.peak_kinds[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_the_peak_is_made_of(ranks):
    """Each kind whole or divided by the ranks, and a few layers that are on their way."""
    layer, depth = FP32 * 24**2, 12
    model, shards = layer * depth, layer * depth // ranks
    one, two, three = (at_peak(stage, ranks) for stage in (1, 2, 3))
    for kinds in (one, two, three):
        assert kinds["optimizer state"] == 2 * shards + FP32 * depth
    assert one["parameters"] == two["parameters"] == model
    assert three["parameters"] == shards
    assert "gathered parameters" not in one | two
    assert 0 < three["gathered parameters"] <= 2 * layer
    assert model <= one["gradients"] <= model + layer
    for kinds in (two, three):
        moving = kinds["gradients"] + kinds.get("communication", 0) + kinds.get("other", 0)
        assert shards <= moving <= shards + 4 * layer


def test_between_steps_stage_3_holds_its_shards_only():
    run = World(4, memory=True).run(held_after_backward)
    layers = 6 * 24**2 * FP32 // 4
    assert run.results == [[0] * 6] * 4
    assert max(size for _, size in run.memory_curve[0][-1:]) <= 16 * layers


def held_after_backward() -> list[int]:
    """Elements of each parameter, as anybody sees it who looks at the wrong time."""
    model = mlp(24, 6)
    Zero3(model, model)
    model(torch.ones(1, 24)).sum().backward()
    return [p.numel() for p in model.parameters()]


def build_and_train(make, depth: int) -> None:
    model = mlp(24, depth)
    finish = make(model)
    for _ in range(3):
        model(torch.ones(1, 24)).sum().backward()
        finish()


def theirs(model: nn.Sequential):
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    return lambda: (optimizer.step(), optimizer.zero_grad())


@pytest.mark.parametrize("depth", [1, 4, 12])
def test_stage_3_peaks_no_higher_than_fully_shard(depth):
    world = World(4, memory=True)
    ours = world.run(build_and_train, lambda model: Zero3(model, model).step, depth)
    torchs = world.run(build_and_train, theirs, depth)
    assert ours.peak_bytes[0] <= 1.05 * torchs.peak_bytes[0]
    assert ours.bytes_sent[3] > 0


# --- Models that do not fit -----------------------------------------------------------


@each_stage
def test_a_billion_parameters_with_fake_tensors_on_one_mirrored_rank(stage):
    width, depth, ranks = 8192, 16, 4
    world = World(ranks, memory=True, tensors="fake", mirror=True, compute="roofline")
    run = world.run(train_deep, stage, width, depth)
    states = state_bytes_per_rank(FP32_ADAM, depth * width**2, ranks, stage)
    assert states < run.peak_bytes[0] < states + 4.1 * FP32 * width**2  # four layers more
    assert run.bytes_sent[-1] > 0


@each_stage
def test_one_mirrored_rank_tells_what_all_ranks_tell(stage):
    every = World(4, memory=True, compute="roofline").run(train_deep, stage, 24, 4)
    mirror = World(4, memory=True, compute="roofline", tensors="fake", mirror=True)
    mirrored = mirror.run(train_deep, stage, 24, 4)
    assert mirrored.bytes_sent[0] == every.bytes_sent[0]
    assert mirrored.peak_bytes[0] == every.peak_bytes[0]
    assert mirrored.seconds == pytest.approx(every.seconds, rel=1e-3)


def test_prefetch_hides_gathers_behind_compute():
    world = World(4, tensors="fake", mirror=True, compute="roofline")
    early, late = (world.run(train_prefetched, on) for on in (True, False))
    assert early.bytes_sent == late.bytes_sent
    assert busy(early)[0]["exposed_s"] < 0.7 * busy(late)[0]["exposed_s"]


def train_prefetched(prefetch: bool) -> None:
    model = mlp(2048, 8)
    zero = Zero3(model, model, prefetch=prefetch)
    for _ in range(2):
        model(torch.ones(8192, 2048)).sum().backward()
        zero.step()


# --- Which parameters go together -----------------------------------------------------


def test_buckets_are_in_the_order_of_backward_and_close_when_full():
    sizes = [30, 10, 10, 25, 5]
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    found = buckets(parameters, 20 * FP32)
    assert [[p.numel() for p in bucket] for bucket in found] == [[5, 25], [10, 10], [30]]


def test_a_bucket_has_one_dtype():
    parameters = [nn.Parameter(torch.zeros(4, dtype=d)) for d in (torch.half, torch.float)]
    assert len(buckets(parameters, 1000)) == 2


def test_the_root_owns_what_is_in_no_block_or_in_several():
    model = build(0, "tied")
    root, *parts = owned(model, list(model.blocks))
    shared = model.blocks[0].up.weight
    want = [*model.first.parameters(), *model.last.parameters(), shared]
    assert {id(p) for p in root} == {id(p) for p in want}
    assert sum(map(len, parts)) == len(list(model.parameters())) - len(want)


def test_blocks_must_be_of_the_model_and_apart():
    model = build(0)
    with pytest.raises(ValueError, match=r"blocks\[0\] must be a module of the model"):
        owned(model, [nn.Linear(2, 2)])
    with pytest.raises(ValueError, match=r"blocks\[0\] must not be inside another"):
        owned(model, [model.blocks[0].up, model.blocks[0]])
