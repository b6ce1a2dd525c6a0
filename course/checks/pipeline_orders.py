"""Orders of a pipeline as readers write them, and what is wrong with them.

Stage s is on rank s of p. "F2" is the forward of micro-batch 2, "B2" its backward. "send
F2" passes its activation on to the next rank, which has "receive F2"; "send B2" passes
its gradient back to the rank before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from course.parallel.pipeline_messages import RECEIVE, SEND, Transfer, standstill
from course.parallel.schedule_time import Times, lay_out, stashed
from course.parallel.schedules import BACKWARD, FORWARD, Action, Schedule

Fault = tuple[str, str]  # kind of verdict, sentence
_WORK = re.compile(r"([FB])(0|[1-9]\d*)")
_MESSAGE = re.compile(r"(send|receive) ([FB])(0|[1-9]\d*)")
_UNITS = Times(1.0, 1.0, 1.0)  # a backward takes two forwards


# --- Words and actions ------------------------------------------------------------------


def words_of(orders: Sequence[Sequence[Action | Transfer]]) -> list[list[str]]:
    return [[_word(item) for item in order] for order in orders]


def _word(item: Action | Transfer) -> str:
    if isinstance(item, Transfer):
        return f"{item.kind} {_word(item.made_by)}"
    return f"{item.kind}{item.micro_batch}"


def item_of(word: str, rank: int) -> Action | Transfer | None:
    """What a word means in a rank's order; None where it means nothing."""
    if work := _WORK.fullmatch(word):
        return Action(work[1], rank, int(work[2]))
    if message := _MESSAGE.fullmatch(word):
        kind, of, number = message.groups()
        step = 1 if of == FORWARD else -1
        maker, peer = (rank, rank + step) if kind == SEND else (rank - step, rank - step)
        return Transfer(kind, Action(of, maker, int(number)), peer)
    return None


def not_an_order(answer, rank: int, messages: bool) -> Fault | None:
    """Whether a rank's order is no list of words, or has a word that means nothing."""
    if not isinstance(answer, list | tuple):
        kind = type(answer).__name__
        return _shape(f"rank {rank} has {answer!r:.60} (a {kind}), should be a list")
    for word in answer:
        known = isinstance(word, str) and item_of(word, rank)
        if not known or (isinstance(known, Transfer) and not messages):
            examples = '"F0", "send F0" or "receive B0"' if messages else '"F0" or "B0"'
            return _shape(f"rank {rank} has {word!r:.60}, should be like {examples}")
    return None


def _shape(says: str) -> Fault:
    return "wrong shape", f"wrong shape: {says}"


def _values(says: str) -> Fault:
    return "wrong values", f"wrong values: {says}"


# --- Work: each once, in an order that comes to an end --------------------------------


def work_fault(orders: list[list[str]], m: int) -> Fault | None:
    """Every rank's work once, its forward before its backward, and no circle of waits."""
    for rank, order in enumerate(orders):
        wanted = {f"{kind}{i}" for kind in (FORWARD, BACKWARD) for i in range(m)}
        for word, times in Counter(order).items():
            if word not in wanted:
                return _values(f"rank {rank} does {word}, micro-batches are 0 to {m - 1}")
            if times > 1:
                return _values(f"rank {rank} does {word} {times} times")
        for i in range(m):
            fault = _once(order, rank, i)
            if fault:
                return fault
    try:
        lay_out(schedule_of(orders, m), _UNITS)
    except ValueError as error:
        # a stage's number is its rank's: the reader's words have none
        return "deadlock", re.sub(r"@\d+", "", str(error))
    return None


def _once(order: list[str], rank: int, i: int) -> Fault | None:
    for word in (f"F{i}", f"B{i}"):
        if word not in order:
            return _values(f"rank {rank} never does {word}")
    if order.index(f"F{i}") > order.index(f"B{i}"):
        return _values(f"rank {rank} does B{i} before F{i}")
    return None


def schedule_of(orders: list[list[str]], m: int) -> Schedule:
    actions = tuple(
        tuple(item_of(word, rank) for word in order) for rank, order in enumerate(orders)
    )
    return Schedule("yours", m, tuple(range(len(orders))), actions)


def held(order: list[str]) -> int:
    """Most forwards of an order whose backward is still to come."""
    return int(stashed([item_of(word, 0) for word in order]).max(initial=0))


def units(orders: list[list[str]], m: int) -> float:
    """How long it takes, in forwards of a micro-batch."""
    return lay_out(schedule_of(orders, m), _UNITS).makespan_s


# --- Messages -------------------------------------------------------------------------


def message_fault(orders: list[list[str]]) -> Fault | None:
    """A message too many, too few, too late to be used or too early to be there."""
    last = len(orders) - 1
    for rank, order in enumerate(orders):
        wanted = [
            w for word in order if _WORK.fullmatch(word) for w in _needed(word, rank, last)
        ]
        have = Counter(word for word in order if _MESSAGE.fullmatch(word))
        for word in wanted:
            if not have[word]:
                return _little(f'rank {rank} never does "{word}"')
        for word, times in have.items():
            if word not in wanted:
                return _much(f'rank {rank} does "{word}", which nobody needs')
            if times > 1:
                return _much(f'rank {rank} does "{word}" {times} times')
        fault = _misplaced(order, rank, last)
        if fault:
            return fault
    return None


def _needed(word: str, rank: int, last: int) -> list[str]:
    """The messages before and after a piece of work."""
    to_next = rank < last if word.startswith(FORWARD) else rank > 0
    from_before = rank > 0 if word.startswith(FORWARD) else rank < last
    return [f"{RECEIVE} {word}"] * from_before + [f"{SEND} {word}"] * to_next


def _misplaced(order: list[str], rank: int, last: int) -> Fault | None:
    place = {word: i for i, word in enumerate(order)}
    for word in filter(_WORK.fullmatch, order):
        for message in _needed(word, rank, last):
            early = place[message] < place[word]
            if message.startswith(RECEIVE) and not early:
                return _values(f'rank {rank} does {word} before "{message}"')
            if message.startswith(SEND) and early:
                return _values(f'rank {rank} does "{message}" before {word}')
    return None


def _little(says: str) -> Fault:
    return "too little traffic", says


def _much(says: str) -> Fault:
    return "too much traffic", says


def stands_at(orders: list[list[str]]) -> list[int]:
    """For each rank, how far it gets where sends and receives block."""
    return standstill([[item_of(w, rank) for w in o] for rank, o in enumerate(orders)])


def where(orders: list[list[str]], at: Sequence[int]) -> str:
    """ "rank 0 at "send F1" (place 3)", for the ranks that do not get through."""
    stuck = [
        f'rank {rank} at "{order[i]}" (place {i})'
        for rank, (order, i) in enumerate(zip(orders, at, strict=True))
        if i < len(order)
    ]
    return "; ".join(stuck) or "nobody"
