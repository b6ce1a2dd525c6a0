"""The timeline shows what the events say: where, how long, how much, and who to whom."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.figures.bars import KINDS, bars, kind, thinned
from course.figures.looks import LOOK, hover
from course.figures.memory_curve import coarser, in_time
from course.figures.timeline import compare, timeline
from course.worlds.overlap import busy, intersection, union
from course.worlds.rows import rows_by_lane
from course.worlds.run import LANES, Event, Message, NotMetered, Run
from tests.runs_by_hand import MIB, MS, data_parallel, make_run, pipeline, ring


def named(figure, name):
    return [t for t in figure.data if t.name == name]


def bar_ends(figure, name, row="x"):
    """(start, end) of each bar of that name, as drawn, in axis units."""
    found = [t for t in named(figure, name) if t.type == "bar" and (t.xaxis or "x") == row]
    return sorted(
        (b, b + x)
        for t in found
        for b, x in zip(t.base or [0] * len(t.x), t.x, strict=True)
    )


def bands(events):
    return bars(events, rows_by_lane(events))


# --- How a rank's time divides ------------------------------------------------------


def test_busy_of_overlapped_data_parallel():
    # forward 4, backward 4 x 2, reduce 4 x 1.5 (3 under backward), step 1: 14.5 ms
    for rank in busy(data_parallel()):
        assert rank == {
            "compute_s": pytest.approx(13 * MS),
            "communication_s": pytest.approx(6 * MS),
            "overlapped_s": pytest.approx(4.5 * MS),
            "exposed_s": pytest.approx(1.5 * MS),
            "idle_s": pytest.approx(0, abs=1e-12),
        }


def test_busy_without_overlap_exposes_every_reduce():
    for rank in busy(data_parallel(overlap=False)):
        assert rank["overlapped_s"] == pytest.approx(0, abs=1e-12)
        assert rank["exposed_s"] == pytest.approx(rank["communication_s"])


def test_sends_and_receives_at_once_count_once():
    for rank in busy(ring(4)):
        assert rank["communication_s"] == pytest.approx(6 * MS)
        assert rank["compute_s"] == 0


def test_idle_lasts_until_the_slowest_rank_ends():
    run = make_run([Event(0, "compute", "mm", 0, 1), Event(1, "compute", "mm", 2, 5)], 3)
    assert [r["idle_s"] for r in busy(run)] == [4, 2, 5]


def test_busy_of_a_run_with_no_events_is_idle():
    assert busy(make_run([], 1, seconds=3.0))[0]["idle_s"] == 3.0


def test_busy_needs_a_recorded_run():
    with pytest.raises(NotMetered, match="record=True"):
        busy(Run("gloo", [None], 1.0))


# whole ticks of an eighth of a second, so that counting ticks is an exact oracle
spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 25)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)


def ticks(intervals):
    return {t for start, end in intervals for t in range(start, end)}


@given(spans, spans)
def test_interval_arithmetic_agrees_with_counting_ticks(a, b):
    assert ticks(union(a)) == ticks(a)
    assert ticks(intersection(union(a), union(b))) == ticks(a) & ticks(b)
    for (_, end), (start, _) in zip(union(a), union(a)[1:], strict=False):
        assert end < start


@given(spans, spans, st.integers(0, 100))
def test_busy_agrees_with_counting_ticks(compute, communication, seconds):
    both = zip(LANES, (compute, communication), strict=True)
    events = [Event(0, k, "x", s / 8, e / 8) for k, some in both for s, e in some]
    run = make_run(events, 1, seconds=seconds / 8)
    (got,) = busy(run)
    c, m = ticks(compute), ticks(communication)
    total = max([seconds, *(e for _, e in compute + communication)])
    assert got == {
        "compute_s": len(c) / 8,
        "communication_s": len(m) / 8,
        "overlapped_s": len(c & m) / 8,
        "exposed_s": len(m - c) / 8,
        "idle_s": (total - len(c | m)) / 8,
    }


# --- Kinds and bars -----------------------------------------------------------------


@pytest.mark.parametrize(
    "lane, name, expected",
    [
        ("communication", "isend", "send"),
        ("communication", "irecv", "recv"),
        ("communication", "_reduce_scatter_base", "reduce_scatter"),
        ("communication", "all_gather_into_tensor_coalesced", "all_gather"),
        ("communication", "all_to_all_single", "all_to_all"),
        ("communication", "reduce", "reduce"),
        ("communication", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce"),
        ("communication", "something new", "communication"),
        ("compute", "mm", "compute"),
        ("compute", "backward 3", "backward"),
        ("compute", "mm (backward)", "backward"),
        ("compute", "threshold_backward", "compute"),
        ("compute", "F12", "forward"),
        ("compute", "W0", "backward"),
        ("compute", "f12", "compute"),
        ("compute", "Adam.step", "optimizer"),
    ],
)
def test_kind(lane, name, expected):
    assert kind(lane, name) == expected


def test_every_kind_has_a_look_of_its_own():
    assert set(LOOK) == set(KINDS)
    assert len(set(LOOK.values())) == len(KINDS)
    # without colour, kinds that often share a lane differ in hatch
    for some in (
        ("forward", "backward"),
        ("send", "recv"),
        ("all_gather", "reduce_scatter"),
    ):
        assert len({LOOK[k][1] for k in some}) == len(some)


def test_joined_bars_lose_no_event_no_byte_and_no_time():
    every = bands(ring(16).events)
    few = thinned(every, 100, 30 * MS)
    assert len(few) <= 100 < len(every)
    for total in (lambda b: b.count, lambda b: b.bytes):
        assert sum(map(total, few)) == sum(map(total, every))
    assert math.fsum(b.busy_s for b in few) == pytest.approx(16 * 30 * 2 * MS)


def test_bars_join_only_with_their_kind_rank_and_row():
    few = thinned(bands(data_parallel(2).events), 1, 14.5 * MS)
    assert {(b.rank, b.kind) for b in few} == {
        (r, k) for r in (0, 1) for k in ("forward", "backward", "optimizer", "all_reduce")
    }
    reduces = [b for b in few if b.kind == "all_reduce"]
    assert all(b.count == 1 for b in reduces), "gaps of half a millisecond stay open"
    assert all(b.count == 4 and b.name == "backward" for b in few if b.kind == "backward")


def test_joined_bars_span_their_gaps_but_do_not_count_them_as_busy():
    events = [Event(0, "compute", "mm", t, t + 0.001) for t in (0.0, 0.002, 0.999)]
    few = thinned(bands(events), 2, 1.0)
    assert [(b.start_s, b.end_s, b.count) for b in few] == [(0, 0.003, 2), (0.999, 1, 1)]
    assert few[0].busy_s == pytest.approx(0.002)


def test_what_differs_between_joined_events_is_not_claimed():
    lane = "communication"
    events = [
        Event(0, lane, "send", 0, 1, 8, 1, "a.py:1"),
        Event(0, lane, "isend", 1, 2, 8, 2, "a.py:2"),
    ]
    (bar,) = thinned(bands(events), 1, 2)
    assert (bar.name, bar.peer, bar.where, bar.bytes) == ("send", None, "", 16)
    assert (
        hover(bar) == "<b>send</b> x 2 on rank 0<br>16 B together<br>starts 0 s, takes 2 s"
    )


def test_hover_tells_name_bytes_peer_times_and_line():
    bar = bands(ring(4).events)[0]
    assert hover(bar).split("<br>") == [
        "<b>isend</b> on rank 0",
        "1 MiB",
        "with rank 1",
        "starts 0 s, takes 1 ms",
        "ring.py:7",
    ]


def test_hover_escapes_names():
    (bar,) = bands([Event(0, "compute", "<lambda>", 0, 1)])
    assert "&lt;lambda&gt;" in hover(bar)


# --- The figure ---------------------------------------------------------------------


def test_bars_are_where_the_events_are():
    figure = timeline(data_parallel(2))
    assert bar_ends(figure, "forward") == [(0, pytest.approx(4))] * 2
    starts = [s for s, _ in bar_ends(figure, "all_reduce")]
    assert starts == pytest.approx([6, 6, 8, 8, 10, 10, 12, 12])
    assert "ms" in figure.layout.xaxis2.title.text


def test_ranks_run_from_the_top_and_compute_is_above_communication():
    figure = timeline(data_parallel(2))
    low, high = figure.layout.yaxis.range
    assert low > high
    (forward,), (reduce,) = named(figure, "forward"), named(figure, "all_reduce")
    top, low = sorted(set(forward.y)), sorted(set(reduce.y))
    assert top[0] < low[0] < top[1] < low[1]
    assert figure.layout.yaxis.ticktext[:2] == ("rank 0  compute", "communication")


def test_idle_bands_span_the_run():
    figure = timeline(data_parallel(2))
    assert bar_ends(figure, "idle") == [(0, pytest.approx(14.5))] * 4


def test_bars_of_one_lane_never_cover_each_other():
    events = [Event(0, "communication", "all_gather", i, i + 2.5) for i in range(6)]
    (trace,) = named(timeline(make_run(events, 1)), "all_gather")
    drawn = sorted(zip(trace.y, trace.base, trace.x, strict=True))
    for (y1, start1, long1), (y2, start2, _) in zip(drawn, drawn[1:], strict=False):
        assert y1 != y2 or start1 + long1 <= start2
    assert len(set(trace.y)) == 3


def test_arrows_go_from_the_sends_bar_to_the_receives():
    run = ring(4)
    figure = timeline(run)
    (arrows,), (sends,), (recvs,) = (named(figure, n) for n in ("message", "send", "recv"))
    assert len(arrows.x) == 3 * len(run.messages)
    for k, m in enumerate(run.messages):
        start, end = 3 * k, 3 * k + 1
        assert arrows.x[start] == pytest.approx(m.start_s / MS)
        assert arrows.x[end] == pytest.approx(m.end_s / MS)
        assert arrows.y[start] == pytest.approx(sorted(set(sends.y))[m.source])
        assert arrows.y[end] == pytest.approx(sorted(set(recvs.y))[m.destination])
        assert f"from rank {m.source} to rank {m.destination}" in arrows.hovertext[start]


def test_an_arrow_finds_the_row_of_the_very_first_event():
    lane = "communication"
    events = [
        Event(0, lane, "send", 0, 2, 8, 1),
        Event(0, lane, "recv", 0, 2, 8, 1),
        Event(1, lane, "recv", 0, 2, 8, 0),
        Event(1, lane, "send", 0, 2, 8, 0),
    ]
    run = make_run(events, 2, messages=[Message(0, 1, 8, 0, 2)])
    (arrow,), (send,) = (named(timeline(run), n) for n in ("message", "send"))
    assert run.events[0].name == "send" and arrow.y[0] == min(send.y)


def test_many_messages_have_no_arrows_unless_asked_for():
    run = ring(8)
    assert not named(timeline(run), "message")
    assert named(timeline(run, messages=True), "message")
    assert not named(timeline(ring(4), messages=False), "message")


def test_memory_curve_shares_the_axis_and_holds_until_the_end():
    figure = timeline(data_parallel(2))
    (curve,) = named(figure, "memory, each rank")
    assert list(curve.x) == pytest.approx([0, 4, 6, 8, 10, 12, 14.5])
    assert list(curve.y) == pytest.approx([100, 400, 400, 340, 280, 220, 220])
    assert figure.layout.xaxis.matches == "x2" and figure.layout.yaxis2.title.text == "MiB"
    assert len(timeline(data_parallel(2), memory=False).data) == len(figure.data) - 1


def test_many_different_curves_show_the_highest_and_the_lowest():
    curves = tuple([(0.0, (9 - r) * MIB)] for r in range(6))
    run = make_run([Event(r, "compute", "mm", 0, 1) for r in range(6)], 6, memory=curves)
    names = [t.name for t in timeline(run).data if "memory" in t.name]
    assert names == ["most memory: rank 0", "least memory: rank 5"]


def test_what_was_not_measured_is_left_out_or_refused():
    run = data_parallel(2)
    assert not named(timeline(run), "message")
    with pytest.raises(NotMetered):
        timeline(run, messages=True)
    with pytest.raises(NotMetered, match="memory=True"):
        timeline(ring(2), memory=True)


def test_a_curve_never_runs_back_in_time_and_keeps_its_values():
    curve = [(0.0, 5), (3.0, 9), (2.0, 7), (4.0, 1)]
    assert in_time(curve) == [(0.0, 5), (3.0, 9), (3.0, 7), (4.0, 1)]


def test_coarser_keeps_the_peak():
    curve = [(i / 100, (i * 7919) % 10007) for i in range(5000)]
    few = coarser(curve, 200)
    assert len(few) <= 210 and few[0] == curve[0] and few[-1] == curve[-1]
    assert max(n for _, n in few) == max(n for _, n in curve)
    assert set(few) <= set(curve) and few == sorted(few)


def test_events_that_took_no_time_are_ticks():
    still = Event(0, "compute", "mm", 1.0, 1.0)
    run = make_run([still, Event(0, "compute", "add", 0, 2)], 1)
    (tick,) = named(timeline(run), "took no time")
    assert list(tick.x) == [1.0]


def test_a_lane_that_took_no_time_is_left_out_unless_asked_for():
    events = [Event(0, "compute", "mm", 1, 1), Event(0, "communication", "send", 0, 2)]
    run = make_run(events, 1)
    assert not named(timeline(run), "took no time")
    assert named(timeline(run, lanes=LANES), "took no time")


def test_twenty_thousand_events_become_few_bars_and_a_note():
    run = ring(72)
    assert len(run.events) > 20_000
    figure = timeline(run, ranks=range(72))
    assert len(figure.data) < 10
    drawn = sum(len(t.x) for t in figure.data)
    assert drawn < 2000
    assert "events are joined" in figure.layout.xaxis.title.text


def test_only_the_first_64_ranks_by_default():
    figure = timeline(ring(72))
    assert "64 of 72 ranks drawn" in figure.layout.xaxis.title.text


def test_chosen_ranks_keep_their_numbers():
    figure = timeline(ring(8), ranks=[5, 2])
    assert figure.layout.yaxis.ticktext == ("rank 2", "rank 5")


def test_no_events():
    figure = timeline(make_run([], 4))
    assert figure.layout.annotations[0].text == "no events"


@pytest.mark.parametrize("run", [ring(4), data_parallel(), pipeline(), make_run([], 2)])
def test_figures_are_json(run):
    for figure in (timeline(run), compare(run, run)):
        assert json.loads(figure.to_json())["data"]


@pytest.mark.parametrize(
    "unit, last",
    [("s", 0.0145), ("ms", 14.5), ("us", 14500), ("ns", 14.5e6), ("auto", 14.5)],
)
def test_time_units(unit, last):
    figure = timeline(data_parallel(1), time_unit=unit)
    assert bar_ends(figure, "optimizer")[-1][1] == pytest.approx(last)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"ranks": [4]}, "ranks must be from 0 to 3, not 4"),
        ({"ranks": []}, "ranks must name one rank or more"),
        ({"lanes": ["network"]}, "lanes must be of"),
        ({"lanes": []}, "lanes must be of"),
        ({"time_unit": "h"}, "time_unit must be one of"),
        ({"max_bars": 0}, "max_bars must be 1 or more"),
        ({"messages": "yes"}, "messages must be"),
        ({"memory": None}, "memory must be"),
        ({"messages": True, "lanes": ["compute"]}, "communication"),
    ],
)
def test_bad_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        timeline(ring(4), **wrong)


def test_compare_puts_both_on_one_axis_of_time():
    fast, slow = data_parallel(2), data_parallel(2, overlap=False)
    figure = compare(fast, slow)
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range
    assert bar_ends(figure, "optimizer", "x")[-1][1] == pytest.approx(14.5)
    assert bar_ends(figure, "optimizer", "x2")[-1][1] == pytest.approx(19)
    headings = [a.text for a in figure.layout.annotations]
    assert headings == ["predicted: 14.5 ms (simulated)", "measured: 19 ms (simulated)"]


def test_compare_by_share_stretches_each_to_a_hundred():
    figure = compare(data_parallel(2), data_parallel(2, overlap=False), align="share")
    for row in ("x", "x2"):
        assert bar_ends(figure, "optimizer", row)[-1][1] == pytest.approx(100)


def test_compare_by_share_joins_bars_by_the_width_of_each_run():
    # gaps of 1/39 of its own run stay open, also where the other run is much longer
    def beats(scale):
        spans = [(2 * i * scale, (2 * i + 1) * scale) for i in range(20)]
        return make_run([Event(0, "compute", "mm", *s) for s in spans], 1)

    figure = compare(beats(1e-6), beats(1.0), align="share", max_bars=2)
    assert len(bar_ends(figure, "compute", "x")) == 20
    assert len(bar_ends(figure, "compute", "x2")) == 20


def test_compare_names_each_kind_once_in_the_legend():
    figure = compare(data_parallel(2), ring(2))
    shown = [t.name for t in figure.data if t.showlegend is not False]
    assert len(shown) == len(set(shown)) and {"forward", "send", "idle"} <= set(shown)


def test_compare_refuses_an_unknown_alignment():
    with pytest.raises(ValueError, match="align"):
        compare(ring(2), ring(2), align="left")


# --- A true run ---------------------------------------------------------------------


def pass_to_the_right(x):
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    sent = dist.isend(x, (rank + 1) % ranks)
    dist.recv(x.clone(), (rank - 1) % ranks)
    sent.wait()


def test_a_simulated_run_is_drawn_as_it_ran():
    import torch

    from course import World

    run = World(4).run(pass_to_the_right, torch.ones(1 << 20), record=True)
    figure = timeline(run, time_unit="s")
    for name in ("send", "recv"):
        times = [(e.start_s, e.end_s) for e in run.events if e.name == name]
        assert bar_ends(figure, name) == [pytest.approx(t) for t in times]
    (arrows,) = named(figure, "message")
    assert len(arrows.x) == 3 * 4
    assert all(r["exposed_s"] == pytest.approx(run.seconds) for r in busy(run))
