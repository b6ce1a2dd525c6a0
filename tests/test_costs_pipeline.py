"""Pipeline costs: every formula equal to the schedule laid out in time, and to print."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from course.costs import activations
from course.costs.pipeline import (
    BUBBLES,
    Step,
    bubble_of_ideal,
    bubble_of_total,
    bubble_s,
    ideal_from_total,
    least_micro_batches,
    micro_batches,
    span_bubble_s,
    step_s,
    total_from_ideal,
)
from course.costs.pipeline_stages import (
    IN_FLIGHT,
    best_cuts,
    crossings,
    gpipe_step_s,
    imbalance,
    in_flight,
    least_step_s,
    message_bytes,
    step_bytes,
    unit_flops,
)
from course.facts_models import MODELS
from course.facts_pipeline import ZERO_BUBBLE_TABLE_5
from course.parallel.schedule_time import Timeline, Times, lay_out, stashed
from course.parallel.schedules import (
    SCHEDULES,
    WEIGHT_GRADIENT,
    build,
    chunks_of,
    gpipe,
    one_f_one_b,
)

IN_GROUPS = ("Interleaved 1F1B", "Interleaved ZB")
WITH_MESSAGES = ("Naive", "GPipe", "1F1B", "Interleaved 1F1B", "ZB-H1")
quickly = settings(max_examples=40)
each_name = pytest.mark.parametrize("name", SCHEDULES)
sizes = {"p": st.integers(1, 6), "m": st.integers(1, 18), "v": st.integers(1, 3)}
seconds = st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
works = {"tf": seconds, "ti": seconds, "tw": seconds}


def step_of(name: str, p: int, m: int, v: int, *work_s: float) -> Step:
    """A step of the schedule: chunks and micro-batches as it needs them."""
    m = p * m if name in IN_GROUPS else m
    return Step(p, m, chunks_of(name, v), *work_s)


def laid_out(name: str, step: Step) -> Timeline:
    times = Times(
        step.forward_s,
        step.input_gradient_s,
        step.weight_gradient_s,
        message_s=step.message_s,
    )
    schedule = build(name, step.ranks, step.micro_batches, step.chunks)
    return lay_out(schedule, times.divided(step.chunks))


def formula(function, name: str, step: Step) -> float:
    """The formula's value; steps that it refuses are not drawn."""
    try:
        return function(name, step)
    except ValueError:
        assume(False)


def test_a_formula_for_each_schedule():
    assert list(BUBBLES) == list(SCHEDULES) == list(IN_FLIGHT)


# --- Bubble: formula and schedule laid out --------------------------------------------


@each_name
@quickly
@given(**sizes)
def test_bubble_with_equal_times(name, p, m, v):
    step = step_of(name, p, m, v)
    bubble = formula(bubble_s, name, step)
    timeline = laid_out(name, step)
    assert timeline.makespan_s == pytest.approx(step.ideal_s + bubble)
    assert timeline.bubble_of_ideal() == pytest.approx(bubble / step.ideal_s)
    assert timeline.bubble_of_total() == pytest.approx(bubble / step_s(name, step))


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "ZB-V"])
@quickly
@given(**sizes, **works)
def test_bubble_with_unequal_times(name, p, m, v, tf, ti, tw):
    step = step_of(name, p, m, v, tf, ti, tw)
    bubble = formula(bubble_s, name, step)
    assert laid_out(name, step).makespan_s == pytest.approx(step.ideal_s + bubble)


@pytest.mark.parametrize("name", WITH_MESSAGES)
@quickly
@given(**sizes, **works, c=st.sampled_from([0.01, 0.1, 0.3, 1.0]))
def test_bubble_with_messages(name, p, m, v, tf, ti, tw, c):
    step = step_of(name, p, m, v, tf, ti, tw, c)
    bubble = formula(bubble_s, name, step)
    assert laid_out(name, step).makespan_s == pytest.approx(step.ideal_s + bubble)


@each_name
@quickly
@given(**sizes)
def test_span_with_equal_times(name, p, m, v):
    step = step_of(name, p, m, v)
    bubble = formula(span_bubble_s, name, step)
    assert laid_out(name, step).span_s.max() == pytest.approx(step.ideal_s + bubble)


@quickly
@given(p=sizes["p"], more=st.integers(0, 9), **works, c=st.sampled_from([0, 0.1, 0.25]))
def test_span_of_zb_h2(p, more, tf, ti, tw, c):
    step = Step(p, 2 * p - 1 + more, 1, tf, ti, tw, c)
    bubble = formula(span_bubble_s, "ZB-H2", step)
    assert laid_out("ZB-H2", step).span_s.max() == pytest.approx(step.ideal_s + bubble)


@pytest.mark.parametrize("p, m", [(2, 3), (4, 7), (4, 12), (8, 24)])
def test_zero_bubble_with_equal_times(p, m):
    """No rank of ZB-H2 and ZB-V idles between its first and its last action."""
    for name in ("ZB-H2", "ZB-V"):
        step = step_of(name, p, m, 1)
        assert span_bubble_s(name, step) == 0
        assert laid_out(name, step).bubble_of_span() == pytest.approx(0)
        assert bubble_s(name, step) > 0  # the ends stay


@pytest.mark.parametrize(
    "name, step, rule",
    [
        ("ZB-H1", Step(4, 8, weight_gradient_s=2), "weight_gradient_s at most forward_s"),
        ("ZB-H1", Step(4, 7, message_s=0.1), "2 message_s <= weight_gradient_s, m >= 2p"),
        ("ZB-H2", Step(4, 6), "micro_batches at least 2 ranks - 1"),
        ("ZB-H2", Step(4, 8, message_s=0.1), "message_s = 0"),
        ("ZB-V", Step(4, 8, 2, weight_gradient_s=0.5), "forward_s = input_gradient_s"),
        ("ZB-V", Step(4, 6, 2), "micro_batches at least 2 ranks - 1"),
        ("Interleaved 1F1B", Step(4, 6, 2), "micro_batches a multiple of ranks"),
        ("Interleaved 1F1B", Step(4, 8, 2, message_s=0.6), "message_s at most one chunk's"),
        ("Looped BFS", Step(4, 8, 2, message_s=0.1), "message_s = 0"),
    ],
)
def test_where_a_formula_does_not_hold_it_says_so(name, step, rule):
    with pytest.raises(ValueError, match=f"a formula only for {rule}"):
        bubble_s(name, step)


def test_the_rules_are_needed():
    """Outside of its rule the formula would be wrong: the schedule takes longer."""
    heavy, light = Step(4, 8, weight_gradient_s=2), Step(4, 8)
    assert bubble_s("ZB-H1", light) == laid_out("ZB-H1", light).makespan_s - light.ideal_s
    assert laid_out("ZB-H1", heavy).makespan_s - heavy.ideal_s > 3 * (1 + 1 - 2)


# --- Ratios and micro-batches ---------------------------------------------------------


def test_four_ranks_twelve_micro_batches():
    assert bubble_of_total(4, 12) == 0.20
    assert bubble_of_ideal(4, 12) == 0.25


@quickly
@given(**sizes)
def test_ratios_are_those_of_the_schedules(p, m, v):
    for name in ("GPipe", "1F1B"):
        timeline = laid_out(name, Step(p, m))
        assert timeline.bubble_of_total() == pytest.approx(bubble_of_total(p, m))
        assert timeline.bubble_of_ideal() == pytest.approx(bubble_of_ideal(p, m))
    timeline = laid_out("Interleaved 1F1B", Step(p, p * m, v))
    assert timeline.bubble_of_total() == pytest.approx(bubble_of_total(p, p * m, v))
    assert timeline.bubble_of_ideal() == pytest.approx(bubble_of_ideal(p, p * m, v))


@quickly
@given(**sizes)
def test_one_ratio_gives_the_other(p, m, v):
    total, ideal = bubble_of_total(p, m, v), bubble_of_ideal(p, m, v)
    assert total_from_ideal(ideal) == pytest.approx(total)
    assert ideal_from_total(total) == pytest.approx(ideal)


@quickly
@given(p=st.integers(1, 64), percent=st.integers(1, 99), v=sizes["v"])
def test_least_micro_batches_is_the_least(p, percent, v):
    m = least_micro_batches(p, percent / 100, v)
    assert bubble_of_total(p, m, v) <= percent / 100 + 1e-12
    assert m == 1 or bubble_of_total(p, m - 1, v) > percent / 100


def test_a_global_batch_limits_the_micro_batches():
    """Llama 3 405B, 8K context: 16M tokens a batch, 128 data-parallel ranks, 16 stages."""
    m = micro_batches(2048, 128, 1)
    assert m == 16
    assert bubble_of_ideal(16, m) == 15 / 16
    assert least_micro_batches(16, 0.05) == 285
    with pytest.raises(ValueError, match=r"data_parallel x micro_batch \(96\) must divide"):
        micro_batches(2048, 48, 2)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: bubble_of_total(0, 4), "ranks must be 1 or more, not 0"),
        (lambda: bubble_of_ideal(4, 0), "micro_batches must be 1 or more, not 0"),
        (lambda: least_micro_batches(4, 1.0), "of_total must be between 0 and 1, not 1.0"),
        (lambda: ideal_from_total(1.0), "of_total must be from 0 to below 1, not 1.0"),
        (lambda: Step(4, 8, 0), "chunks must be 1 or more, not 0"),
        (lambda: bubble_s("1f1b", Step(4, 8)), "schedule must be one of Naive, GPipe"),
        (lambda: in_flight("1F1B", 4, 8, 4), "rank must be from 0 to 3, not 4"),
        (lambda: in_flight("2F2B", 4, 8, 0), "schedule must be one of Naive"),
        (lambda: message_bytes(0, 8, 8), "micro_batch must be 1 or more, not 0"),
        (lambda: best_cuts([1, 2], 3), "stages must be at most the 2 units, not 3"),
        (lambda: best_cuts([1, -2], 1), "costs must be 0 or more, not -2"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- Zero bubble, Table 5 -------------------------------------------------------------

each_row = pytest.mark.parametrize(
    "row", ZERO_BUBBLE_TABLE_5, ids=lambda row: f"{row.model}, m={row.micro_batches}"
)
THEORY = {(8, 24): 0.2258, (8, 32): 0.1795, (8, 64): 0.0986, (16, 48): 0.2381}
THEORY |= {(16, 64): 0.1899, (16, 128): 0.1049, (32, 96): 0.2441, (32, 128): 0.1950}
THEORY |= {(32, 256): 0.1080}


def printed(share: float) -> float:
    return round(float(share), 4)


def profiled(row, *, chunks: int = 1, message_s: float | None = None) -> Step:
    message_s = row.message_s if message_s is None else message_s
    work_s = (row.forward_s, row.input_gradient_s, row.weight_gradient_s)
    return Step(row.ranks, row.micro_batches, chunks, *work_s, message_s)


@each_row
def test_without_messages_1f1b_has_the_theoretical_bubble(row):
    """(p-1)/(m+p-1), whatever the times; and the published rates are above it."""
    theory = bubble_of_total(row.ranks, row.micro_batches)
    assert printed(theory) == THEORY[row.ranks, row.micro_batches]
    step = profiled(row, message_s=0.0)
    assert bubble_s("1F1B", step) / step_s("1F1B", step) == pytest.approx(theory)
    assert row.rate("1F1B") > theory


@each_row
@pytest.mark.parametrize("name", ["1F1B", "ZB-H1", "ZB-H2"])
def test_with_messages_the_published_rates_come_out(row, name):
    """All four digits: from the formula, and from the schedule laid out in time."""
    step = profiled(row)
    bubble = span_bubble_s(name, step)
    assert printed(bubble / (step.ideal_s + bubble)) == row.rate(name)
    assert printed(laid_out(name, step).bubble_of_span()) == row.rate(name)


@each_row
def test_zb_1p_found_by_search_is_zb_h1(row):
    assert row.rate("ZB-1p") == row.rate("ZB-H1")


@each_row
def test_interleaved_comes_out_a_little_higher_than_published(row):
    """The authors' script forgets a wait: see the note at the table."""
    step = profiled(row, chunks=row.chunks)
    bubble = bubble_s("Interleaved 1F1B", step)
    share = bubble / (step.ideal_s + bubble)
    assert share == pytest.approx(laid_out("Interleaved 1F1B", step).bubble_of_total())
    assert 1.02 < share / row.rate("1F1B-I") < 1.045


@each_row
def test_interleaved_without_that_wait_comes_out_as_published(row):
    step = profiled(row, chunks=row.chunks)
    assert printed(1 - step.ideal_s / forgetful_interleaved_s(step)) == row.rate("1F1B-I")


def forgetful_interleaved_s(step: Step) -> float:
    """Makespan where only the first micro-batch of a group waits for the chunk before."""
    p, v = step.ranks, step.chunks
    schedule = build("Interleaved 1F1B", p, step.micro_batches, v)
    forward_s, backward_s = step.forward_s / v, (step.work_s - step.forward_s) / v
    done, free, places = {}, [0.0] * p, [0] * p
    while any(places[r] < len(order) for r, order in enumerate(schedule.orders)):
        for r, order in enumerate(schedule.orders):
            while places[r] < len(order):
                kind, s, i = order[places[r]]
                need = (kind, s - 1 if kind == "F" else s + 1)
                need = ("F", s) if need == ("B", p * v) else need
                wraps = need[1] != s and abs(schedule.owner[need[1]] - r) != 1
                if need[1] >= 0 and not (wraps and i % p):
                    if (*need, i) not in done:
                        break
                    delay_s = step.message_s if need[1] != s else 0.0
                    free[r] = max(free[r], done[*need, i] + delay_s)
                free[r] += forward_s if kind == "F" else backward_s
                done[kind, s, i] = free[r]
                places[r] += 1
    return max(free)


# --- Held and sent --------------------------------------------------------------------


@each_name
@quickly
@given(**sizes)
def test_in_flight_is_what_the_order_holds(name, p, m, v):
    step = step_of(name, p, m, v)
    schedule = build(name, p, step.micro_batches, step.chunks)
    held = [stashed(order).max() for order in schedule.orders]
    wanted = [in_flight(name, p, step.micro_batches, r, step.chunks) for r in range(p)]
    assert held == wanted


@pytest.mark.parametrize("p, m, v", [(4, 12, 2), (8, 16, 3), (2, 8, 4)])
def test_in_flight_is_korthikantis(p, m, v):
    """Section 4.2.3: min(m, p - r), and interleaved 1 + (p - 1) / (p v) times as much."""
    for r in range(p):
        assert in_flight("1F1B", p, m, r) == min(m, p - r)
        assert in_flight("GPipe", p, m, r) == m
    more = in_flight("Interleaved 1F1B", p, m, 0, v) / v / in_flight("1F1B", p, m, 0)
    assert more == pytest.approx(1 + (p - 1) / (p * v))


@each_name
@quickly
@given(**sizes)
def test_bytes_are_those_of_the_boundaries_that_leave_a_rank(name, p, m, v):
    step = step_of(name, p, m, v)
    schedule = build(name, p, step.micro_batches, step.chunks)
    far = [one != other for one, other in pairwise(schedule.owner)]
    count = 0
    for order in schedule.orders:
        for kind, stage, _ in order:
            side = stage if kind == "F" else stage - 1
            leaves = 0 <= side < len(far) and far[side]
            count += leaves and kind != WEIGHT_GRADIENT
    crossed = crossings(p, step.chunks, v_shape=name == "ZB-V")
    assert count * 7 == step_bytes(crossed, step.micro_batches, 7)


def test_messages_of_a_large_model():
    """GPT-3 (h 12288, s 2048), one sequence in bf16: 48 MiB a message."""
    assert message_bytes(1, 2048, 12288) == 48 * 2**20
    assert crossings(8) == 7
    assert crossings(8, 2) == 15
    assert crossings(8, 2, v_shape=True) == 14


# --- Unequal stages -------------------------------------------------------------------

weights = st.lists(st.sampled_from([0.5, 0.8, 1.0, 1.3, 2.0]), min_size=1, max_size=6)


@quickly
@given(stages=weights, m=st.integers(1, 20), tf=seconds, ti=seconds, tw=seconds)
def test_unequal_stages(stages, m, tf, ti, tw):
    """GPipe exactly; 1F1B between no idling of the slowest and GPipe."""
    p, times = len(stages), Times(tf, ti, tw, stage_weights=tuple(stages))
    slow = lay_out(gpipe(p, m), times).makespan_s
    forwards, backwards = [tf * w for w in stages], [(ti + tw) * w for w in stages]
    assert slow == pytest.approx(gpipe_step_s(forwards, backwards, m))
    fast = lay_out(one_f_one_b(p, m), times).makespan_s
    least = least_step_s([(tf + ti + tw) * w for w in stages], m)
    assert least - 1e-9 <= fast <= slow + 1e-9


def test_imbalance_is_what_a_long_step_tends_to():
    stages = (1.0, 1.0, 1.0, 2.0)
    assert imbalance(stages) == pytest.approx(1.6)
    timeline = lay_out(one_f_one_b(4, 500), Times(stage_weights=stages))
    even = 500 * 3 * sum(stages) / 4
    assert timeline.makespan_s / even == pytest.approx(1.6, rel=0.01)


@settings(max_examples=60)
@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=9), stages=st.integers(1, 4))
def test_best_cuts_are_the_best_of_all(costs, stages):
    assume(stages <= len(costs))
    cuts = best_cuts(costs, stages)
    assert [i for stage in cuts for i in stage] == list(range(len(costs)))
    assert all(stage for stage in cuts) and len(cuts) == stages
    ways = combinations(range(1, len(costs)), stages - 1)
    sums = [[sum(costs[a:b]) for a, b in pairwise((0, *way, len(costs)))] for way in ways]
    rank = lambda loads: (max(loads), sum(load * load for load in loads))
    assert rank([sum(costs[i] for i in stage) for stage in cuts]) == min(map(rank, sums))


@pytest.mark.parametrize(
    "model", [m for m in MODELS.values() if m.gpt], ids=lambda m: m.name
)
def test_unit_flops_add_up_to_the_model(model):
    tokens = model.sequence
    whole = activations.model_flops(model, batch=1, sequence=tokens)
    assert 3 * tokens * sum(unit_flops(model, tokens)) == pytest.approx(whole)


def test_unit_flops_of_gated_layers_by_hand():
    """Llama 3 8B: two flops for each number of q, k, v, o and three matrices of the MLP."""
    model = next(m for m in MODELS.values() if m.name == "Llama 3 8B")
    embedding, layer, *_, head = unit_flops(model, 8192)
    attention = 4096 * (4096 + 1024 + 1024 + 4096)
    assert embedding == 0
    assert layer == 2 * (attention + 3 * 4096 * 14336) + 4 * 8192 * 4096
    assert head == 2 * 4096 * 128256


def test_a_heavy_head_takes_layers_off_the_last_stage():
    model = next(m for m in MODELS.values() if m.name == "GPT-2 small")
    costs = unit_flops(model, model.sequence)
    layers = [len(set(stage) & set(range(1, 13))) for stage in best_cuts(costs, 4)]
    assert sum(layers) == 12
    assert layers[-1] < min(layers[:-1])
