"""Rows of text about pipelines: every number is the closed formula's, or the paper's."""

import re

import pytest

from course import World
from course.costs.pipeline import Step, bubble_of_total, bubble_s, step_s
from course.costs.pipeline_stages import crossings, in_flight
from course.costs.topology import uniform
from course.facts_models import MODELS
from course.facts_pipeline import ZERO_BUBBLE_TABLE_5
from course.figures import pipeline_tables as tables
from course.figures.pipeline import bubble, timelines_under_names, two_schedules
from course.figures.pipeline_boxes import bubble_of_run
from course.parallel.schedule_time import Times, lay_out
from course.parallel.schedules import SCHEDULES, build
from course.worlds.asleep import sleep_through


def cells(table):
    """The table's rows as lists of words; columns are two blanks apart."""
    return [re.split(r" {2,}", line.strip()) for line in table.splitlines()]


def percent(share):
    return f"{share:.1%}"


def test_gpipe_and_1f1b_take_equally_long_and_hold_as_the_formula_says():
    head, *rows = cells(tables.held_table(("GPipe", "1F1B"), 4, (2, 12)))
    assert head == ["m", "GPipe", "each rank holds", "1F1B", "each rank holds"]
    for m, row in zip((2, 12), rows, strict=True):
        seconds = f"{step_s('1F1B', Step(4, m)):g} s"
        held = [in_flight("1F1B", 4, m, rank) for rank in range(4)]
        assert row == [str(m), seconds, str([m] * 4), seconds, str(held)]


def test_messages_cost_what_the_formula_says():
    names = ("GPipe", "1F1B", "Interleaved 1F1B")
    _, *rows = cells(tables.message_table(names, 4, 12, (0, 0.25), 2))
    for c, row in zip((0, 0.25), rows, strict=True):
        steps = [Step(4, 12, chunks, message_s=c) for chunks in (1, 1, 2)]
        found = [step_s(name, step) for name, step in zip(names, steps, strict=True)]
        assert row == [f"{c:g} s", *(f"{s:.1f} s" for s in found)]


@pytest.fixture(scope="module")
def runs():
    def run(name, chunks):
        world = World(4, cluster=uniform(4, latency_s=0, bytes_per_s=1e30))
        schedule, times = build(name, 4, 8, chunks), Times().divided(chunks)
        return world.run(sleep_through, schedule, times, record=True)

    return {1: run("1F1B", 1), 2: run("Interleaved 1F1B", 2)}


def test_runs_have_the_bubble_the_messages_and_the_memory_of_their_schedule(runs):
    for (v, run), row in zip(
        runs.items(), cells(tables.chunks_table(runs))[1:], strict=True
    ):
        assert bubble_of_run(run) == pytest.approx(bubble_of_total(4, 8, v), abs=1e-12)
        name = "Interleaved 1F1B" if v > 1 else "1F1B"
        assert run.results == [in_flight(name, 4, 8, r, v) for r in range(4)]
        messages = 2 * 8 * crossings(4, v)
        held = f"{in_flight(name, 4, 8, 0, v) / v:.2f}"
        assert row == [str(v), percent(bubble_of_total(4, 8, v)), str(messages), held]


def test_sleeping_stages_may_be_unequal():
    weights = (1.0, 3.0)
    times = Times(1.0, 0.5, 0.25, stage_weights=weights)
    world = World(2, cluster=uniform(2, latency_s=0, bytes_per_s=1e30))
    run = world.run(sleep_through, build("ZB-H1", 2, 4), times, record=True)
    assert run.seconds == pytest.approx(lay_out(build("ZB-H1", 2, 4), times).makespan_s)


def test_each_schedule_has_its_bubble_and_what_it_holds():
    names = tuple(SCHEDULES)
    _, *rows = cells(tables.bubbles_table(names, 4, 8, 2, 0.5))
    for name, row in zip(names, rows, strict=True):
        chunks = build(name, 4, 8, 2).chunks
        lost_s = bubble_s(name, Step(4, 8, chunks))
        held = max(in_flight(name, 4, 8, r, chunks) for r in range(4)) / chunks
        assert row[:3] == [name, f"{lost_s:.1f} s", percent(lost_s / (24 + lost_s))]
        assert row[4] == f"{held:.1f}"
        assert float(row[5].removesuffix(" s")) > lost_s
    spans = {row[0]: row[3] for row in rows}
    assert spans["ZB-H2"] == spans["ZB-V"] == "0.0%" != spans["ZB-H1"]


def test_table_5_comes_out_as_printed():
    names = ("1F1B", "ZB-H1", "ZB-H2")
    _, *rows = cells(tables.table_5(names))
    for row, published in zip(rows, ZERO_BUBBLE_TABLE_5, strict=True):
        theory = bubble_of_total(published.ranks, published.micro_batches)
        rates = [theory, *(published.rate(name) for name in names)]
        assert row[3:7] == [f"{rate:.4f}" for rate in rates]
    assert [row[7] for row in rows[2:4]] == ["1.7%", "0.7%"]


def test_an_uneven_pipeline_idles_whatever_m_is():
    weights = {"even": (1, 1, 1, 1), "one heavy": (0.8, 0.8, 1.6, 0.8)}
    _, even, heavy = cells(tables.stages_table(weights, (12, 12000)))
    assert even == ["even", "20.0%", "0.0%", "100% 100% 100% 100%"]
    assert heavy[2] == percent(1 - 1 / 1.6) and heavy[3] == "50% 50% 100% 50%"


def test_the_head_in_layers_and_the_best_cut():
    models = [MODELS[name] for name in ("Llama 3 8B", "Llama 3 405B")]
    _, small, large = cells(tables.heads_table(models, 8192, (4, 16)))
    # 2hV over 24 h^2-like matrices and 4sh of attention, by hand
    hidden, kv, mlp, vocab, tokens = 4096, 1024, 14336, 128256, 8192
    matrices = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * mlp
    layers = 2 * hidden * vocab / (2 * matrices + 4 * tokens * hidden)
    assert small[1] == f"{layers:.2f}"
    # 32 layers and the head on 4 ranks: 9, 9, 8 layers, and 6 beside the head
    assert small[2] == f"{9 * 4 / (32 + layers):.2f}"
    assert large[3] == "1.01"


def test_pipelines_beside_each_other_share_the_global_batch():
    _, *rows = cells(tables.global_batch_table(2048, (64, 128), 16, (1, 4)))
    assert rows == [["64", "32", "31.9%", "10.5%"], ["128", "16", "48.4%", "19.0%"]]


def test_longer_steps_cure_the_bubble_only():
    a = lay_out(build("1F1B", 3, 4), Times())
    b = lay_out(build("1F1B", 3, 6), Times(stage_weights=(0.8, 1.4, 0.8)))
    _, one, other = cells(tables.longer_table({"A": a, "B": b}, (1, 100)))
    assert one == ["A", percent(2 / 6), percent(2 / 402), "67% 67% 67%"]
    assert float(other[2].rstrip("%")) == pytest.approx(100 * (1 - 1 / 1.4), abs=0.2)


# --- What stands under a picture --------------------------------------------------------


def test_one_micro_batch_is_one():
    assert "Each rank holds 1 micro-batch at most." in bubble("Naive", 4, 1)[1]
    assert "Rank 0 holds the most: 4 micro-batches." in bubble("1F1B", 4, 8)[1]
    assert "Rank 0 holds the most: 5.5 micro-batches." in bubble("Interleaved 1F1B")[1]


def test_equally_long_is_said_so():
    assert two_schedules("GPipe", "1F1B", 4, 8)[1].endswith("33 ms: equally long.")
    assert two_schedules("GPipe", "ZB-H1", 4, 8)[1].endswith("0.818 times as long.")


def test_two_runs_under_names_of_ones_own():
    line = lay_out(build("1F1B", 3, 4), Times())
    figure, text = timelines_under_names({"run A": line, "run B": line}, "Two")
    heads = [note.text for note in figure.layout.annotations]
    assert heads == ["<b>run A</b>", "<b>run B</b>"] and "1F1B" not in str(figure.layout)
    assert text == "Idle time of the total: run A 33.3 %, run B 33.3 %."
    with pytest.raises(ValueError, match="one timeline or two, not 0"):
        timelines_under_names({}, "None")
