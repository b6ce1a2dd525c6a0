"""Pipelines executed: equal to the serial model, whatever the schedule and the world."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import cross_entropy, mse_loss

from course import World
from course.costs.topology import uniform
from course.parallel.pipeline import Pipeline
from course.parallel.pipeline_mail import HEADER_BYTES
from course.parallel.pipeline_messages import with_messages, with_messages_naively
from course.parallel.schedule_time import Times, lay_out
from course.parallel.schedules import (
    SCHEDULES,
    WEIGHT_GRADIENT,
    Schedule,
    build,
    gpipe,
    one_f_one_b,
    zb_h1,
    zb_v,
)
from course.worlds import Deadlock, RankError
from course.worlds.sleep_stage import SleepStage
from tests.sameness import difference
from tests.training import TOLERANCE

ROWS, WIDTH, WORDS = 24, 6, 10
each_schedule = pytest.mark.parametrize("name", SCHEDULES)


@pytest.fixture(scope="module")
def two():
    """Two real ranks for all tests of this file."""
    with World(2, on="gloo") as world:
        yield world


@pytest.fixture(scope="module")
def four():
    """Four real ranks."""
    with World(4, on="gloo") as world:
        yield world


# --- Models and data ------------------------------------------------------------------


class Block(nn.Module):
    """A norm and two linear layers on rows that may be sequences."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 9), nn.Linear(9, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def blocks(count: int) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Block() for _ in range(count)).double()


def rows(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step)
    return tuple(torch.randn(ROWS, WIDTH, generator=random).double() for _ in range(2))


class Words(nn.Module):
    """An embedding in front of a block."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.embedding, self.block = nn.Embedding(WORDS, WIDTH).double(), block

    def forward(self, words):
        return self.block(self.embedding(words))


class Head(nn.Module):
    """A block, then a score for each word; words are the last dim but one of scores."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block, self.out = block, nn.Linear(WIDTH, WORDS, bias=False).double()

    def forward(self, x):
        return self.out(self.block(x)).transpose(1, 2)


def language_model(count: int) -> nn.ModuleList:
    """Stages of a model whose first and last one share the embedding's weight."""
    middle = blocks(count)
    stages = [Words(middle[0]), *middle[1:-1], Head(middle[-1])]
    stages[-1].out.weight = stages[0].embedding.weight
    return nn.ModuleList(stages)


def sentences(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step)
    return tuple(torch.randint(WORDS, (ROWS, 3), generator=random) for _ in range(2))


def gradients(module: nn.Module) -> dict:
    return {
        name: None if p.grad is None else p.grad.clone()
        for name, p in module.named_parameters()
    }


def serial(model: nn.ModuleList, loss, batches) -> tuple[list, list[dict]]:
    """(losses, gradients of each stage) in one process; gradients add up over batches."""
    losses = []
    for x, y in batches:
        value = loss(nn.Sequential(*model)(x), y)
        value.backward()
        losses.append(value.detach())
    return losses, [gradients(stage) for stage in model]


# --- One rank -------------------------------------------------------------------------


def mine(schedule: Schedule, model) -> dict[int, nn.Module]:
    rank = dist.get_rank()
    return {s: model[s] for s, owner in enumerate(schedule.owner) if owner == rank}


def trained(schedule: Schedule, steps: int = 1, **options) -> tuple[list, dict]:
    """(losses, gradients by stage) of blocks, on one rank."""
    stages = mine(schedule, blocks(schedule.stages))
    pipeline = Pipeline(stages, schedule, mse_loss, **options)
    losses = [pipeline.step(*rows(step)) for step in range(steps)]
    return losses, {s: gradients(stage) for s, stage in stages.items()}


def orders_blocking(schedule: Schedule, adds=with_messages):
    return trained(schedule, orders=adds(schedule))


def check(results, schedule: Schedule, want: tuple[list, list[dict]]) -> None:
    """All ranks together have the serial model's gradients; the last stage's the loss."""
    losses, by_stage = want
    got = {s: g for _, found in results for s, g in found.items()}
    assert sorted(got) == list(range(schedule.stages))
    for stage, expected in enumerate(by_stage):
        assert not difference(got[stage], expected, tolerance=TOLERANCE), stage
    for rank, (found, _) in enumerate(results):
        has_loss = rank == schedule.owner[-1]
        assert not has_loss or not difference(found, losses, tolerance=TOLERANCE)
        assert has_loss or found == [None] * len(losses)


def check_blocks(results, schedule: Schedule, steps: int = 1) -> None:
    batches = [rows(step) for step in range(steps)]
    check(results, schedule, serial(blocks(schedule.stages), mse_loss, batches))


# --- Equal to one process -------------------------------------------------------------


@pytest.mark.parametrize("ranks, micro_batches, chunks", [(4, 8, 2), (2, 6, 3), (3, 3, 1)])
@each_schedule
def test_gradients_and_loss_are_those_of_the_serial_model(
    name, ranks, micro_batches, chunks
):
    schedule = build(name, ranks, micro_batches, chunks)
    check_blocks(World(ranks).run(trained, schedule).results, schedule)


@some.composite
def schedules(draw) -> Schedule:
    """Any of up to 4 ranks; m divides the rows, and some ask that p divides m."""
    ranks = draw(some.integers(1, 4))
    micro_batches = ranks * draw(some.integers(1, 2))
    name = draw(some.sampled_from(sorted(SCHEDULES)))
    return build(name, ranks, micro_batches, draw(some.integers(1, 3)))


@settings(max_examples=25)
@given(schedules())
def test_any_size_of_any_schedule_equals_the_serial_model(schedule):
    check_blocks(World(schedule.ranks).run(trained, schedule).results, schedule)


@pytest.mark.parametrize("micro_batches", [1, 4])
@each_schedule
def test_one_rank(name, micro_batches):
    schedule = build(name, 1, micro_batches, 2)
    check_blocks(World(1).run(trained, schedule).results, schedule)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("name", ["Naive", "GPipe", "1F1B", "Looped BFS", "ZB-H1", "ZB-V"])
def test_fewer_micro_batches_than_ranks(name, micro_batches):
    schedule = build(name, 4, micro_batches, 2)
    check_blocks(World(4).run(trained, schedule).results, schedule)


@each_schedule
def test_on_two_real_ranks(name, two):
    schedule = build(name, 2, 6, 2)
    check_blocks(two.run(trained, schedule).results, schedule)


@each_schedule
def test_on_four_real_ranks(name, four):
    schedule = build(name, 4, 8, 2)
    check_blocks(four.run(trained, schedule).results, schedule)


def test_gradients_add_up_over_steps():
    schedule = zb_h1(3, 4)
    check_blocks(World(3).run(trained, schedule, 3).results, schedule, steps=3)


def test_modules_may_come_as_a_list():
    def listed(schedule: Schedule):
        stages = mine(schedule, blocks(schedule.stages))
        pipeline = Pipeline(list(stages.values()), schedule, mse_loss)
        return [pipeline.step(*rows())], {s: gradients(m) for s, m in stages.items()}

    schedule = build("Interleaved 1F1B", 2, 4, 2)
    check_blocks(World(2).run(listed, schedule).results, schedule)


def test_all_ranks_may_have_the_loss():
    def shared(schedule: Schedule):
        pipeline = Pipeline(mine(schedule, blocks(3)), schedule, mse_loss)
        return pipeline.step(*rows(), share_loss=True).item()

    (want,), _ = serial(blocks(3), mse_loss, [rows()])
    results = World(3).run(shared, one_f_one_b(3, 4)).results
    assert results == pytest.approx([want.item()] * 3, rel=1e-6)


# --- Beside torch's own ---------------------------------------------------------------


def torchs(kind: type, ranks: int, micro_batches: int) -> tuple[list, dict]:
    rank, model = dist.get_rank(), blocks(ranks)
    stage = PipelineStage(model[rank], rank, ranks, torch.device("cpu"))
    plan = kind(stage, micro_batches, loss_fn=mse_loss)
    x, y = rows()
    losses: list = []
    last = {"target": y, "losses": losses} if rank == ranks - 1 else {}
    plan.step(*((x,) if rank == 0 else ()), **last)
    mean = torch.stack(losses).mean() if losses else None
    return [mean], {rank: gradients(model[rank])}


@pytest.mark.parametrize(
    "ours, theirs", [(gpipe, ScheduleGPipe), (one_f_one_b, Schedule1F1B)]
)
def test_torchs_own_schedules_give_the_same(ours, theirs):
    world = World(4)
    results = world.run(torchs, theirs, 4, 8).results
    losses, got = world.run(trained, ours(4, 8)).results[-1]
    assert not difference(losses, [x.detach() for x in results[-1][0]], tolerance=TOLERANCE)
    for rank, result in enumerate(world.run(trained, ours(4, 8)).results):
        assert not difference(result[1], results[rank][1], tolerance=TOLERANCE)
    assert got


# --- Beside data parallel -------------------------------------------------------------


def rows_and_depth(schedule: Schedule) -> dict:
    """Two pipelines of two ranks, each on one half of the rows; then the mean gradient."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    half, rank = mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()
    stages = {rank: blocks(2)[rank]}
    pipeline = Pipeline(stages, schedule, mse_loss, group=mesh["pp"].get_group())
    x, y = (t.chunk(2)[half] for t in rows())
    loss = pipeline.step(x, y, share_loss=True)
    for parameter in stages[rank].parameters():
        dist.all_reduce(parameter.grad, dist.ReduceOp.SUM, mesh["dp"].get_group())
        parameter.grad /= 2
    return {"loss": loss, rank: gradients(stages[rank])}


@pytest.mark.parametrize("on", ["simulated", "gloo"])
def test_pipelines_beside_one_another(on, four):
    """Ranks of a pipeline are counted in its own group."""
    world = four if on == "gloo" else World(4)
    results = world.run(rows_and_depth, one_f_one_b(2, 3)).results
    _, want = serial(blocks(2), mse_loss, [rows()])
    for rank, found in enumerate(results):
        stage = rank % 2
        assert not difference(found[stage], want[stage], tolerance=TOLERANCE)
    assert results[0]["loss"] == results[1]["loss"] != results[2]["loss"]


# --- Awkward models -------------------------------------------------------------------


def tied(schedule: Schedule, steps: int) -> tuple[list, dict]:
    """Every rank builds its own copy, with a seed of its own for the shared weight."""
    stages = mine(schedule, language_model(schedule.stages))
    last, rank = schedule.stages - 1, dist.get_rank()
    shared = None
    if 0 in stages:
        shared = stages[0].embedding.weight
    if last in stages:
        shared = stages[last].out.weight
        if 0 not in stages:
            nn.init.normal_(shared)  # the first stage's values must win
    pipeline = Pipeline(stages, schedule, cross_entropy, tied=shared)
    losses = [pipeline.step(*sentences(step)) for step in range(steps)]
    assert rank in schedule.owner
    return losses, {s: gradients(stage) for s, stage in stages.items()}


def check_tied(results, schedule: Schedule, steps: int) -> None:
    batches = [sentences(step) for step in range(steps)]
    model = language_model(schedule.stages)
    check(results, schedule, serial(model, cross_entropy, batches))


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", ["GPipe", "1F1B", "Interleaved 1F1B", "ZB-H1"])
def test_an_embedding_shared_by_the_first_and_the_last_stage(name, steps):
    schedule = build(name, 4, 4, 2)
    check_tied(World(4).run(tied, schedule, steps).results, schedule, steps)


@pytest.mark.parametrize("schedule", [zb_v(3, 6), gpipe(1, 2)], ids=["ZB-V", "one rank"])
def test_an_embedding_shared_on_one_rank_needs_no_message(schedule):
    if schedule.stages == 1:
        schedule = build("Looped BFS", 1, 2, 2)
    check_tied(World(schedule.ranks).run(tied, schedule, 2).results, schedule, 2)


@pytest.mark.parametrize("schedule", [one_f_one_b(2, 4), zb_v(2, 4)], ids=lambda s: s.name)
def test_a_shared_embedding_on_real_ranks(schedule, two):
    check_tied(two.run(tied, schedule, 2).results, schedule, 2)


def test_the_shared_gradient_is_exchanged_once_by_its_two_owners():
    run = World(4).run(tied, one_f_one_b(4, 4), 1)
    nbytes = WORDS * WIDTH * 8
    between_ends = [m for m in run.messages if {m.source, m.destination} == {0, 3}]
    # the weight from the first to the last, then a gradient each way
    assert [(m.source, m.bytes) for m in between_ends][:1] == [(0, nbytes)]
    assert sorted((m.source, m.bytes) for m in between_ends[1:]) == [
        (0, nbytes),
        (3, nbytes),
    ]


def frozen(schedule: Schedule, how: str) -> tuple[list, dict]:
    model = blocks(schedule.stages)
    freeze(model, how)
    stages = mine(schedule, model)
    pipeline = Pipeline(stages, schedule, mse_loss)
    loss = pipeline.step(*rows())
    return [loss], {s: gradients(stage) for s, stage in stages.items()}


def freeze(model: nn.ModuleList, how: str) -> None:
    if how == "first stage":
        model[0].requires_grad_(False)
    elif how == "middle stage":
        model[1].requires_grad_(False)
    else:
        for block in model:
            block.up.weight.requires_grad_(False)
            block.down.bias.requires_grad_(False)


@pytest.mark.parametrize("how", ["first stage", "middle stage", "some of each"])
@pytest.mark.parametrize("schedule", [one_f_one_b(3, 4), zb_h1(3, 4)], ids=lambda s: s.name)
def test_frozen_parameters(schedule, how):
    model = blocks(3)
    freeze(model, how)
    results = World(3).run(frozen, schedule, how).results
    check(results, schedule, serial(model, mse_loss, [rows()]))


def in_bf16(schedule: Schedule) -> tuple:
    stages = mine(schedule, blocks(schedule.stages).bfloat16())
    pipeline = Pipeline(stages, schedule, lambda y, t: mse_loss(y.float(), t))
    x, y = rows()
    loss = pipeline.step(x.bfloat16(), y.float())
    return [loss], {s: gradients(stage) for s, stage in stages.items()}


@pytest.mark.parametrize("on", ["simulated", "gloo"])
def test_activations_in_bf16(on, two):
    schedule = zb_h1(2, 1)
    model = blocks(2).bfloat16()
    x, y = rows()
    loss = mse_loss(nn.Sequential(*model)(x.bfloat16()).float(), y.float())
    loss.backward()
    world = two if on == "gloo" else World(2)
    results = world.run(in_bf16, schedule).results
    for stage, (_, found) in enumerate(results):
        assert found[stage]["up.weight"].dtype == torch.bfloat16
        assert not difference(found[stage], gradients(model[stage]), tolerance=1e-2)
    assert results[1][0][0].item() == pytest.approx(loss.item(), rel=1e-5)


def test_a_stage_that_ignores_its_input_sends_a_gradient_of_zeros():
    class Deaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.row = nn.Parameter(torch.ones(WIDTH).double())

        def forward(self, x):
            return self.row.expand(len(x), WIDTH)

    def step(schedule: Schedule):
        stages = mine(schedule, [nn.Linear(WIDTH, WIDTH).double(), Deaf()])
        Pipeline(stages, schedule, mse_loss).step(*rows())
        return [gradients(stage) for stage in stages.values()]

    first, _ = World(2).run(step, one_f_one_b(2, 2)).results
    assert torch.equal(first[0]["weight"], torch.zeros(WIDTH, WIDTH).double())


# --- Messages that block --------------------------------------------------------------


@each_schedule
def test_ordered_messages_may_block(name):
    schedule = build(name, 4, 4, 2)
    check_blocks(World(4).run(orders_blocking, schedule).results, schedule)


def test_messages_where_they_come_to_mind_block_1f1b_for_ever():
    with pytest.raises(Deadlock, match="waits in send to rank"):
        World(3).run(orders_blocking, one_f_one_b(3, 4), with_messages_naively)


@pytest.mark.parametrize("name", ["1F1B", "Interleaved 1F1B", "ZB-V"])
def test_blocking_messages_on_real_ranks(name, four):
    schedule = build(name, 4, 4, 2)
    check_blocks(four.run(orders_blocking, schedule).results, schedule)


# --- Bytes and memory -----------------------------------------------------------------


def sized(schedule: Schedule, with_header: bool, batch: int, sequence: int, width: int):
    """float32 activations [b, s, h]."""
    model = [nn.Linear(width, width) for _ in range(schedule.stages)]
    form = torch.empty(batch // schedule.micro_batches, sequence, width)
    like = {} if with_header else {"like": form}
    pipeline = Pipeline(mine(schedule, model), schedule, mse_loss, **like)
    data = torch.ones(batch, sequence, width)
    pipeline.step(data, data)


@pytest.mark.parametrize("with_header", [False, True])
@pytest.mark.parametrize("name", ["GPipe", "1F1B", "ZB-H1"])
def test_each_boundary_carries_m_activations_and_m_gradients(name, with_header):
    ranks, m, b, s, h = 3, 4, 2, 5, 7
    run = World(ranks).run(sized, build(name, ranks, m), with_header, m * b, s, h)
    each_way = m * b * s * h * 4
    there = each_way + (HEADER_BYTES if with_header else 0)
    neighbours = [(0, 1), (1, 2)]
    expected = dict.fromkeys(neighbours, there)
    expected |= {(b, a): each_way for a, b in neighbours}
    assert run.bytes_per_link == expected


def test_stages_on_one_rank_send_each_other_nothing():
    schedule = zb_v(2, 4)  # stages 1 and 2 are both on rank 1
    run = World(2).run(sized, schedule, False, 4, 5, 7)
    activations = 2 * 4 * 5 * 7 * 4  # stages 0 to 1 and 2 to 3, of 4 micro-batches
    assert run.bytes_per_link == {(0, 1): activations, (1, 0): activations}


DEPTH, HIDDEN, MICRO = 6, 32, 64  # of a stage, and rows of a micro-batch


def deep(schedule: Schedule) -> int:
    """Stages of DEPTH small layers. Returns most micro-batches held."""
    model = [
        nn.Sequential(*[nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh())] * DEPTH)
        for _ in range(schedule.stages)
    ]
    form = torch.empty(MICRO, HIDDEN)
    pipeline = Pipeline(mine(schedule, model), schedule, mse_loss, like=form)
    x = torch.ones(MICRO * schedule.micro_batches, HIDDEN)
    pipeline.step(x, x)
    return pipeline.most_held


def in_flight(schedule: Schedule) -> list[int]:
    """Most forwards of a rank without their backward, counted in its order."""
    most = []
    for order in schedule.orders:
        live, peak = 0, 0
        for action in order:
            live += {"F": 1, WEIGHT_GRADIENT: 0}.get(action.kind, -1)
            peak = max(peak, live)
        most.append(peak)
    return most


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_metered_stash_is_what_the_schedule_has_in_flight(name):
    """Beyond the one micro-batch of the naive schedule, each holds DEPTH outputs of tanh
    and, but on rank 0, where inputs are there anyway, the activation that came. On top
    come two messages at most: one on its way in, one on its way out."""
    ranks, m = 4, 12
    world, schedule = World(ranks, memory=True), build(name, ranks, m)
    naive, run = world.run(deep, build("Naive", ranks, m)), world.run(deep, schedule)
    assert run.results == in_flight(schedule) and naive.results == [1] * ranks
    for rank, held in enumerate(run.results):
        more = (run.peak_bytes[rank] - naive.peak_bytes[rank]) / (MICRO * HIDDEN * 4)
        over = more - (held - 1) * (DEPTH + (rank > 0))
        assert -1 <= over <= 2, (rank, over)


def at_full_size(schedule: Schedule, width: int) -> int:
    model = [nn.Linear(width, width) for _ in range(schedule.stages)]
    form = torch.empty(1, 2048, width, dtype=torch.float32)
    pipeline = Pipeline(mine(schedule, model), schedule, mse_loss, like=form)
    x = torch.empty(schedule.micro_batches, 2048, width)
    pipeline.step(x, x)
    return pipeline.most_held


@pytest.mark.parametrize("name", ["1F1B", "ZB-H1"])
def test_tensors_without_values_go_through_the_same_code(name):
    """A matmul and its two gradients on an H100: a backward takes two forwards.

    Of the first micro-batch: later ones also add to the gradients that are there.
    """
    world = World(4, tensors="fake", compute="roofline", memory=True)
    schedule = build(name, 4, 8)
    run = world.run(at_full_size, schedule, 8192)
    assert run.results == in_flight(schedule)
    assert run.bytes_per_link[0, 1] == 8 * 2048 * 8192 * 4
    spans = {s.name: s.seconds for s in run.spans}
    halves = spans["I0@1"] + spans["W0@1"] if name == "ZB-H1" else spans["B0@1"]
    assert halves == pytest.approx(2 * spans["F0@1"], rel=0.05)


# --- Time -----------------------------------------------------------------------------

INSTANT = {"latency_s": 0.0, "bytes_per_s": 1e30}


def asleep(schedule: Schedule, times: tuple, steps: int = 1):
    stages = [SleepStage(*times) for s in schedule.owner if s == dist.get_rank()]
    pipeline = Pipeline(stages, schedule, mse_loss, like=torch.ones(1, 2))
    data = torch.ones(schedule.micro_batches, 2)
    for _ in range(steps):
        pipeline.step(data, data)


@pytest.mark.parametrize("ranks, m", [(1, 3), (2, 1), (4, 12), (5, 3)])
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_simulated_time_is_the_closed_form(name, ranks, m):
    forward_s, backward_s = 1.0, 2.5
    world = World(ranks, cluster=uniform(ranks, **INSTANT))
    run = world.run(asleep, build(name, ranks, m), (forward_s, 2.0, 0.5))
    assert run.seconds == pytest.approx((m + ranks - 1) * (forward_s + backward_s))


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 0.75, 0.5)])
@each_schedule
def test_spans_are_where_the_laid_out_schedule_has_them(name, times):
    """Each action of each rank, to its start and its end."""
    schedule = build(name, 4, 8, 2)
    run = World(4, cluster=uniform(4, **INSTANT)).run(asleep, schedule, times)
    laid_out = lay_out(schedule, Times(*times))
    for rank, order in enumerate(schedule.orders):
        spans = [s for s in run.spans if s.rank == rank and "@" in s.name]
        assert [s.name for s in spans] == [str(action) for action in order]
        assert [s.start_s for s in spans] == pytest.approx(list(laid_out.start_s[rank]))
        assert [s.end_s for s in spans] == pytest.approx(list(laid_out.end_s[rank]))


halves_s = some.integers(1, 8).map(lambda n: n / 4)


@settings(max_examples=20)
@given(schedules(), some.tuples(halves_s, halves_s, halves_s))
def test_simulated_time_is_that_of_the_laid_out_schedule(schedule, times):
    ranks = schedule.ranks
    run = World(ranks, cluster=uniform(ranks, **INSTANT)).run(asleep, schedule, times)
    assert run.seconds == pytest.approx(lay_out(schedule, Times(*times)).makespan_s)


@pytest.mark.parametrize("name", ["GPipe", "ZB-H1"])
def test_latency_that_nothing_hides_costs_what_the_laid_out_schedule_says(name):
    schedule = build(name, 4, 12)
    cluster = uniform(4, latency_s=0.25, bytes_per_s=1e30)
    run = World(4, cluster=cluster).run(asleep, schedule, (1.0, 1.0, 1.0))
    laid_out = lay_out(schedule, Times(1.0, 1.0, 1.0, message_s=0.25))
    assert run.seconds == pytest.approx(laid_out.makespan_s)


def test_real_ranks_sleep_in_the_order_of_the_schedule(two):
    schedule = one_f_one_b(2, 3)
    run = two.run(asleep, schedule, (0.02, 0.02, 0.02), record=True)
    ends = {span.name: span.end_s for span in run.spans}
    starts = {span.name: span.start_s for span in run.spans}
    for rank, order in enumerate(schedule.orders):
        spans = [s for s in run.spans if s.rank == rank and "@" in s.name]
        assert [s.name for s in spans] == [str(action) for action in order]
        assert all(s.seconds >= (0.02 if s.name[0] == "F" else 0.04) for s in spans)
    for i in range(3):  # nothing before what it needs, on one clock
        assert ends[f"F{i}@0"] <= starts[f"F{i}@1"]
        assert ends[f"B{i}@1"] <= starts[f"B{i}@0"]


# --- Faults ---------------------------------------------------------------------------


def failing(schedule: Schedule, change: str) -> None:
    rank, model = dist.get_rank(), blocks(schedule.stages)
    stages = mine(schedule, model)
    x, y = rows()
    if change == "raises" and rank == 1:
        stages[1].register_forward_hook(lambda *_: 1 / 0)
    if change == "two tensors" and rank == 1:
        stages[1].register_forward_hook(lambda module, args, out: (out, out))
    if change == "stage missing" and rank == 2:
        stages = {}
    if change == "stage of another" and rank == 2:
        stages = {1: model[1]}
    if change == "too long a list" and rank == 0:
        stages = [model[0], model[1]]
    if change == "tied in the middle" and rank == 1:
        pipeline = Pipeline(stages, schedule, mse_loss, tied=model[1].up.weight)
    else:
        pipeline = Pipeline(stages, schedule, mse_loss)
    if change == "rows" and rank == 0:
        x = x[:-1]
    if change == "no rows" and rank == 0:
        x = x[:0]
    if change == "targets" and rank == 2:
        y = y[:-2]
    if change == "no inputs":
        x = None
    if change == "no targets":
        y = None
    pipeline.step(x, y)
    if change == "half as many rows":
        pipeline.step(x[:12], y[:12])


FAULTS = {
    "raises": (1, "ZeroDivisionError: division by zero"),
    "two tensors": (1, "stage 1 must give one tensor, not a tuple"),
    "stage missing": (2, r"stages must be those of rank 2, \[2\], not \[\]"),
    "stage of another": (2, r"stages must be those of rank 2, \[2\], not \[1\]"),
    "too long a list": (0, r"stages must be 1 modules, for stages \[0\] of rank 0, not 2"),
    "tied in the middle": (1, "tied must be a parameter of the first or last stage"),
    "rows": (0, "inputs must have rows for 4 micro-batches of one size, not 23 rows"),
    "no rows": (0, "inputs must have rows for 4 micro-batches of one size, not 0 rows"),
    "targets": (2, "targets must have rows for 4 micro-batches of one size, not 22 rows"),
    "no inputs": (0, "inputs must be given on rank 0, of stage 0"),
    "no targets": (2, "targets must be given on rank 2, of stage 2"),
    "half as many rows": (0, r"stage 0 must give .* of shape \[6, 6\] each time, not"),
}


@pytest.mark.parametrize("change", FAULTS)
def test_a_fault_names_the_rank_and_the_rule(change):
    rank, words = FAULTS[change]
    with pytest.raises(RankError, match=words) as caught:
        World(3).run(failing, one_f_one_b(3, 4), change)
    assert caught.value.rank == rank


def test_a_fault_on_real_ranks_names_the_rank(four):
    with pytest.raises(RankError, match="division by zero") as caught:
        four.run(failing, one_f_one_b(4, 4), "raises")
    assert caught.value.rank == 1


def test_a_schedule_for_another_number_of_ranks_is_refused():
    def wrong():
        Pipeline([nn.Identity()], gpipe(4, 2), mse_loss)

    with pytest.raises(RankError, match="schedule must be for 2 ranks.*not for 4"):
        World(2).run(wrong)


def test_a_step_works_after_one_that_failed():
    def twice(schedule: Schedule):
        stages = mine(schedule, blocks(1))
        pipeline = Pipeline(stages, schedule, mse_loss)
        with pytest.raises(ValueError, match="inputs must have rows"):
            pipeline.step(rows()[0][:-1], rows()[1])
        return [pipeline.step(*rows())], {0: gradients(stages[0])}

    check_blocks(World(1).run(twice, gpipe(1, 4)).results, gpipe(1, 4))
