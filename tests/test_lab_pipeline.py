"""Lab 05: one GPT under every schedule, stages asleep, exercises, torchrun's program."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from course import World
from course.checks import check, exercises
from course.checks.lab_05 import CASES, busy_s, idle_share, slow_rank, spans_of_case
from course.costs.topology import uniform
from course.facts_models import gpt
from course.figures.pipeline_boxes import boxes_from_spans
from course.parallel.gpt import SmallGpt
from course.parallel.pipeline_versions import (
    WAYS,
    begin_pipeline,
    bytes_sent,
    cut_gpt,
    schedule_of,
    train_pipeline,
)
from course.parallel.schedule_time import Times, lay_out
from course.worlds.asleep import seconds_of_stage, slept, step_asleep
from course.worlds.run import RankError
from course.worlds.step_meter import StepCost, meter_steps
from course.worlds.window import after
from labs.pipeline import ALL, ASLEEP, TOLERANCE, byte_lines, loss_lines
from tests.lab_page import ROOT

SHAPE = gpt("tiny", 8, 32, 2, vocab=64, sequence=16)
BATCH, MICRO_BATCHES, STEPS = 8, 4, 3
TIMES = Times(0.02, 0.015, 0.01)
each_way = pytest.mark.parametrize("way", WAYS[1:])
SPLITS_IN_TORCH = ("torch Interleaved ZB", "torch ZB-V")


# --- The model in stages --------------------------------------------------------------


@pytest.mark.parametrize(("stages", "blocks"), [(1, [8]), (3, [3, 3, 2]), (8, [1] * 8)])
def test_stages_one_after_the_other_are_the_model(stages, blocks):
    torch.manual_seed(0)
    model = SmallGpt(SHAPE)
    parts = cut_gpt(model, stages)
    assert [len(part.blocks) for part in parts] == blocks
    x = tokens = torch.arange(32).view(2, 16)
    for part in parts:
        x = part(x)
    assert torch.equal(x, model(tokens))
    assert parts[0].tokens.weight is parts[-1].head.weight


def test_more_stages_than_blocks_are_refused():
    with pytest.raises(ValueError, match="stages must be 1 to 8, the blocks, not 9"):
        cut_gpt(SmallGpt(SHAPE), 9)


@pytest.mark.parametrize("way", ["serial", "torch ZB-H1", "gpipe"])
def test_a_way_without_a_schedule_is_named(way):
    with pytest.raises(ValueError, match=f"way must be one of .*not '{way}'"):
        schedule_of(way, 4, 8)


# --- Equal losses ---------------------------------------------------------------------


def losses_of(ways):
    return {way: train_pipeline(way, SHAPE, BATCH, MICRO_BATCHES, STEPS) for way in ways}


@pytest.fixture(scope="module")
def serial():
    return World(1).run(losses_of, ["serial"]).results[0]["serial"]


@pytest.mark.parametrize("ranks", [2, 4])
@each_way
def test_losses_equal_those_of_the_serial_model(way, ranks, serial):
    """Three steps: a matrix that is shared and not added up, or divided twice, shows."""
    for losses in World(ranks).run(losses_of, [way]).results:
        assert losses[way] == pytest.approx(serial, rel=TOLERANCE / 100)


def test_on_real_ranks(serial):
    with World(4, on="gloo") as world:
        for found in world.run(losses_of, ALL).results:
            for losses in found.values():
                assert losses == pytest.approx(serial, rel=TOLERANCE / 100)
        (costs, *_), schedule = world.run(metered).results, schedule_of("ZB-V", 4, 4)
    assert costs["ZB-V"].sent_bytes == pytest.approx(
        bytes_sent(schedule, 0, SHAPE, BATCH), abs=4
    )


def metered():
    arguments = SHAPE, BATCH, MICRO_BATCHES
    return {w: meter_steps(begin_pipeline, w, *arguments, steps=1) for w in ("ZB-V",)}


def test_the_losses_would_show_a_matrix_that_is_not_added_up(serial, monkeypatch):
    monkeypatch.setattr(
        "course.parallel.pipeline_versions.add_up_tied", lambda tied, schedule: None
    )
    losses = World(2).run(losses_of, ["torch GPipe"]).results[0]["torch GPipe"]
    assert losses != pytest.approx(serial, rel=TOLERANCE)


# --- Bytes ----------------------------------------------------------------------------


def one_step(way):
    begin_pipeline(way, SHAPE, BATCH, MICRO_BATCHES)()


@pytest.mark.parametrize("way", ["GPipe", "Interleaved 1F1B", "ZB-V"])
def test_bytes_sent_are_those_of_the_simulated_wires(way):
    """But for the shared matrix that is sent once at the start, and the loss."""
    run = World(4).run(one_step, way)
    schedule = schedule_of(way, 4, MICRO_BATCHES)
    tied = 4 * SHAPE.vocab * SHAPE.hidden
    for rank, sent in enumerate(run.bytes_sent):
        said = bytes_sent(schedule, rank, SHAPE, BATCH)
        said += tied if rank == 0 and way != "ZB-V" else 0
        assert said <= sent <= said + 16


def test_bytes_by_hand():
    """2 rows of 16 tokens, 32 wide, in float32: 4 KiB. A rank in the middle: 8 ways."""
    schedule = schedule_of("1F1B", 4, 4)
    each, tied = 4096, 4 * 64 * 32
    assert [bytes_sent(schedule, r, SHAPE, BATCH) for r in range(4)] == [
        4 * each + tied, 8 * each, 8 * each, 4 * each + tied
    ]  # fmt: skip


# --- Asleep ---------------------------------------------------------------------------


def in_no_time(ranks):
    return World(ranks, cluster=uniform(ranks, latency_s=0.0, bytes_per_s=1e30))


@pytest.mark.parametrize("weights", [None, (1, 1, 1.5, 1)])
@each_way
def test_simulated_sleep_is_the_laid_out_schedule(way, weights):
    if way in SPLITS_IN_TORCH:
        pytest.skip("torch does not split a sleep")
    schedule = schedule_of(way, 4, 8)
    weights = weights and weights * schedule.chunks
    times = Times(0.02, 0.015, 0.01, weights)
    run = after(in_no_time(4).run(step_asleep, way, 8, times, 2, record=True))
    laid_out = lay_out(schedule, times)
    spans = slept(run, schedule)
    for rank, order in enumerate(schedule.orders):
        mine = [span for span in spans if span[0] == rank]
        assert [span[1:4] for span in mine] == [tuple(action) for action in order]
        assert [s[4] for s in mine] == pytest.approx(laid_out.start_s[rank].tolist())
        assert [s[5] for s in mine] == pytest.approx(laid_out.end_s[rank].tolist())


@pytest.mark.parametrize("way", ["1F1B", "torch 1F1B"])
def test_real_ranks_sleep_no_less_than_predicted(way):
    schedule = schedule_of(way, 2, 3)
    with World(2, on="gloo") as world:
        run = after(world.run(step_asleep, way, 3, TIMES, record=True))
    found = boxes_from_spans(slept(run, schedule))
    assert found.makespan_s >= 0.99 * lay_out(schedule, TIMES).makespan_s
    shortest = {"F": 0.02, "B": 0.025}
    for _, kind, *_, start_s, end_s in slept(run, schedule):
        assert end_s - start_s >= 0.99 * shortest[kind]


def test_a_run_of_another_schedule_is_refused():
    run = after(in_no_time(2).run(step_asleep, "1F1B", 3, TIMES, record=True))
    with pytest.raises(ValueError, match="run must be of GPipe: rank 0, "):
        slept(run, schedule_of("GPipe", 2, 3))
    run = after(in_no_time(2).run(step_asleep, "Naive", 3, TIMES, record=True))
    with pytest.raises(ValueError, match="run must be of Naive: rank 0 did more"):
        slept(run, schedule_of("Naive", 2, 2))


def test_heavier_stages_sleep_longer():
    times = Times(1.0, 2.0, 3.0, stage_weights=(1, 1.5))
    assert seconds_of_stage(times, 1) == (1.5, 3.0, 4.5)


def test_a_way_that_cannot_sleep_is_named():
    with pytest.raises(RankError, match="way must be one of"):
        World(2).run(step_asleep, "serial", 3, TIMES)


# --- Exercises ------------------------------------------------------------------------


def share(spans, ranks):
    first, last = min(s[4] for s in spans), max(s[5] for s in spans)
    return 1 - sum(s[5] - s[4] for s in spans) / (ranks * (last - first))


def work(spans, ranks):
    return [sum(s[5] - s[4] for s in spans if s[0] == r) for r in range(ranks)]


def slow(spans, ranks):
    mine = work(spans, ranks)
    mean = sum(mine) / ranks
    return mine.index(max(mine)) if max(mine) > 1.1 * mean else None


def stub(spans, ranks):
    raise NotImplementedError


def test_right_answers_pass():
    assert exercises("lab 05") == ("measured bubble", "slow rank")
    assert check("measured bubble", share).passed
    assert check("measured bubble", lambda *a: np.float64(share(*a))).passed
    assert check("slow rank", slow).passed
    assert check(
        "slow rank", lambda *a: s if (s := slow(*a)) is None else np.int64(s)
    ).passed


def test_the_answers_under_the_checks_pass():
    assert check("measured bubble", idle_share).passed
    assert check("slow rank", slow_rank).passed


def of_ideal(spans, ranks):
    return share(spans, ranks) / (1 - share(spans, ranks))


def from_zero(spans, ranks):
    return 1 - sum(work(spans, ranks)) / ranks / max(s[5] for s in spans)


def from_own_start(spans, ranks):
    own = 0
    for rank in range(ranks):
        mine = [s for s in spans if s[0] == rank]
        own += max(s[5] for s in mine) - min(s[4] for s in mine)
    return 1 - sum(work(spans, ranks)) / own


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (stub, "not attempted", "not attempted"),
        (lambda *_: "20 %", "wrong shape", "'20 %' was returned, should be a number"),
        (lambda *_: True, "wrong shape", "True was returned"),
        (of_ideal, "wrong values", "the bubble of ideal"),
        (from_zero, "wrong values", "begins with its first span, not at 0"),
        (from_own_start, "wrong values", "from its own first start only"),
        (lambda *a: 100 * share(*a), "wrong values", "in per cent"),
        (lambda *a: 1 - share(*a), "wrong values", "the share that is busy"),
        (lambda s, n: n * share(s, n), "wrong values", "the sum over ranks"),
        (lambda s, n: (n - 1) / (4 + n - 1), "wrong values", "wrong values: 0.4286"),
        (lambda s, n: s["busy"], "raised", "raised TypeError"),
    ],
)
def test_a_wrong_bubble_is_told_why(answer, kind, words):
    told("measured bubble", answer, kind, words)


def told(name, answer, kind, words):
    verdict = check(name, answer)
    assert (verdict.kind, verdict.passed) == (kind, False)
    assert words in verdict.text and "course/checks" not in verdict.text


def always_somebody(spans, ranks):
    mine = work(spans, ranks)
    return mine.index(max(mine))


def by_gaps(spans, ranks):
    """Idle in the middle of the step: slow messages do that as well."""
    idle = []
    for rank in range(ranks):
        mine = [s for s in spans if s[0] == rank]
        whole = max(s[5] for s in mine) - min(s[4] for s in mine)
        idle.append(whole - work(spans, ranks)[rank])
    return idle.index(min(idle)) if max(idle) > 2 * min(idle) + 0.01 else None


def by_stage(spans, ranks):
    owner = {s[2]: s[0] for s in spans}
    stages = work([(s[2], *s[1:]) for s in spans], len(owner))
    mean = sum(stages) / len(stages)
    return owner[stages.index(max(stages))] if max(stages) > 1.1 * mean else None


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (stub, "not attempted", "not attempted"),
        (
            lambda *_: "rank 2",
            "wrong shape",
            "'rank 2' was returned, should be a rank from",
        ),
        (lambda s, n: n, "wrong shape", "4 was returned, should be a rank from 0 to 3"),
        (lambda *_: False, "wrong shape", "False was returned"),
        (lambda *_: np.zeros(4), "wrong shape", "array([0., 0., 0., 0.]) was returned"),
        (lambda *_: None, "wrong values", "no rank, but rank 2 is"),
        (always_somebody, "wrong values", "but none is slow"),
        (by_gaps, "wrong values", "wrong values: "),
        (by_stage, "wrong values", "but none is slow"),
        (lambda s, n: s[0].rank, "raised", "raised AttributeError"),
    ],
)
def test_a_wrong_rank_is_told_why(answer, kind, words):
    told("slow rank", answer, kind, words)


def test_cases_are_far_from_the_threshold():
    """So that an answer may use the mean of the others, or a threshold of its own."""
    for case in CASES:
        spans, schedule = spans_of_case(case)
        mine = busy_s(spans, schedule.ranks)
        assert not 1.03 < mine.max() / mine.mean() < 1.15


# --- The same lab under torchrun ------------------------------------------------------


def test_torchrun_prints_the_report_once():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    sizes = ["--hidden", "32", "--steps", "2", "--repeats", "1", "--sleep-ms", "2"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", "labs/pipeline.py", *sizes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    box, model, losses, bytes_, asleep, times = done.stdout.strip().split("\n\n")
    assert re.match(r"world: 2 ranks on (gloo|nccl)", box)
    assert model.endswith("parameters in float32, 4 micro-batches a step")
    tables = {losses: ("serial", *ALL), bytes_: ALL, asleep: ASLEEP, times: ALL}
    for table, names in tables.items():
        lines = table.splitlines()[1:]
        assert [name_of(line, names) for line in lines] == list(names)
    ratios = [float(line.split()[-1]) for line in bytes_.splitlines()[1:]]
    assert all(0.99 < ratio < 1.01 for ratio in ratios)
    assert all(float(line.split()[-3]) >= 0.95 for line in asleep.splitlines()[1:])


def name_of(line, names):
    """The longest name that the line begins with."""
    return max((n for n in names if line.strip().startswith(n)), key=len)


def a_cost(losses, sent_bytes=0):
    return StepCost(losses, 0, 0, {}, sent_bytes)


def test_losses_that_differ_end_the_program():
    costs = {"serial": a_cost((2.0, 1.0)), "1F1B": a_cost((2.0, 1.01))}
    with pytest.raises(
        AssertionError, match="1F1B differs from the serial model by 1.0e-02"
    ):
        loss_lines(costs)


def test_bytes_beside_the_predicted_ones():
    said = [bytes_sent(schedule_of("GPipe", 2, 4), r, SHAPE, BATCH) for r in range(2)]
    costs = [dict.fromkeys(ALL, a_cost((), 2 * nbytes)) for nbytes in said]
    line = byte_lines(costs, SHAPE, BATCH, 4).splitlines()[1]
    assert line.split()[0] == "GPipe" and line.split()[-1] == "2.000"
