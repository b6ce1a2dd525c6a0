"""Sends and receives of pipeline schedules: complete, in one order, free of deadlock."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from course.parallel.pipeline_messages import (
    RECEIVE,
    SEND,
    Transfer,
    made_before,
    output_of,
    receives_early,
    standstill,
    with_messages,
    with_messages_naively,
)
from course.parallel.schedules import (
    FORWARD,
    SCHEDULES,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
    build,
    gpipe,
    one_f_one_b,
)

ADDED = {"naive": with_messages_naively, "ordered": with_messages}


@some.composite
def schedules(draw) -> Schedule:
    """Any schedule of the course, of up to 6 ranks. Some ask that ranks divide m."""
    ranks = draw(some.integers(1, 6))
    micro_batches = draw(some.integers(1, 3)) * ranks
    name = draw(some.sampled_from(sorted(SCHEDULES)))
    return build(name, ranks, micro_batches, draw(some.integers(1, 3)))


def any_schedule(test):
    return settings(max_examples=50)(given(schedules())(test))


each_way = pytest.mark.parametrize("way", ADDED)


def transfers(order) -> list[Transfer]:
    return [item for item in order if isinstance(item, Transfer)]


def boundaries(schedule: Schedule) -> int:
    """Neighbouring stages on different ranks."""
    owner = schedule.owner
    return sum(a != b for a, b in zip(owner, owner[1:], strict=False))


@each_way
@any_schedule
def test_work_is_as_the_schedule_has_it(way, schedule):
    for order, mine in zip(ADDED[way](schedule), schedule.orders, strict=True):
        assert tuple(item for item in order if isinstance(item, Action)) == mine


@each_way
@any_schedule
def test_each_message_has_two_ends(way, schedule):
    """One activation and one gradient a micro-batch, where neighbours are on two ranks."""
    found: dict = {}
    for rank, order in enumerate(ADDED[way](schedule)):
        for kind, action, peer in transfers(order):
            route = (rank, peer) if kind == SEND else (peer, rank)
            found.setdefault(action, {})[kind] = route
    assert len(found) == 2 * schedule.micro_batches * boundaries(schedule)
    for action, ends in found.items():
        to = action.stage + (1 if action.kind == FORWARD else -1)
        route = schedule.owner[action.stage], schedule.owner[to]
        assert ends == {SEND: route, RECEIVE: route}
        assert action.kind != WEIGHT_GRADIENT


@each_way
@any_schedule
def test_what_is_sent_is_there_and_what_is_used_has_come(way, schedule):
    for order in ADDED[way](schedule):
        have, sent = set(), set()
        for item in order:
            if isinstance(item, Action):
                needs = made_before(item)
                outside = needs is None or not 0 <= needs[1] < schedule.stages
                assert outside or needs in have
                have.add(output_of(item))
            elif item.kind == RECEIVE:
                have.add(output_of(item.made_by))
            else:
                assert output_of(item.made_by) in have - sent
                sent.add(output_of(item.made_by))


def seen_by_peer(ends: list[Transfer], rank: int, peer: int) -> list[Transfer]:
    """The same messages, as their other ends stand in the peer's order."""
    other = {SEND: RECEIVE, RECEIVE: SEND}
    return [Transfer(other[e.kind], e.made_by, rank) for e in ends if e.peer == peer]


@any_schedule
def test_both_ends_of_a_pair_have_their_messages_in_one_order(schedule):
    """Both directions together, as NCCL needs it; posted early or not."""
    plain = with_messages(schedule)
    for orders in (plain, tuple(map(receives_early, plain))):
        ends = [transfers(order) for order in orders]
        for a, b in combinations(range(schedule.ranks), 2):
            assert seen_by_peer(ends[a], a, b) == [e for e in ends[b] if e.peer == a]


@any_schedule
def test_nobody_stands_still_where_messages_block(schedule):
    orders = with_messages(schedule)
    assert standstill(orders) == [len(order) for order in orders]


@any_schedule
def test_early_receives_pass_one_action_and_no_message(schedule):
    for order in with_messages(schedule):
        early = receives_early(order)
        assert sorted(early, key=str) == sorted(order, key=str)
        assert transfers(early) == transfers(order)
        place = {item: i for i, item in enumerate(order) if isinstance(item, Action)}
        actions = [item for item in early if item in place]
        assert actions == list(place)
        for i, item in enumerate(early):
            if isinstance(item, Transfer):
                passed = [
                    a for a in early[i:] if a in place and order.index(item) > place[a]
                ]
                assert len(passed) <= (item.kind == RECEIVE)


def test_most_receives_of_a_long_1f1b_are_posted_early():
    """So that a message travels while its receiver works."""
    order = receives_early(with_messages(one_f_one_b(4, 32))[1])
    activations = [
        i
        for i, item in enumerate(order)
        if isinstance(item, Transfer) and item.made_by.kind == FORWARD and item.peer == 0
    ]
    ahead = sum(not _used_next(order, i) for i in activations)
    assert ahead >= 0.9 * len(activations)


def _used_next(order, i: int) -> bool:
    """Whether the first action after a receive is the one that uses it."""
    following = next(item for item in order[i:] if isinstance(item, Action))
    return made_before(following) == output_of(order[i].made_by)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_1f1b_with_messages_where_they_come_to_mind_deadlocks(ranks):
    orders = with_messages_naively(one_f_one_b(ranks, 2 * ranks))
    at = standstill(orders)
    stuck = [orders[rank][at[rank]] for rank in range(ranks)]
    assert all(isinstance(item, Transfer) for item in stuck)
    # the last two both send to each other; all others wait behind them
    last = ranks - 1
    assert [str(item) for item in stuck[-2:]] == [
        f"send F1@{last - 1} to {last}",
        f"send B0@{last} to {last - 1}",
    ]


def test_gpipe_gets_through_either_way():
    orders = with_messages_naively(gpipe(4, 8))
    assert standstill(orders) == [len(order) for order in orders]


def test_1f1b_of_one_micro_batch_gets_through():
    orders = with_messages_naively(one_f_one_b(4, 1))
    assert standstill(orders) == [len(order) for order in orders]


def test_orders_that_wait_for_each_other_are_refused():
    good = one_f_one_b(2, 2)
    backwards_first = tuple(reversed(good.orders[1]))
    bad = Schedule("bad", 2, good.owner, (good.orders[0], backwards_first))
    with pytest.raises(ValueError, match="come to an end: all wait, before .*, B1@1"):
        with_messages(bad)


def test_ends_read_like_what_they_do():
    order = with_messages(one_f_one_b(2, 1))[0]
    assert [str(item) for item in order] == [
        "F0@0", "send F0@0 to 1", "receive B0@1 from 1", "B0@0",
    ]  # fmt: skip


@any_schedule
def test_one_order_broken_on_purpose_stands_still(schedule):
    """Swap a rank's first two messages with one peer: both ends no longer agree."""
    orders = [list(order) for order in with_messages(schedule)]
    for rank, order in enumerate(orders):
        ends = [i for i, item in enumerate(order) if isinstance(item, Transfer)]
        pairs = [(i, j) for i, j in combinations(ends, 2) if order[i].peer == order[j].peer]
        if pairs:
            i, j = pairs[0]
            order[i], order[j] = order[j], order[i]
            assert standstill(orders)[rank] < len(order)
            return
    assert schedule.ranks == 1
