"""Pipeline schedules: valid, laid out in time by the rules; broken ones named."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.parallel.schedule_check import crossings, problems, require_valid
from course.parallel.schedule_time import Times, lay_out, stashed
from course.parallel.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    SCHEDULES,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    build,
    chunks_of,
    gpipe,
    interleaved,
    looped_bfs,
    one_f_one_b,
    zb_h1,
    zb_v,
)

SIZES = {"p": st.integers(1, 6), "m": st.integers(1, 16), "v": st.integers(1, 3)}
quickly = settings(max_examples=20)
IN_GROUPS = ("Interleaved 1F1B", "Interleaved ZB")
each_name = pytest.mark.parametrize("name", SCHEDULES)


def built(name: str, p: int, m: int, v: int) -> Schedule:
    return build(name, p, p * m if name in IN_GROUPS else m, v)


# --- Every schedule -------------------------------------------------------------------


@each_name
@quickly
@given(**SIZES)
def test_every_schedule_is_valid(name, p, m, v):
    schedule = built(name, p, m, v)
    assert problems(schedule) == []
    assert schedule.ranks == p
    assert schedule.chunks == chunks_of(name, v)


@each_name
@quickly
@given(**SIZES)
def test_a_timeline_breaks_no_rule(name, p, m, v):
    """Checked action by action, without the code that laid it out."""
    schedule = built(name, p, m, v)
    times = Times(1.0, 1.5, 0.5, message_s=0.25)
    end, start = {}, {}
    timeline = lay_out(schedule, times)
    for rank, order in enumerate(schedule.orders):
        starts, ends = timeline.start_s[rank], timeline.end_s[rank]
        assert (starts[1:] >= ends[:-1]).all()
        start.update(zip(order, starts, strict=True))
        end.update(zip(order, ends, strict=True))
    for action, began in start.items():
        assert end[action] == began + times.kinds_s[action.kind]
        for need in needs(schedule, action, end):
            far = schedule.owner[need.stage] != schedule.owner[action.stage]
            assert began >= end[need] + (times.message_s if far else 0)


def needs(schedule: Schedule, action: Action, done) -> list[Action]:
    """What an action uses, told anew: activations, gradients, its own forward."""
    kind, s, i = action
    if kind == FORWARD:
        return [Action(FORWARD, s - 1, i)] if s else []
    if kind == WEIGHT_GRADIENT:
        return [Action(INPUT_GRADIENT, s, i)]
    later = [Action(k, s + 1, i) for k in (BACKWARD, INPUT_GRADIENT)]
    return [Action(FORWARD, s, i), *(need for need in later if need in done)]


@each_name
def test_nothing_starts_later_than_it_must(name):
    """Each action starts when its rank is free or when what it needs arrives."""
    schedule, times = built(name, 4, 3, 2), Times(1.0, 1.5, 0.5, message_s=0.25)
    timeline = lay_out(schedule, times)
    ready = set().union(*(set(ends) for ends in timeline.end_s))
    ready |= {end + times.message_s for end in ready} | {0.0}
    assert all(set(starts) <= ready for starts in timeline.start_s)


@each_name
@pytest.mark.parametrize("ranks, micro_batches", [(0, 4), (4, 0), (-1, 4)])
def test_sizes_below_one_are_refused(name, ranks, micro_batches):
    with pytest.raises(ValueError, match="must be 1 or more"):
        build(name, ranks, micro_batches, 2)


def test_refusals_name_the_argument():
    with pytest.raises(
        ValueError, match="micro_batches must be a multiple of ranks, not 6"
    ):
        interleaved(4, 6, 2)
    with pytest.raises(ValueError, match="chunks must be 1 or more, not 0"):
        looped_bfs(4, 8, 0)
    with pytest.raises(ValueError, match="chunks must be 2 for zb_v, not 3"):
        SCHEDULES["ZB-V"](4, 8, 3)
    with pytest.raises(
        ValueError, match="name must be one of Naive, GPipe, .* not PipeDream"
    ):
        build("PipeDream", 4, 8)


# --- Orders by hand -------------------------------------------------------------------


def told(schedule: Schedule, rank: int) -> str:
    return " ".join(map(str, schedule.orders[rank]))


def test_1f1b_of_three_ranks_by_hand():
    schedule = one_f_one_b(3, 4)
    assert told(schedule, 0) == "F0@0 F1@0 F2@0 B0@0 F3@0 B1@0 B2@0 B3@0"
    assert told(schedule, 2) == "F0@2 B0@2 F1@2 B1@2 F2@2 B2@2 F3@2 B3@2"


def test_interleaved_of_two_ranks_by_hand():
    """Narayanan et al. 2021, figure 4: a group through chunk after chunk."""
    schedule = interleaved(2, 2, 2)
    assert schedule.owner == (0, 1, 0, 1)
    assert told(schedule, 0) == "F0@0 F1@0 F0@2 F1@2 B0@2 B1@2 B0@0 B1@0"
    assert told(schedule, 1) == "F0@1 F1@1 F0@3 B0@3 F1@3 B1@3 B0@1 B1@1"


def test_zb_h1_puts_off_weight_gradients_by_the_rank():
    assert told(zb_h1(2, 3), 1) == "F0@1 I0@1 F1@1 I1@1 W0@1 F2@1 I2@1 W1@1 W2@1"


def test_one_chunk_makes_the_schedules_of_one_chunk():
    assert looped_bfs(4, 6, 1).orders == gpipe(4, 6).orders
    assert build("Interleaved ZB", 4, 8, 1).orders == zb_h1(4, 8).orders


def test_zb_v_goes_down_the_ranks_and_back():
    assert zb_v(3, 5).owner == (0, 1, 2, 2, 1, 0)


# --- Bubble ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_four_ranks_twelve_micro_batches(name):
    timeline = lay_out(build(name, 4, 12), Times())
    assert timeline.bubble_of_total() == pytest.approx(0.20)
    assert timeline.bubble_of_ideal() == pytest.approx(0.25)


@quickly
@given(p=SIZES["p"], m=SIZES["m"], tf=st.floats(0.1, 9), tb=st.floats(0.1, 9))
def test_1f1b_saves_memory_not_time(p, m, tf, tb):
    times = Times(tf, tb / 2, tb / 2)
    one, other = lay_out(gpipe(p, m), times), lay_out(one_f_one_b(p, m), times)
    assert one.makespan_s == pytest.approx(other.makespan_s)
    assert one.peak_in_flight().tolist() == [m] * p
    assert other.peak_in_flight().tolist() == [min(p - r, m) for r in range(p)]


def test_messages_cost_1f1b_more_than_gpipe():
    """A rank of 1F1B holds p micro-batches, and each has the messages on its round trip."""
    times = Times(message_s=0.1)
    one, other = lay_out(gpipe(4, 64), times), lay_out(one_f_one_b(4, 64), times)
    assert one.makespan_s == pytest.approx(67 * 3 + 6 * 0.1)
    assert other.makespan_s == pytest.approx(67 * 3 + (6 + 2 * (63 - 16)) * 0.1)


def test_the_three_ratios_of_a_timeline_of_two_actions():
    """Rank 1 waits 1 s for rank 0, which waits 2 s for it and then works 2 s."""
    timeline = lay_out(gpipe(2, 1), Times())
    assert timeline.makespan_s == 6
    assert timeline.busy_s.tolist() == [3, 3]
    assert timeline.idle_s.tolist() == [3, 3]
    assert timeline.span_s.tolist() == [6, 3]
    assert timeline.bubble_of_total() == 0.5
    assert timeline.bubble_of_ideal() == 1.0
    assert timeline.bubble_of_span() == 0.5


def test_one_rank_never_waits():
    for name in SCHEDULES:
        timeline = lay_out(built(name, 1, 5, 2), Times(message_s=9))
        assert timeline.bubble_of_total() == 0


def test_blocking_messages_keep_the_sender_busy():
    """Rank 0 sends after each of 3 forwards; the last of them it sends after 3 + 2 s."""
    schedule, times = gpipe(2, 3), Times(message_s=1.0)
    free, held = (lay_out(schedule, replace(times, blocking=on)) for on in (False, True))
    assert free.start_s[0].tolist()[:3] == [0, 1, 2]
    assert held.start_s[0].tolist()[:3] == [0, 2, 4]
    assert held.start_s[1].tolist()[:3] == [2, 4, 6]


def test_a_heavy_stage_is_always_busy_and_the_others_are_not():
    times = Times(stage_weights=(0.8, 1.6, 0.8, 0.8))
    timeline = lay_out(one_f_one_b(4, 200), times)
    assert timeline.busy_s.argmax() == 1
    assert timeline.busy_s[1] / timeline.makespan_s > 0.98
    assert timeline.bubble_of_total() == pytest.approx(1 - 1 / 1.6, abs=0.02)


# --- Memory ---------------------------------------------------------------------------


def test_in_flight_over_time():
    seconds, counts = lay_out(gpipe(1, 2), Times()).in_flight(0)
    assert seconds.tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert counts.tolist() == [1, 1, 2, 2, 2, 1, 1, 0]


def test_what_the_weight_gradient_keeps():
    order = zb_h1(2, 3).orders[1]  # F0 I0 F1 I1 W0 F2 I2 W1 W2
    assert stashed(order).max() == 2
    assert stashed(order, kept=0.0).max() == 1
    half = [1, 0.5, 1.5, 1, 0.5, 1.5, 1, 0.5, 0]
    assert stashed(order, kept=0.5)[1::2].tolist() == half


@each_name
@quickly
@given(**SIZES)
def test_all_is_freed_at_the_end(name, p, m, v):
    for order in built(name, p, m, v).orders:
        assert stashed(order, kept=0.75)[-1] == pytest.approx(0)
        assert stashed(order, kept=0.75).min() > -1e-9


# --- Refused and broken ---------------------------------------------------------------


def edited(schedule: Schedule, rank: int, edit) -> Schedule:
    orders = list(schedule.orders)
    orders[rank] = tuple(edit(list(orders[rank])))
    return replace(schedule, orders=tuple(orders))


def swap(one: int, other: int):
    def edit(order):
        order[one], order[other] = order[other], order[one]
        return order

    return edit


def without(text: str):
    return lambda order: [action for action in order if str(action) != text]


def plus(*action):
    return lambda order: [*order, Action(*action)]


BASE, SPLIT = one_f_one_b(3, 4), zb_h1(2, 3)
BROKEN = {
    "swapped": (
        BASE,
        1,
        swap(0, 2),
        r"^Rank 1 does B0@1 \(action 0\) before F0@1 \(action 2",
    ),
    "missing backward": (BASE, 1, without("B3@1"), "^Rank 1 never does B3@1"),
    "missing forward": (BASE, 0, without("F2@0"), "^Rank 0 never does F2@0"),
    "doubled": (BASE, 2, plus("F", 2, 1), "^Rank 2 does F1@2 2 times"),
    "whole and half": (BASE, 2, plus("W", 2, 1), "^Rank 2 does W1@2, which B1@2 contains"),
    "W before I": (
        SPLIT,
        0,
        swap(2, 3),
        r"^Rank 0 does W0@0 \(action 2\) before I0@0 \(act",
    ),
    "no W": (SPLIT, 0, without("W1@0"), "^Rank 0 never does W1@0"),
    "W without I": (SPLIT, 0, without("I1@0"), "^Rank 0 never does I1@0"),
    "stranger's stage": (
        BASE,
        0,
        plus("F", 1, 0),
        "^Rank 0, action 8: F0@1 is of stage 1, wh",
    ),
    "no such stage": (
        BASE,
        0,
        plus("F", 7, 0),
        "^Rank 0, action 8: F0@7 is of stage 7, but",
    ),
    "no such micro-batch": (
        BASE,
        0,
        plus("F", 0, 4),
        "F4@0 is of micro-batch 4, but there are 4",
    ),
    "no such kind": (BASE, 0, plus("X", 0, 0), "X0@0 is of no kind of F, B, I, W"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_schedule_is_named(case):
    schedule, rank, edit, sentence = BROKEN[case]
    found = problems(edited(schedule, rank, edit))
    assert len(found) == 1
    assert re.search(sentence, found[0])


def cyclic() -> Schedule:
    """Rank 0 wants micro-batch 1 back first, rank 1 does not see it before 0 is done."""
    first = [Action("F", 0, 0), Action("B", 0, 0), Action("F", 0, 1), Action("B", 0, 1)]
    last = [Action("F", 1, 0), Action("F", 1, 1), Action("B", 1, 0), Action("B", 1, 1)]
    return Schedule("cyclic", 2, (0, 1), (tuple(first), tuple(last)))


def test_a_circle_of_waits_is_a_deadlock():
    (found,) = problems(cyclic())
    assert found == (
        "The schedule deadlocks: rank 0 at B0@0 waits for B0@1 on rank 1; "
        "rank 1 at F1@1 waits for F1@0 on rank 0."
    )
    with pytest.raises(ValueError, match="cyclic: The schedule deadlocks: rank 0 at B0@0"):
        require_valid(cyclic())


def test_laying_out_what_is_missing_says_so():
    broken = edited(BASE, 2, without("B0@2"))
    with pytest.raises(
        ValueError, match="rank 1 at B0@1 waits for B0@2 which no rank does"
    ):
        lay_out(broken, Times())


def test_laying_out_strangers_is_refused():
    for action in (("F", 7, 0), ("F", 0, 4), ("X", 0, 0), ("F", -1, 0)):
        with pytest.raises(ValueError, match="rank 0 has an action of"):
            lay_out(edited(BASE, 0, plus(*action)), Times())


def test_too_much_memory_is_a_problem_where_a_limit_is_given():
    assert problems(gpipe(3, 8)) == []
    found = problems(gpipe(3, 8), most_in_flight=3)
    assert len(found) == 3
    assert found[0].startswith(
        "Rank 0 holds 8 micro-batches at once, more than 3: the first"
    )
    assert "F3@0 (action 3)" in found[0]
    assert problems(one_f_one_b(3, 8), most_in_flight=3) == []


def test_require_valid_tells_five_problems_and_counts_the_rest():
    nothing = Schedule("nothing", 4, (0, 1), ((), ()))
    with pytest.raises(
        ValueError, match=r"nothing: Rank 0 never does F0@0\. .* And 3 more\."
    ):
        require_valid(nothing)
    assert require_valid(BASE) is BASE


@pytest.mark.parametrize(
    "change, message",
    [
        ({"forward_s": -1}, "forward_s must be 0 or more, not -1"),
        ({"message_s": float("nan")}, "message_s must be 0 or more"),
        ({"stage_weights": (1, -1)}, "stage_weights must be 0 or more"),
    ],
)
def test_times_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        Times(**change)


def test_weights_and_kept_and_chunks_are_checked():
    with pytest.raises(ValueError, match="stage_weights must be one for each of 3 stages"):
        lay_out(BASE, Times(stage_weights=(1, 1)))
    with pytest.raises(ValueError, match="kept must be from 0 to 1, not 2"):
        stashed(BASE.orders[0], kept=2)
    with pytest.raises(ValueError, match="chunks must be 1 or more, not 0"):
        Times().divided(0)


@quickly
@given(one=st.integers(0, 7), other=st.integers(0, 7))
def test_two_actions_swapped_are_found_or_cost_time(one, other):
    schedule = edited(BASE, 1, swap(one, other))
    if not problems(schedule):
        assert lay_out(schedule, Times()).makespan_s >= lay_out(BASE, Times()).makespan_s


# --- Messages -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Naive", "GPipe", "1F1B", "Looped BFS", "ZB-H1", "ZB-H2"])
@quickly
@given(**SIZES)
def test_messages_are_needed_in_the_order_of_sending(name, p, m, v):
    assert crossings(built(name, p, m, v)) == []


def test_zb_v_needs_messages_in_another_order_than_it_sends_them():
    assert crossings(zb_v(2, 3)) == [
        "Rank 0 sends activations of micro-batch 2 for stage 1 "
        "when rank 1 needs the gradient of micro-batch 0 for stage 2."
    ]


def test_timeline_arrays_follow_the_order():
    timeline = lay_out(BASE, Times())
    for rank, order in enumerate(BASE.orders):
        assert isinstance(timeline.start_s[rank], np.ndarray)
        assert len(timeline.start_s[rank]) == len(timeline.end_s[rank]) == len(order)
