"""Pictures of pipelines: every box in its place, every number the closed formula's."""

import re

import numpy as np
import pytest

from course import widgets
from course.costs.pipeline import Step, bubble_of_ideal, bubble_of_total, bubble_s
from course.costs.pipeline_stages import best_cuts, in_flight, unit_flops
from course.facts_models import MODELS
from course.figures.pipeline import (
    bubble,
    measured_and_predicted,
    schedule_timeline,
    two_schedules,
)
from course.figures.pipeline_boxes import KINDS, boxes_from_spans, boxes_of, spans_of
from course.figures.pipeline_curves import (
    bubble_curves,
    cut_model,
    cut_units,
    equal_layers,
    schedules_compared,
)
from course.figures.pipeline_traces import FILL, LOOK, NAMES
from course.parallel.schedule_time import Times, lay_out
from course.parallel.schedules import SCHEDULES, build
from course.worlds.run import Event

each_schedule = pytest.mark.parametrize("name", SCHEDULES)


def timeline_of(name, ranks=4, micro_batches=8, chunks=2, **times):
    schedule = build(name, ranks, micro_batches, chunks)
    return lay_out(schedule, Times(**times).divided(schedule.chunks))


def rectangles(figure, axis="y", names=None):
    """Every drawn box as (name, rank, left, right, top, bottom), read off the paths."""
    found = []
    for trace in scatters(figure):
        drawn = trace.name in (names or NAMES.values()) and trace.fill == "toself"
        if not drawn or (trace.yaxis or "y") != axis:
            continue
        x, y = np.array(trace.x, float), np.array(trace.y, float)
        assert trace.line.shape == "hv"
        for row in np.split(np.arange(len(x)), np.flatnonzero(np.isnan(x))):
            first, *corners = row[~np.isnan(x[row])]
            assert y[first] == y[corners[1]]  # so the path's end joins its begin below
            for up, down in zip(corners[0::2], corners[1::2], strict=True):
                rank = round(float(y[down] - FILL / 2))
                found.append((trace.name, rank, x[up], x[down], y[up], y[down]))
    return found


def wanted(timeline, second):
    """The boxes of a timeline as (name, rank, left, right)."""
    pairs = zip(timeline.schedule.orders, timeline.start_s, timeline.end_s, strict=True)
    return sorted(
        (NAMES[action.kind], rank, start * second, end * second)
        for rank, (order, starts, ends) in enumerate(pairs)
        for action, start, end in zip(order, starts, ends, strict=True)
    )


def same(drawn, expected):
    drawn = sorted(box[:4] for box in drawn)
    assert [d[:2] for d in drawn] == [e[:2] for e in expected]
    ends = np.array([e[2:] for e in expected])
    assert np.array([d[2:] for d in drawn]) == pytest.approx(ends, rel=1e-5, abs=1e-5)


# --- Boxes -----------------------------------------------------------------------------


@each_schedule
def test_every_action_is_one_box_where_the_timeline_has_it(name):
    timeline = timeline_of(name, forward_s=1.0, weight_gradient_s=0.7, message_s=0.1)
    figure, _ = schedule_timeline(timeline)
    same(rectangles(figure), wanted(timeline, 1))


@each_schedule
def test_boxes_of_a_rank_do_not_overlap_and_stay_in_their_row(name):
    figure, _ = bubble(name, ranks=4, micro_batches=8, message_ms=0.2, last_stage=1.5)
    boxes = rectangles(figure)
    for rank in range(4):
        mine = sorted(box[2:4] for box in boxes if box[1] == rank)
        assert all(b[0] >= a[1] - 1e-4 for a, b in zip(mine, mine[1:], strict=False))
    assert all(abs(top - rank) <= FILL / 2 + 1e-6 for _, rank, _, _, top, _ in boxes)


def test_kinds_are_told_apart_without_colour():
    looks = [look[1:] for look in LOOK.values()]
    assert len(set(looks)) == len(looks)
    figure, _ = bubble("ZB-H1")
    heights = {box[0]: round(box[5] - box[4], 3) for box in rectangles(figure)}
    assert heights["weight gradient"] == pytest.approx(0.6 * FILL, abs=1e-3)
    assert heights["forward"] == pytest.approx(FILL, abs=1e-3)


def test_ranks_run_from_the_top_and_time_has_a_unit():
    figure, _ = bubble(ranks=8)
    low, high = figure.layout.yaxis.range
    assert low > high and figure.layout.yaxis.ticktext[0] == "rank 0"
    assert figure.layout.xaxis.title.text == "time (ms)"


def scatters(figure):
    return [t for t in figure.data if t.type == "scatter"]


def labels(figure):
    return [t for t in scatters(figure) if t.mode == "text"]


def test_the_number_of_the_micro_batch_stands_in_each_box_with_room():
    figure, _ = bubble("1F1B", 4, 8)
    (shown,) = labels(figure)
    assert sorted(shown.text) == sorted(str(i) for i in range(8) for _ in range(2 * 4))
    first = rectangles(figure, names=("forward",))[0]
    assert first[2] < shown.x[0] < first[3] and shown.text[0] == "0"


def test_letters_name_chunks_and_no_number_stands_where_there_is_no_room():
    (shown,) = labels(bubble("Interleaved 1F1B", 2, 4, 2)[0])
    assert set(shown.text) == {f"{i}{chunk}" for i in range(4) for chunk in "ab"}
    assert labels(bubble("1F1B", 16, 64)[0]) == []


def test_pointing_at_a_box_says_what_it_is():
    timeline = timeline_of("ZB-H1", forward_s=2.0)
    figure, _ = schedule_timeline(timeline)
    said = [t for t in scatters(figure) if t.mode == "none"]
    found = {
        (t.hovertemplate.split("<")[1][2:], *map(int, row[:3])): (x, *row[3:])
        for t in said
        for row, x in zip(t.customdata, t.x, strict=True)
    }
    assert len(found) == 3 * 4 * 8
    assert found["forward", 0, 0, 0] == pytest.approx((1, 0, 2))
    start, end = timeline.start_s[2][-1], timeline.end_s[2][-1]
    middle = (start + end) / 2
    assert found["weight gradient", 7, 2, 2] == pytest.approx((middle, start, end))
    assert all("%{customdata[4]:.4~g} s<" in t.hovertemplate for t in said)


# --- Numbers ---------------------------------------------------------------------------


def percents(text):
    return [float(p) / 100 for p in re.findall(r"([\d.]+) %", text)]


def headings(figure):
    return [a.text for a in figure.layout.annotations if "bubble" in a.text]


@pytest.mark.parametrize("ranks, micro_batches", [(2, 1), (4, 12), (8, 24), (16, 64)])
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_drawn_bubble_and_formula_agree(name, ranks, micro_batches):
    (heading,) = headings(bubble(name, ranks, micro_batches)[0])
    total, ideal, total_again, ideal_again = percents(heading)
    assert (
        total
        == total_again
        == pytest.approx(bubble_of_total(ranks, micro_batches), abs=5.1e-4)
    )
    assert (
        ideal
        == ideal_again
        == pytest.approx(bubble_of_ideal(ranks, micro_batches), abs=5.1e-4)
    )
    assert "(p-1)/(m+p-1)" in heading


@each_schedule
def test_every_formula_in_a_heading_is_the_drawn_bubble(name):
    (heading,) = headings(bubble(name, 4, 8, message_ms=0)[0])
    total, ideal, *formula = percents(heading)
    assert formula == [total, ideal]


def test_four_ranks_and_twelve_micro_batches_idle_a_fifth():
    (heading,) = headings(bubble("1F1B", 4, 12)[0])
    assert "20 % of total, 25 % of ideal" in heading


def test_messages_are_in_the_formula():
    (heading,) = headings(bubble("1F1B", 4, 8, message_ms=0.1)[0])
    lost_s = bubble_s("1F1B", Step(4, 8, message_s=0.1))
    assert percents(heading)[1] == percents(heading)[3]
    assert percents(heading)[3] == pytest.approx(lost_s / 24, abs=5.1e-4)


def test_unequal_stages_stand_beside_the_formula_for_equal_ones():
    (heading,) = headings(bubble("1F1B", 4, 8, last_stage=2.0)[0])
    drawn, _, formula, _ = percents(heading)
    assert "if all stages were equal" in heading
    assert drawn > formula == pytest.approx(bubble_of_total(4, 8), abs=5e-4)


def test_where_there_is_no_formula_the_rule_is_told():
    (heading,) = headings(bubble("ZB-V", 4, 8, forward_ms=2.0)[0])
    assert "formula only for forward_s" in heading


@each_schedule
def test_what_is_held_is_the_closed_form(name):
    figure, text = bubble(name, 4, 8, 2)
    (bars,) = [t for t in figure.data if t.type == "bar"]
    chunks = build(name, 4, 8, 2).chunks
    held = [in_flight(name, 4, 8, rank, chunks) / chunks for rank in range(4)]
    assert list(bars.y) == held
    assert f"{max(held):g} micro-batch{'es' * (max(held) > 1)}" in text


def test_the_text_counts_from_a_ranks_own_start_where_that_differs():
    assert "own first action: 0 % idle" in bubble("ZB-V", 4, 8)[1]
    assert "own first action" not in bubble("1F1B", 4, 8)[1]


# --- Two of them -----------------------------------------------------------------------


def test_two_schedules_share_the_axis_of_time():
    figure, text = two_schedules("GPipe", "ZB-H1", 4, 8)
    same(rectangles(figure, "y"), wanted(timeline_of("GPipe"), 1e0))
    same(rectangles(figure, "y2"), wanted(timeline_of("ZB-H1"), 1e0))
    assert figure.layout.xaxis.range[1] >= 33
    assert len(headings(figure)) == 2
    names = [t.name for t in figure.data if t.showlegend]
    assert len(names) == len(set(names)) and {"GPipe", "ZB-H1", "idle"} <= set(names)
    assert text.startswith("GPipe 33 ms, ZB-H1 27 ms")


def test_a_schedule_beside_itself_has_two_names_in_the_legend():
    bars = [t.name for t in two_schedules("1F1B", "1F1B")[0].data if t.type == "bar"]
    assert len(set(bars)) == 2


def measured(timeline, late_s=5.0, stretch=1.1):
    """The timeline as if it had been measured, as events."""
    pairs = zip(timeline.schedule.orders, timeline.start_s, timeline.end_s, strict=True)
    return [
        Event(rank, "compute", str(a), late_s + stretch * start, late_s + stretch * end)
        for rank, (order, starts, ends) in enumerate(pairs)
        for a, start, end in zip(order, starts, ends, strict=True)
    ]


def test_measured_work_is_drawn_under_the_predicted():
    timeline = timeline_of("ZB-V")
    events = [*measured(timeline), Event(0, "compute", "mm", 5.0, 6.0)]
    figure, text = measured_and_predicted(spans_of(reversed(events)), timeline)
    same(rectangles(figure, "y"), wanted(timeline, 1))
    same(rectangles(figure, "y2"), wanted(timeline, 1.1))
    drawn, _ = percents(headings(figure)[1])
    assert drawn == pytest.approx(timeline.bubble_of_total(), abs=5.1e-4)
    assert "1.10 times as long" in text


def test_names_of_spans_are_read():
    events = [Event(1, "compute", "B12@3", 0.5, 0.75), Event(0, "compute", "F1", 0, 1)]
    assert spans_of(events) == [(1, "B", 3, 12, 0.5, 0.75)]


def test_spans_become_the_boxes_of_the_timeline():
    timeline = timeline_of("Interleaved 1F1B")
    planned = boxes_of(timeline)
    found = boxes_from_spans(spans_of(measured(timeline, 0.0, 1.0)))
    assert (found.ranks, found.chunks) == (planned.ranks, planned.chunks)
    for field in ("rank", "kind", "stage", "chunk", "micro_batch", "start_s"):
        assert list(getattr(found, field)) == list(getattr(planned, field)), field


# --- Every control, every wrong value --------------------------------------------------


def test_every_control_from_end_to_end():
    made = widgets.explore(
        bubble,
        schedule=list(SCHEDULES),
        ranks=[2, 4, 8],
        micro_batches=[8, 16, 24],
        chunks=(1, 4),
        forward_ms=(0.5, 2.0, 0.5),
        input_gradient_ms=(0.5, 2.0, 0.5),
        weight_gradient_ms=(0.0, 2.0, 0.5),
        message_ms=(0.0, 0.5, 0.25),
        last_stage=(1.0, 2.0, 0.5),
    )
    assert made.sweep() > 90


def test_every_pair_of_schedules():
    names = list(SCHEDULES)
    made = widgets.explore(two_schedules, first=names, second=names, ranks=[2, 4])
    assert made.sweep() > 50


def test_many_ranks_and_micro_batches_are_few_traces():
    figure, _ = bubble("1F1B", 16, 64)
    assert len(rectangles(figure)) == 2 * 16 * 64
    assert len(figure.data) < 10
    largest, _ = bubble("1F1B", 64, 512)
    assert len(rectangles(largest)) == 2 * 64 * 512
    assert len(largest.data) == 4, "idle, forward, backward, bars: nothing to point at"


@pytest.mark.parametrize(
    "draw, rule",
    [
        (lambda: bubble("2F2B"), "2F2B"),
        (lambda: bubble(ranks=0), "ranks must be 1 or more"),
        (lambda: bubble(micro_batches=0), "micro_batches must be 1 or more"),
        (lambda: bubble("Interleaved 1F1B", 4, 6), "multiple of ranks"),
        (lambda: bubble(message_ms=-1), "message_s must be 0 or more"),
        (lambda: bubble(last_stage=0), "last_stage must be more than 0"),
        (lambda: boxes_from_spans([]), "spans must hold one span"),
        (lambda: boxes_from_spans([(0, "X", 0, 0, 0, 1)]), "kind must be one of"),
        (lambda: boxes_from_spans([(0, "F", 0, 0, 1, 0)]), "end before it starts"),
        (lambda: boxes_from_spans([(4, "F", 0, 0, 0, 1)], ranks=4), "from 0 to 3"),
        (lambda: cut_units([1, 2], [range(0, 1)]), "cuts must take units 0 to 1"),
        (lambda: cut_units([1], [range(0, 1)], owner=[]), "owner must name"),
        (lambda: cut_model("GPT-9"), "model must be one of"),
        (lambda: cut_model(cut="even"), "cut must be"),
        (lambda: equal_layers(34, 5), "stages must divide 32 layers"),
        (lambda: bubble_curves(of="time"), 'of must be "total" or "ideal"'),
        (lambda: bubble_curves([]), "ranks must name one"),
        (lambda: schedules_compared(ranks=0), "ranks must be 1 or more"),
    ],
)
def test_what_is_wrong_is_named(draw, rule):
    with pytest.raises(ValueError, match=re.escape(rule)):
        draw()


# --- Still pictures --------------------------------------------------------------------


@pytest.mark.parametrize(
    "of, share", [("total", bubble_of_total), ("ideal", bubble_of_ideal)]
)
@pytest.mark.parametrize("chunks", [1, 3])
def test_curves_are_the_closed_forms(of, share, chunks):
    figure = bubble_curves((2, 8), chunks, of)
    for curve, ranks in zip(figure.data, (2, 8), strict=True):
        assert curve.name == f"p = {ranks}"
        for m, percent in zip(curve.x, curve.y, strict=True):
            assert percent == pytest.approx(100 * share(ranks, m, chunks))
    assert f"{of} time" in figure.layout.yaxis.title.text


def test_each_schedule_is_a_point_of_the_trade():
    figure, text = schedules_compared(4, 16, 2)
    step = Step(4, 16, 2)
    for point in figure.data:
        chunks = build(point.name, 4, 16, 2).chunks
        held = [in_flight(point.name, 4, 16, r, chunks) / chunks for r in range(4)]
        lost = bubble_s(point.name, step if chunks > 1 else Step(4, 16))
        assert point.x[0] == max(held)
        assert point.y[0] == pytest.approx(100 * lost / (lost + step.ideal_s))
    assert {t.name for t in figure.data} == set(SCHEDULES) - {"Naive"}
    assert "Naive holds 1 and idles 75 %" in text
    labelled = ", ".join(a.text for a in figure.layout.annotations).split(", ")
    assert sorted(labelled) == sorted(set(SCHEDULES) - {"Naive"})


def test_schedules_that_cannot_take_these_numbers_are_told():
    figure, text = schedules_compared(4, 6)
    assert "Interleaved 1F1B" not in {t.name for t in figure.data}
    assert "Interleaved 1F1B is not drawn: micro_batches must be a multiple" in text


def test_units_lie_side_by_side_on_the_row_of_their_rank():
    costs, owner = [1.0, 2.0, 3.0, 2.0], [0, 1, 0]
    cuts = (range(0, 1), range(1, 3), range(3, 4))
    figure, text = cut_units(costs, cuts, owner=owner)
    stages = [t for t in figure.data if t.fill == "toself"]
    spans = [(min(t.x), max(t.x), round(np.mean(t.y))) for t in stages]
    assert spans == [(0, 12.5, 0), (12.5, 75, 1), (75, 100, 0)]
    assert "Stage 1 is the heaviest, 62.5 % of the work: 1.88 times" in text
    assert figure.layout.yaxis.ticktext == ("rank 0: 37.5 %", "rank 1: 62.5 %")


@pytest.mark.parametrize("model", ["GPT-2 small", "Llama 3 8B"])
@pytest.mark.parametrize("cut", ["best", "equal layers"])
def test_cuts_of_a_model_are_the_partitioners(model, cut):
    figure, text = cut_model(model, 4, 1024, cut)
    costs = unit_flops(MODELS[model], 1024)
    layers = (len(costs) - 2) // 4
    cuts = best_cuts(costs, 4)
    if cut == "equal layers":
        cuts = [range(1 + layers * s - (s == 0), 1 + layers * (s + 1)) for s in range(3)]
        cuts.append(range(1 + layers * 3, len(costs)))
    loads = [100 * sum(costs[u] for u in stage) / sum(costs) for stage in cuts]
    stages = [t for t in figure.data if t.fill == "toself"]
    assert [max(t.x) - min(t.x) for t in stages] == pytest.approx(loads)
    assert f"{max(loads):.1f} % of the work" in text


def test_kinds_are_those_of_the_schedules():
    assert set(KINDS) == set(LOOK) == set(NAMES)


def test_many_boxes_say_nothing_and_narrow_ones_have_no_hatch():
    """Counted over both timelines: one does not speak while the other is silent."""
    one, _ = bubble("1F1B", 16, 64)
    two, _ = two_schedules("1F1B", "ZB-V", 16, 64)
    said = [sum(t.customdata is not None for t in scatters(f)) for f in (one, two)]
    assert said == [2, 0]
    hatched = {t.name: bool(t.fillpattern.shape) for t in scatters(two) if t.fill}
    assert hatched["backward"] and not hatched["input gradient"]
    few, _ = two_schedules("1F1B", "ZB-V", 4, 8)
    hatched = {t.name: bool(t.fillpattern.shape) for t in scatters(few) if t.fill}
    assert hatched["backward"] and hatched["input gradient"]
