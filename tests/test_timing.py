"""How calls are timed: fair turns, the slowest rank, the same plain data in every world."""

import time

import pytest
import torch
import torch.distributed as dist

from course import World
from course.costs.bandwidth import busbw, fit_link
from course.costs.collectives import cost
from course.costs.topology import uniform
from course.facts import KIB, Link
from course.figures.measured import measured_bandwidths, measured_times
from course.parallel.collectives import naive_all_reduce, ring_all_reduce
from course.worlds.timing import (
    Timing,
    bests,
    bus_bandwidths,
    lines_of,
    measure,
    medians,
    seconds_of,
    table,
    time_calls,
)

ALPHA_S, B = 1e-5, 1e9


@pytest.fixture(scope="module")
def gloo():
    with World(2, on="gloo") as world:
        yield world


def rank_sleeps(buffer):
    """Rank r sleeps r x 20 ms, so the slowest of two takes 20 ms or more."""
    time.sleep(0.02 * dist.get_rank())


def test_a_call_takes_as_long_as_its_slowest_rank(gloo):
    (timing,) = measure(gloo, {"sleep": rank_sleeps}, [4], repeats=3, warm_up=0)
    assert len(timing.seconds) == 3 and min(timing.seconds) >= 0.02


def test_every_function_is_timed_at_every_size_in_turn(gloo):
    functions = {"ring": ring_all_reduce, "torch": dist.all_reduce}
    timings = measure(gloo, functions, [4, 4096], repeats=3, warm_up=1)
    found = [(t.name, t.nbytes, len(t.seconds)) for t in timings]
    assert found == [(n, m, 3) for m in (4, 4096) for n in ("ring", "torch")]
    assert all(s > 0 for t in timings for s in t.seconds)


def order_of_calls(repeats, warm_up):
    calls = []
    functions = {name: lambda _, name=name: calls.append(name) for name in "abc"}
    time_calls(functions, [4], repeats, warm_up)
    return "".join(calls)


def test_each_repeat_calls_all_and_begins_with_another(gloo):
    assert gloo.run(order_of_calls, 3, 1).results == ["abcbcacababc"] * 2


def test_the_warm_up_is_not_counted(gloo):
    def slow_at_first(buffer):
        if not buffer[0]:  # the buffer is zeros, and stays with the repeats
            time.sleep(0.5)
        buffer.fill_(1)

    (timing,) = measure(gloo, {"f": slow_at_first}, [4], repeats=2, warm_up=1)
    assert max(timing.seconds) < 0.5


def test_the_simulated_world_is_timed_by_its_own_clock():
    n, sizes = 4, [4 * KIB, 64 * KIB]
    world = World(n, cluster=uniform(n, latency_s=ALPHA_S, bytes_per_s=B))
    functions = {"naive": naive_all_reduce, "ring": ring_all_reduce}
    found = medians(measure(world, functions, sizes))
    wire = Link("wire", ALPHA_S, B)
    for name, curve in found.items():
        expected = {m: cost("all_reduce", name, n, m).seconds(wire) for m in sizes}
        assert curve == pytest.approx(expected, rel=1e-12)


def test_alpha_and_bandwidth_are_found_again_from_simulated_times():
    n, sizes = 4, [4 * KIB, 64 * KIB, 1024 * KIB]
    world = World(n, cluster=uniform(n, latency_s=ALPHA_S, bytes_per_s=B))
    ring = medians(measure(world, {"ring": ring_all_reduce}, sizes))["ring"]
    fitted = fit_link([cost("all_reduce", "ring", n, m) for m in ring], list(ring.values()))
    assert (fitted.latency_s, fitted.bytes_per_s) == pytest.approx((ALPHA_S, B))


def test_a_cpu_call_is_timed_until_it_returns():
    assert seconds_of(lambda _: time.sleep(0.05), torch.zeros(1)) >= 0.05


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_call_is_timed_until_its_work_is_done():
    matrix = torch.ones(4096, 4096, device="cuda")
    queued = lambda m: [torch.mm(m, m) for _ in range(20)]
    seconds_of(queued, matrix)
    began = time.perf_counter()
    queued(matrix)
    only_queued = time.perf_counter() - began
    assert seconds_of(queued, matrix) > only_queued


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"functions": {}}, "functions must hold at least one"),
        ({"sizes": [4, 6]}, "multiples of 4, not 6"),
        ({"sizes": [-4]}, "multiples of 4, not -4"),
        ({"repeats": 0}, "repeats must be 1 or more, not 0"),
        ({"warm_up": -1}, "warm_up must be 0 or more, not -1"),
    ],
)
def test_what_cannot_be_timed_is_refused(changed, says):
    given = {"functions": {"f": len}, "sizes": [4]} | changed
    with pytest.raises(ValueError, match=says):
        measure(World(2), **given)


# --- Plain data, tables and pictures ----------------------------------------------------

TIMINGS = [
    Timing("ring", 1024, (3e-6, 1e-6, 2e-6)),
    Timing("torch", 1024, (4e-6,)),
    Timing("ring", 4096, (5e-6, 7e-6)),
]


def test_the_middle_repeat_counts():
    expected = {"ring": {1024: 2e-6, 4096: 6e-6}, "torch": {1024: 4e-6}}
    assert medians(TIMINGS) == {n: pytest.approx(c) for n, c in expected.items()}


def test_the_shortest_repeat_is_the_best():
    assert bests(TIMINGS) == {"ring": {1024: 1e-6, 4096: 5e-6}, "torch": {1024: 4e-6}}


def test_bus_bandwidth_is_that_of_the_costs():
    rates = bus_bandwidths(medians(TIMINGS), 4)
    assert rates["torch"] == {1024: busbw("all_reduce", 4, 1024, 4e-6)}
    assert rates["torch"][1024] == pytest.approx(1.5 * 1024 / 4e-6)


def test_table_has_a_line_for_each_size_and_a_dash_where_nothing_was_measured():
    lines = table(medians(TIMINGS), 4).splitlines()
    assert [line.split() for line in lines] == [
        ["size", "ring", "torch", "ring", "busbw", "torch", "busbw"],
        ["1", "KiB", "2", "µs", "4", "µs", "768", "MB/s", "384", "MB/s"],
        ["4", "KiB", "6", "µs", "-", "1.02", "GB/s", "-"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_columns_are_as_wide_as_their_widest_cell():
    assert lines_of([["a", "bbb"], ["cc", "d"]]) == " a  bbb\ncc    d"


def test_points_and_line_are_drawn_where_they_are():
    measured = medians(TIMINGS)
    figure = measured_times(measured, {"ring": {1024: 1e-6, 4096: 4e-6}})
    line, ring, torch_ = figure.data
    assert (line.mode, line.name) == ("lines", "ring, predicted")
    assert list(line.y) == [1e-6, 4e-6]
    assert (ring.mode, list(ring.x)) == ("markers", [1024, 4096])
    assert list(ring.y) == pytest.approx([2e-6, 6e-6])
    assert line.line.color == ring.marker.line.color != torch_.marker.line.color
    assert ring.hovertext[0] == "ring: 1 KiB, 2 µs"


def test_the_time_axis_has_whole_decades():
    for low, high, ends in ((2e-3, 5e-3, (1e-3, 1e-2)), (1e-3, 1e-3, (1e-3, 1e-2))):
        axis = measured_times({"ring": {1024: low, 4096: high}}).layout.yaxis
        assert list(axis.tickvals) == pytest.approx(ends)


def test_marks_that_were_not_fitted_are_open():
    (ring,) = measured_times({"ring": {1024: 1e-6, 4096: 2e-6}}, fitted_on=[4096]).data
    first, second = ring.marker.color
    assert (first, second) == ("#FFFFFF", ring.marker.line.color)


def test_bandwidths_are_drawn_in_gb_per_s():
    (ring,) = measured_bandwidths({"ring": {1024: 2e9, 4096: 3e9}}).data
    assert list(ring.y) == [2.0, 3.0] and ring.hovertext[1] == "ring: 4 KiB, 3 GB/s"


@pytest.mark.parametrize("draw", [measured_times, measured_bandwidths])
@pytest.mark.parametrize("measured", [{}, {"ring": {}}, {"ring": {1024: 0.0}}])
def test_nothing_to_draw_is_refused(draw, measured):
    with pytest.raises(ValueError, match="measured"):
        draw(measured)
