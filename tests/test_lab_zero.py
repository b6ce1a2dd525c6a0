"""Lab 03: six ways to train one model, their meters, and the program torchrun starts."""

import gc
import re
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from course import World
from course.checks import check, exercises
from course.checks.zero_answers import which_stage as told_by_parts
from course.costs.recipes import FP32_ADAM
from course.costs.zero import state_bytes_per_rank, step_volume
from course.costs.zero_step import zero_step
from course.facts_models import LLAMA2_7B, gpt
from course.figures.training import loss_curves
from course.figures.zero import metered_peaks
from course.parallel.gpt import SmallGpt, next_token_loss, token_batches
from course.parallel.zero_versions import STAGE, WAYS, begin_training, train_gpt
from course.worlds.live_memory import live_memory
from course.worlds.run import RankError
from course.worlds.step_meter import meter_steps, time_steps
from labs.zero import TOLERANCE, loss_lines, predicted
from tests.lab_page import ROOT

SHAPE = gpt("tiny", 2, 32, 2, vocab=64, sequence=16)
BATCH, STEPS = 8, 3
PARALLEL = [way for way in WAYS if way != "alone"]
each_way = pytest.mark.parametrize("way", PARALLEL)


# --- The model and its data -----------------------------------------------------------


@pytest.mark.parametrize("shape", [SHAPE, gpt("odd", 3, 20, 4, vocab=51, sequence=7)])
def test_the_model_has_the_parameters_that_its_shape_says(shape):
    model = SmallGpt(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    tokens = next(token_batches(shape, 3))
    assert tokens.shape == (3, shape.sequence + 1) and tokens.max() < shape.vocab
    assert model(tokens[:, :-1]).shape == (3, shape.sequence, shape.vocab)


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="shape must be one of facts_models.gpt, not Llam"):
        SmallGpt(LLAMA2_7B)


def test_a_token_does_not_see_the_next():
    torch.manual_seed(0)
    model, tokens = SmallGpt(SHAPE), next(token_batches(SHAPE, 2))[:, :-1]
    changed = tokens.clone()
    changed[:, 9:] = 0
    same = model(tokens) == model(changed)
    assert same[:, :9].all() and not same[:, 9:].all()


def learned(steps: int) -> list[float]:
    torch.manual_seed(0)
    model, batches = SmallGpt(SHAPE), token_batches(SHAPE, BATCH)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        losses.append(next_token_loss(model, next(batches)))
        losses[-1].backward()
        adamw.step()
        adamw.zero_grad()
    return [loss.item() for loss in losses]


def test_the_text_can_be_learned():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is slower on more
    first, *_, last = learned(20)
    torch.set_num_threads(threads)
    assert last < 0.8 * first


# --- Equal losses, and what each way holds and sends ----------------------------------


def losses_of(world, way):
    return world.run(train_gpt, way, SHAPE, BATCH, STEPS).results


@pytest.mark.parametrize("ranks", [1, 2, 4])
@each_way
def test_losses_equal_those_of_one_process(way, ranks):
    (alone,) = losses_of(World(1), "alone")
    for losses in losses_of(World(ranks), way):
        assert losses == pytest.approx(alone, rel=TOLERANCE / 10)
    assert alone[0] != alone[-1]


def test_each_batch_counts():
    """A rank that trained on another's part would have other losses."""
    (alone,) = losses_of(World(1), "alone")
    (half,) = World(1).run(train_gpt, "alone", SHAPE, BATCH // 2, STEPS).results
    assert half != pytest.approx(alone, rel=TOLERANCE)


def test_a_way_or_batch_that_cannot_be_is_named():
    with pytest.raises(RankError, match="way must be one of .*'ZeRO-1'"):
        World(2).run(train_gpt, "zero", SHAPE, BATCH, 1)
    with pytest.raises(RankError, match=r"the ranks \(3\) must divide batch, not 8"):
        World(3).run(train_gpt, "DDP", SHAPE, BATCH, 1)


def every_cost():
    return {
        way: meter_steps(begin_training, way, SHAPE, BATCH, steps=STEPS) for way in WAYS
    }


@pytest.fixture(scope="module")
def on_gloo():
    """{way: StepCost} of every rank."""
    with World(4, on="gloo") as world:
        return world.run(every_cost).results


@each_way
def test_real_ranks_lose_what_one_process_loses(on_gloo, way):
    alone = on_gloo[0]["alone"].losses
    for costs in on_gloo:
        assert costs[way].losses == pytest.approx(alone, rel=TOLERANCE / 10)


@each_way
def test_real_ranks_send_what_the_arithmetic_says(on_gloo, way):
    said = predicted(way, SHAPE, 4, BATCH // 4).sent
    assert all(costs[way].sent_bytes == pytest.approx(said, rel=2e-3) for costs in on_gloo)


@pytest.mark.parametrize("way", WAYS)
def test_real_ranks_hold_what_the_arithmetic_says(on_gloo, way):
    """Between steps: model states, padding, and AdamW's counters of steps."""
    said = predicted(way, SHAPE, 4, BATCH // 4).held
    for costs in on_gloo:
        assert 0 <= costs[way].held_bytes - said < 0.01 * said + 600


@pytest.mark.parametrize("way", ["DDP", "ZeRO-1", "ZeRO-3"])
def test_real_ranks_peak_where_simulated_ones_do(on_gloo, way):
    """Or a shard higher, where a transfer lets go of its tensors a moment later."""
    run = World(4, memory=True).run(train_gpt, way, SHAPE, BATCH, STEPS)
    peaks = [costs[way].peak_bytes for costs in on_gloo]
    assert max(peaks) == pytest.approx(run.peak_bytes[0], rel=0.1)
    kinds = on_gloo[0][way].peak_kinds
    assert sum(kinds.values()) == peaks[0]
    for kind in ("parameters", "optimizer state"):
        assert kinds[kind] == run.peak_kinds[0][kind]


def test_more_sharding_holds_less(on_gloo):
    held = {way: cost.held_bytes for way, cost in on_gloo[0].items()}
    peak = {way: cost.peak_bytes for way, cost in on_gloo[0].items()}
    assert held["DDP"] > held["ZeRO-1"] == held["ZeRO-2"] > held["ZeRO-3"]
    assert peak["DDP"] > peak["ZeRO-1"] >= peak["ZeRO-2"] > peak["ZeRO-3"]


# --- The prediction -------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_is_made_of_states_and_volumes(stage):
    step = zero_step(LLAMA2_7B, stage, 8, 1, gradients_stay=True)
    states = state_bytes_per_rank(FP32_ADAM, LLAMA2_7B.parameters, 8, stage)
    assert step.held == pytest.approx(states)
    layers = sum(LLAMA2_7B.units[1:-1])
    root = LLAMA2_7B.parameters - layers
    volume = 4 * 7 / 8 * (step_volume(stage, 8) * layers + 2 * root)
    assert step.sent == pytest.approx(volume)
    assert step.peak > step.held
    freed = zero_step(LLAMA2_7B, stage, 8, 1)
    gradients = 4 * LLAMA2_7B.parameters / (8 if stage >= 2 else 1)
    assert step.held - freed.held == pytest.approx(gradients)


# --- The meters -----------------------------------------------------------------------


def test_live_memory_sees_what_comes_grows_and_goes():
    kept = torch.zeros(10)
    with live_memory() as live:
        a = torch.zeros(100)
        b = a[:50]
        c = a + 1
        assert live.now() == 800
        del a, c
        assert live.now() == 400
        b.untyped_storage().resize_(0)
        assert (live.now(), live.peak()) == (0, 800)
    assert len(kept) == 10


def test_live_memory_waits_for_a_thread_that_still_lets_go():
    """As a gloo thread does with the buffers of the last collective, after wait()."""
    with live_memory() as live:
        passed_on = [torch.zeros(100)]
        thread = threading.Timer(0.05, passed_on.clear)
        thread.start()
        assert live.now() == 0
    thread.join()


def test_live_memory_knows_what_tensors_are_for():
    with live_memory() as live:
        model = nn.Linear(30, 30, bias=False)
        adamw = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 30)).sum().backward()
        adamw.step()
    kinds = live.peak_kinds()
    assert kinds["parameters"] == kinds["gradients"] == 3600
    assert kinds["optimizer state"] == 2 * 3600 + 4
    after = live.peak()
    torch.zeros(10_000)
    gc.collect()
    assert live.peak() == after


def test_meter_steps_needs_a_step():
    with pytest.raises(ValueError, match="steps must be 1 or more, not 0"):
        meter_steps(begin_training, "DDP", SHAPE, BATCH, steps=0)


def timed():
    counts = {"once": 0, "twice": 0}

    def step(name):
        counts[name] += 1

    steps = {name: lambda name=name: step(name) for name in counts}
    return time_steps(steps, repeats=3), counts


def test_time_steps_lets_all_take_their_turn():
    seconds, counts = World(2).run(timed).results[0]
    assert counts == {"once": 5, "twice": 5} and list(seconds) == ["once", "twice"]


# --- Pictures -------------------------------------------------------------------------


def test_loss_curves_are_one_line_and_marks_of_growing_size():
    figure = loss_curves({"alone": [3.0, 2.0], "DDP": [3.0, 2.0], "ZeRO-1": [3.0, 2.5]})
    line, first, second = figure.data
    assert line.mode == "lines" and first.mode == second.mode == "markers"
    assert second.marker.size > first.marker.size
    assert tuple(second.y) == (3.0, 2.5) and tuple(line.x) == (1, 2)
    assert figure.layout.xaxis.title.text == "step"


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({}, "losses must hold 1 to 8 runs"),
        ({str(n): [1.0] for n in range(9)}, "losses must hold 1 to 8 runs"),
        ({"a": [1.0], "b": [1.0, 2.0]}, "equally many steps"),
    ],
)
def test_losses_that_cannot_be_drawn_are_refused(losses, words):
    with pytest.raises(ValueError, match=words):
        loss_curves(losses)


def test_peaks_may_be_drawn_in_megabytes():
    rows = {"DDP": {"parameters": 3e6, "other": 1e6}}
    figure = metered_peaks(rows, {"DDP": 5e6}, mark="predicted", unit="MB")
    assert [trace.x for trace in figure.data] == [(3.0,), (1.0,), (5.0,)]
    assert figure.data[-1].name == "predicted" and "(MB)" in figure.layout.xaxis.title.text
    assert "3 MB" in figure.data[0].hovertext[0]
    with pytest.raises(ValueError, match="unit must be one of"):
        metered_peaks(rows, {"DDP": 5e6}, unit="GiB")


# --- Which stage ----------------------------------------------------------------------


def stub(parameters, ranks, held):
    raise NotImplementedError


def by_the_total(parameters, ranks, held):
    """As if nothing but model states were there, to the byte."""
    n, total = ranks, sum(held.values()) / parameters
    return min(range(4), key=lambda s: abs((16, 8 + 8 / n, 4 + 12 / n, 16 / n)[s] - total))


def to_the_byte(parameters, ranks, held):
    if held["optimizer state"] == 8 * parameters:
        return 0
    return told_by_parts(parameters, ranks, held | {"optimizer state": 0})


def gathered_are_parameters(parameters, ranks, held):
    held["parameters"] += held.get("gathered parameters", 0)
    return told_by_parts(parameters, ranks, held)


def gradients_are_a_shard(parameters, ranks, held):
    if held["gradients"] > 1.01 * 4 * parameters / ranks:
        return 0 if held["optimizer state"] >= 8 * parameters else 1
    return told_by_parts(parameters, ranks, held)


def never_plain(parameters, ranks, held):
    return max(1, told_by_parts(parameters, ranks, held))


def in_words(parameters, ranks, held):
    return "ZeRO-" + str(told_by_parts(parameters, ranks, held))


def test_a_stage_told_by_its_parts_is_right():
    assert exercises("lab 03") == ("which stage",)
    assert check("which stage", told_by_parts).kind == "right"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (stub, "not attempted", "not attempted"),
        (lambda *_: None, "wrong shape", "None was returned, should be one of"),
        (in_words, "wrong shape", "'ZeRO-0' was returned"),
        (by_the_total, "wrong values", "wrong values: stage"),
        (to_the_byte, "wrong values", "stage 1, but the optimizer state is whole"),
        (gathered_are_parameters, "wrong values", "gathered ones are extra"),
        (gradients_are_a_shard, "wrong values", "but for the unit that is on its way"),
        (never_plain, "wrong values", "stage 1, but the optimizer state is whole"),
        (lambda p, n, held: held["grads"], "raised", "raised KeyError"),
    ],
)
def test_a_stage_told_wrong_is_told_why(answer, kind, words):
    verdict = check("which stage", answer)
    assert (verdict.kind, verdict.passed) == (kind, False)
    assert words in verdict.text and "course/checks" not in verdict.text


@pytest.mark.parametrize(("way", "stage"), [("ZeRO-1", 1), ("ZeRO-3", 3), ("DDP", 0)])
def test_the_cases_are_like_what_ranks_hold(way, stage):
    """The answer that passes also reads a metered peak, where it is at backward's end."""
    kinds = World(4, memory=True).run(train_gpt, way, SHAPE, BATCH, STEPS).peak_kinds[0]
    assert told_by_parts(SHAPE.parameters, 4, dict(kinds)) == stage


# --- The same lab under torchrun ------------------------------------------------------


def test_torchrun_prints_the_report_once():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    sizes = ["--layers", "2", "--hidden", "64", "--steps", "2", "--repeats", "2"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", "labs/zero.py", *sizes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    box, model, losses, bytes_, times = done.stdout.strip().split("\n\n")
    assert re.match(r"world: 2 ranks on (gloo|nccl)", box)
    assert model.startswith("134,912 parameters in float32")
    for table in (losses, bytes_):
        assert [line.split()[0] for line in table.splitlines()[1:]] == list(WAYS)
    assert [line.split()[0] for line in times.splitlines()[1:]] == PARALLEL
    sent = [line.split()[-1] for line in bytes_.splitlines()[1:]]
    assert sent[0] == "-" and all(0.99 < float(ratio) < 1.01 for ratio in sent[1:])


def test_losses_that_differ_end_the_program(on_gloo):
    costs = dict(on_gloo[0])
    wrong = tuple(1.01 * loss for loss in costs["DDP"].losses)
    costs["DDP"] = replace(costs["DDP"], losses=wrong)
    with pytest.raises(AssertionError, match="DDP differs from one process by 1.0e-02"):
        loss_lines(costs)


def test_stages_are_those_of_the_names():
    assert {way: STAGE[way] for way in WAYS if way.startswith("ZeRO")} == {
        f"ZeRO-{stage}": stage for stage in (1, 2, 3)
    }
