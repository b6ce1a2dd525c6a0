"""Fits tried on sizes that they have not seen, and who is fastest where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course import World
from course.costs.collectives import Cost, cost
from course.costs.fitting import (
    all_messages,
    break_even_bytes,
    crossings,
    fastest_of,
    fit_half,
    fit_regimes,
)
from course.facts import KIB, MIB, Link
from course.figures.fitting import fastest_rows
from course.parallel.timed import ALL_REDUCES, COLLECTIVES, round_trip
from course.worlds.box import describe_box
from course.worlds.timing import call_once

SIZES = [4 * KIB << k for k in range(9)]
SMALL, LARGE = Link("small", 20e-6, 1e9), Link("large", 50e-6, 8e9)
COSTS = {name: {m: cost("all_reduce", name, 4, m) for m in SIZES} for name in ALL_REDUCES}


def timed(link, costs=COSTS):
    return {n: {m: c.seconds(link) for m, c in curve.items()} for n, curve in costs.items()}


def test_one_pair_of_numbers_explains_all_algorithms_at_once():
    fit = fit_half(COSTS, timed(SMALL))
    assert (fit.link.latency_s, fit.link.bytes_per_s) == pytest.approx((20e-6, 1e9))
    assert fit.fitted_on == tuple(SIZES[::2])
    assert set(fit.ratios) == {(n, m) for n in ALL_REDUCES for m in SIZES[1::2]}
    assert fit.error == pytest.approx(0, abs=1e-9)
    assert fit.predict(COSTS)["ring"] == pytest.approx(timed(SMALL)["ring"])


def test_sizes_held_out_do_not_move_the_fit_but_show_in_its_error():
    times = timed(SMALL)
    for curve in times.values():
        curve.update({m: 2 * curve[m] for m in SIZES[1::2]})
    fit = fit_half(COSTS, times)
    assert fit.link.latency_s == pytest.approx(20e-6)
    assert fit.error == pytest.approx(0.5)


def test_two_regimes_are_found_and_their_border():
    ring = COSTS["ring"]
    times = {m: c.seconds(SMALL if m < 256 * KIB else LARGE) for m, c in ring.items()}
    one, two = fit_half({"r": ring}, {"r": times}), fit_regimes({"r": ring}, {"r": times})
    assert two.starts == (0, 256 * KIB) and two.error < 1e-9 < one.error
    assert two.link_for(4 * KIB).bytes_per_s == pytest.approx(1e9)
    assert two.link_for(MIB).bytes_per_s == pytest.approx(8e9)
    with pytest.raises(ValueError, match="several links"):
        _ = two.link


def test_where_noise_hides_the_slope_of_each_part_one_line_is_left():
    costs = {"r": {m: Cost(1, m) for m in (1, 2, 4, 8, 16, 32, 64)}}
    times = {"r": dict(zip(costs["r"], (1.0, 1, 0.5, 1, 9, 1, 8), strict=True))}
    assert fit_regimes(costs, times).links == fit_half(costs, times).links


def test_too_few_sizes_are_refused():
    few = {"r": {4: 1.0, 8: 2.0}}
    with pytest.raises(ValueError, match="times must hold 3 or more sizes, not 2"):
        fit_half({"r": {4: Cost(1, 4), 8: Cost(1, 8)}}, few)


# --- Who is fastest, and where that changes ---------------------------------------------


def test_fastest_by_size():
    times = {"a": {1: 1.0, 2: 5.0}, "b": {1: 2.0, 2: 4.0, 3: 1.0}}
    assert fastest_of(times) == {1: "a", 2: "b", 3: "b"}


def test_break_even_of_doubling_and_ring_on_4_ranks_is_8_alpha_b():
    doubling, ring = (cost("all_reduce", n, 4, 1) for n in ("recursive_doubling", "ring"))
    assert break_even_bytes(doubling, ring, SMALL) == pytest.approx(8 * 20e-6 * 1e9)


@given(st.integers(2, 64))
def test_both_take_as_long_at_break_even(n):
    one = [cost("all_reduce", a, n, 1) for a in ("tree", "ring")]
    equal = break_even_bytes(*one, SMALL)
    if equal is not None:
        tree, ring = (cost("all_reduce", a, n, equal) for a in ("tree", "ring"))
        assert tree.seconds(SMALL) == pytest.approx(ring.seconds(SMALL))


@pytest.mark.parametrize("other", [Cost(1, 2), Cost(2, 1), Cost(1, 1), Cost(3, 2)])
def test_who_is_never_slower_has_no_break_even(other):
    assert break_even_bytes(Cost(1, 1), other, SMALL) is None
    assert break_even_bytes(other, Cost(1, 1), SMALL) is None


def test_crossings_lie_where_lines_on_log_axes_meet():
    first, second = {1: 1.0, 100: 100.0, 1000: 1.0}, {1: 10.0, 100: 10.0, 1000: 10.0}
    down, up = crossings(first, second)
    assert down == pytest.approx(10) and 100 < up < 1000
    assert crossings(first, dict.fromkeys(first, 1000.0)) == []


# --- Counted by formula, counted by the simulated world ----------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", ALL_REDUCES)
def test_all_messages_are_those_that_the_simulated_world_counts(name, ranks):
    nbytes = 3 * 8 * 64
    run = World(ranks).run(call_once, ALL_REDUCES[name], nbytes)
    expected = all_messages(name, ranks, nbytes)
    assert (len(run.messages), sum(run.bytes_sent)) == (expected.steps, expected.bytes_sent)


def test_an_algorithm_that_is_not_counted_is_refused():
    with pytest.raises(ValueError, match="algorithm must be one of .* not 'torch'"):
        all_messages("torch", 4, 8)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_torchs_collectives_move_what_the_costs_say_of_the_whole_buffer(name):
    run = World(4).run(call_once, COLLECTIVES[name], 64)
    assert max(run.bytes_sent + run.bytes_received) == cost(name, "ring", 4, 64).bytes_sent


@pytest.mark.parametrize("peer", [1, 3])
def test_a_round_trip_is_two_messages_between_0_and_the_peer(peer):
    run = World(4).run(call_once, lambda x: round_trip(x, peer), 64)
    assert [(m.source, m.destination, m.bytes) for m in run.messages] == [
        (0, peer, 64),
        (peer, 0, 64),
    ]


# --- What is shown and written down -------------------------------------------------------


def test_rows_of_the_fastest_are_coloured_and_named_alike():
    rows = {"measured": {4: "tree", 8: "ring"}, "a model": {4: "ring", 8: "ring"}}
    (cells,) = fastest_rows(rows).data
    assert list(cells.y) == ["measured", "a model"]
    assert [list(row) for row in cells.z] == [[1, 0], [0, 0]]
    assert [list(row) for row in cells.text] == [["tree", "ring"], ["ring", "ring"]]


def test_a_name_has_one_colour_whoever_else_is_in_the_picture():
    def color(name, *others):
        (cells,) = fastest_rows({"a": dict(enumerate([name, *others], 1))}).data
        band = 2 * int(cells.z[0][0])
        return cells.colorscale[band][1]

    assert color("ring") == color("ring", "tree", "torch")
    assert len({color(name) for name in (*ALL_REDUCES, "torch")}) == 5


@pytest.mark.parametrize("rows", [{}, {"a": {}}, {"a": {4: "ring"}, "b": {8: "ring"}}])
def test_rows_without_common_sizes_are_refused(rows):
    with pytest.raises(ValueError, match="rows must"):
        fastest_rows(rows)


def test_a_box_is_described_in_words():
    box = describe_box("gloo", 4)
    assert box["world"] == "4 ranks on gloo" and box["cores"][0].isdigit()
    assert all(isinstance(words, str) and words for words in box.values())
