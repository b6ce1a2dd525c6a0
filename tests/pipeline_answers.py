"""Answers to the exercises of chapter 10: right ones, and wrong ones by name."""

from __future__ import annotations

from course.checks.pipeline_orders import words_of
from course.parallel.pipeline_messages import with_messages, with_messages_naively
from course.parallel.schedules import Action, Schedule
from tests.exercise_answers import untouched

__all__ = ["RIGHT", "WRONG"]

# --- The order ------------------------------------------------------------------------


def in_three_phases(stage, stages, micro_batches):
    ahead = min(stages - 1 - stage, micro_batches)
    order = [f"F{i}" for i in range(ahead)]
    for i in range(micro_batches - ahead):
        order += [f"F{ahead + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(micro_batches - ahead, micro_batches)]


def by_what_is_held(stage, stages, micro_batches):
    order, forwards, backwards = [], 0, 0
    while backwards < micro_batches:
        full = forwards - backwards == stages - stage
        if forwards < micro_batches and not full:
            order.append(f"F{forwards}")
            forwards += 1
        else:
            order.append(f"B{backwards}")
            backwards += 1
    return tuple(order)


def all_forwards_first(stage, stages, micro_batches):
    return [f"{kind}{i}" for kind in "FB" for i in range(micro_batches)]


def one_at_a_time(stage, stages, micro_batches):
    return [f"{kind}{i}" for i in range(micro_batches) for kind in "FB"]


def one_ahead_too_many(stage, stages, micro_batches):
    return in_three_phases(stage, stages + 1, micro_batches)


def one_ahead_too_few(stage, stages, micro_batches):
    return in_three_phases(min(stage + 1, stages - 1), stages, micro_batches)


def left_over_forgotten(stage, stages, micro_batches):
    ahead = min(stages - 1 - stage, micro_batches)
    return in_three_phases(stage, stages, micro_batches)[: 2 * micro_batches - ahead]


def fills_past_the_end(stage, stages, micro_batches):
    ahead = stages - 1 - stage
    order = [f"F{i}" for i in range(ahead)]
    for i in range(micro_batches - ahead):
        order += [f"F{ahead + i}", f"B{i}"]
    return order + [f"B{i}" for i in range(max(micro_batches - ahead, 0), micro_batches)]


def stages_the_wrong_way_round(stage, stages, micro_batches):
    return in_three_phases(stages - 1 - stage, stages, micro_batches)


def newest_backward_first(stage, stages, micro_batches):
    order = all_forwards_first(stage, stages, micro_batches)
    back = order[micro_batches:]
    return order[:micro_batches] + (back[::-1] if stage == 0 else back)


def backwards_crossed(stage, stages, micro_batches):
    """The last stage ends with B0, the others begin with it, before their last forward."""
    order = in_three_phases(stage, stages, micro_batches)
    if stage == stages - 1:
        order.remove("B0")
        order.append("B0")
    return order


def backward_first(stage, stages, micro_batches):
    return [f"{kind}{i}" for i in range(micro_batches) for kind in "BF"]


def with_stage_numbers(stage, stages, micro_batches):
    return [f"{w}@{stage}" for w in in_three_phases(stage, stages, micro_batches)]


def as_one_string(stage, stages, micro_batches):
    return " ".join(in_three_phases(stage, stages, micro_batches))


def twice(stage, stages, micro_batches):
    order = in_three_phases(stage, stages, micro_batches)
    return [*order[:1], *order]


# --- The messages ---------------------------------------------------------------------


def schedule_of(orders) -> Schedule:
    actions = tuple(
        tuple(Action(word[0], rank, int(word[1:])) for word in order)
        for rank, order in enumerate(orders)
    )
    micro_batches = max(len(order) for order in orders) // 2
    return Schedule("", micro_batches, tuple(range(len(orders))), actions)


def by_the_course(orders):
    return words_of(with_messages(schedule_of(orders)))


def one_thing_at_a_time(orders):
    """All work of all ranks in one line, each message as soon as it can be sent."""
    placed, left = [[] for _ in orders], [list(order) for order in orders]
    last, done = len(orders) - 1, set()

    def ready(rank, word):
        before = rank - 1 if word[0] == "F" else rank + 1
        return not 0 <= before <= last or (before, word) in done

    while any(left):
        for rank, order in enumerate(left):
            if order and ready(rank, order[0]):
                word = order.pop(0)
                done.add((rank, word))
                placed[rank].append(word)
                to = rank + 1 if word[0] == "F" else rank - 1
                if 0 <= to <= last:
                    placed[rank].append(f"send {word}")
                    placed[to].append(f"receive {word}")
    return placed


def where_they_come_to_mind(orders):
    return words_of(with_messages_naively(schedule_of(orders)))


def none_at_all(orders):
    return orders


def forwards_only(orders):
    return [[w for w in order if "e B" not in w and "d B" not in w] for order in
            by_the_course(orders)]  # fmt: skip


def last_rank_sends_on(orders):
    placed = by_the_course(orders)
    at = placed[-1].index("F0")
    placed[-1].insert(at + 1, "send F0")
    return placed


def sent_twice(orders):
    placed = by_the_course(orders)
    at = placed[0].index("send F0")
    placed[0].insert(at, "send F0")
    return placed


def sends_before_work(orders):
    placed = by_the_course(orders)
    placed[0].remove("send F0")
    return [["send F0", *placed[0]], *placed[1:]]


def receives_after_use(orders):
    placed = by_the_course(orders)
    placed[1].remove("receive F0")
    placed[1].insert(placed[1].index("F0") + 1, "receive F0")
    return placed


def all_receives_first(orders):
    placed = by_the_course(orders)
    early = [[w for w in order if w.startswith("receive")] for order in placed]
    late = [[w for w in order if not w.startswith("receive")] for order in placed]
    return [a + b for a, b in zip(early, late, strict=True)]


def sorted_work(orders):
    return by_the_course(
        [sorted(order, key=lambda w: "FB".index(w[0])) for order in orders]
    )


def only_rank_0(orders):
    return by_the_course(orders)[0]


def peers_in_words(orders):
    return [[f"{w} to {rank + 1}" if w.startswith("send") else w for w in order]
            for rank, order in enumerate(by_the_course(orders))]  # fmt: skip


# --- Who waits for ever ---------------------------------------------------------------


def peer_of(rank: int, word: str) -> int:
    forward = word.split()[1][0] == "F"
    return rank + 1 if forward == word.startswith("send") else rank - 1


def other_end(word: str) -> str:
    verb, work = word.split()
    return f"{'receive' if verb == 'send' else 'send'} {work}"


def played(orders):
    at, moved = [0] * len(orders), True

    def now(rank):
        inside = 0 <= rank < len(orders) and at[rank] < len(orders[rank])
        return orders[rank][at[rank]] if inside else None

    while moved:
        moved = False
        for rank in range(len(orders)):
            word = now(rank)
            if word and " " not in word:
                at[rank] += 1
                moved = True
            elif word and now(peer_of(rank, word)) == other_end(word):
                at[rank] += 1
                at[peer_of(rank, word)] += 1
                moved = True
    return at


def played_backwards(orders):
    """Ranks are tried from the last to the first: the end is the same."""
    at = [0] * len(orders)
    while True:
        before = list(at)
        for rank in reversed(range(len(orders))):
            while at[rank] < len(orders[rank]):
                word = orders[rank][at[rank]]
                if " " in word:
                    peer = peer_of(rank, word)
                    if not 0 <= peer < len(orders) or at[peer] >= len(orders[peer]):
                        break
                    if orders[peer][at[peer]] != other_end(word):
                        break
                    at[peer] += 1
                at[rank] += 1
        if at == before:
            return tuple(at)


def sends_do_not_block(orders):
    at, sent, moved = [0] * len(orders), set(), True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                word = order[at[rank]]
                if word.startswith("receive") and word[8:] not in sent_to(sent, rank):
                    break
                if word.startswith("send"):
                    sent.add((peer_of(rank, word), word[5:]))
                at[rank] += 1
                moved = True
    return at


def sent_to(sent, rank):
    return {work for to, work in sent if to == rank}


def one_round(orders):
    at = [0] * len(orders)
    for rank, order in enumerate(orders):
        while at[rank] < len(order) and " " not in order[at[rank]]:
            at[rank] += 1
    return at


def all_get_through(orders):
    return [len(order) for order in orders]


def only_whether(orders):
    return played(orders) == all_get_through(orders)


def what_is_stuck(orders):
    return [order[i] if i < len(order) else "" for order, i in
            zip(orders, played(orders), strict=True)]  # fmt: skip


def last_thing_done(orders):
    return [i - 1 for i in played(orders)]


def any_message_will_do(orders):
    """A send meets whatever receive the peer is at."""
    at, moved = [0] * len(orders), True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            if at[rank] == len(order):
                continue
            word = order[at[rank]]
            if " " not in word:
                at[rank], moved = at[rank] + 1, True
                continue
            peer = peer_of(rank, word)
            there = orders[peer][at[peer]] if at[peer] < len(orders[peer]) else ""
            if there.split(" ")[0] == other_end(word).split(" ")[0]:
                at[rank], at[peer], moved = at[rank] + 1, at[peer] + 1, True
    return at


def asks_the_last_rank_for_more(orders):
    return [orders[rank][len(orders[rank])] for rank in range(len(orders))]


RIGHT = {
    "1F1B order": [in_three_phases, by_what_is_held],
    "place the sends": [by_the_course, one_thing_at_a_time],
    "find the deadlock": [played, played_backwards],
}
VALUES, SHAPE, MUCH = "wrong values", "wrong shape", "too much traffic"

# exercise: [(wrong answer, kind of verdict, words of its text)]
WRONG = {
    "1F1B order": [
        (untouched, SHAPE, "rank 0 has None (a NoneType), should be a list"),
        (as_one_string, SHAPE, "rank 0 has 'F0 F1 F2"),
        (with_stage_numbers, SHAPE, "rank 0 has 'F0@0', should be like \"F0\" or \"B0\""),
        (all_forwards_first, "too much memory", "stage 0 holds 8 micro-batches at once "
         "where 4 are enough"),
        (one_ahead_too_many, "too much memory", "stage 0 holds 5 micro-batches at once"),
        (one_at_a_time, "too slow", "the step takes 96 forwards where 33 are enough"),
        (one_ahead_too_few, "too slow", "forwards where 33 are enough"),
        (left_over_forgotten, VALUES, "rank 0 never does B5"),
        (fills_past_the_end, VALUES, "rank 0 does F2, micro-batches are 0 to 1"),
        (stages_the_wrong_way_round, "deadlock", "waits for"),
        (newest_backward_first, "too much memory", "stage 0 holds 8"),
        (backwards_crossed, "deadlock", "rank 2 at B0 waits for B0 on rank 3"),
        (backward_first, VALUES, "rank 0 does B0 before F0"),
        (twice, VALUES, "rank 0 does F0 2 times"),
    ],
    "place the sends": [
        (untouched, SHAPE, "the answer is None, should be a list for each of 4 ranks"),
        (only_rank_0, SHAPE, "should be a list for each of 4 ranks"),
        (peers_in_words, SHAPE, "rank 0 has 'send F0 to 1', should be like"),
        (where_they_come_to_mind, "deadlock", 'rank 2 at "send F1"'),
        (all_receives_first, "deadlock", 'all wait, rank 0 at "receive B0" (place 0)'),
        (none_at_all, "too little traffic", 'rank 0 never does "send F0"'),
        (forwards_only, "too little traffic", 'rank 0 never does "receive B0"'),
        (last_rank_sends_on, MUCH, 'rank 3 does "send F0", which nobody needs'),
        (sent_twice, MUCH, 'rank 0 does "send F0" 2 times'),
        (sends_before_work, VALUES, 'rank 0 does "send F0" before F0'),
        (receives_after_use, VALUES, 'rank 1 does F0 before "receive F0"'),
        (sorted_work, VALUES, "rank 0 does other work than it was given"),
    ],
    "find the deadlock": [
        (untouched, SHAPE, "the answer is None, should be 2 whole numbers"),
        (only_whether, SHAPE, "the answer is False, should be 2 whole numbers"),
        (what_is_stuck, SHAPE, "should be 2 whole numbers"),
        (sends_do_not_block, VALUES, 'rank 0 stands at "send F1" after 3 things done'),
        (one_round, VALUES, "things done, not 1"),
        (all_get_through, VALUES, 'rank 0 stands at "send F1" after 3 things done'),
        (last_thing_done, VALUES, "after 3 things done, not 2"),
        (any_message_will_do, VALUES, "rank 0 gets through after 32 things done"),
        (asks_the_last_rank_for_more, "raised", "raised IndexError"),
    ],
}  # fmt: skip
