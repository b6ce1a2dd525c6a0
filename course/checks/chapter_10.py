"""Exercises of chapter 10: the order of 1F1B, its messages, and who waits for ever.

p ranks with one stage each, m micro-batches. Nothing runs: orders are lists of words, as
`checks.pipeline_orders` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from course.checks import pipeline_orders as words
from course.checks.exercise import Exercise
from course.checks.verdict import Verdict, of_error, right, wrong
from course.parallel.pipeline_messages import with_messages, with_messages_naively
from course.parallel.schedules import Schedule, gpipe, one_f_one_b

# (p, m): the usual, none to fill with, fewer micro-batches than ranks, one rank, one batch
SIZES = ((4, 8), (4, 4), (4, 2), (1, 3), (2, 1), (3, 5), (8, 16))
_WORDS = 'Stage s is on rank s. "F2" is the forward of micro-batch 2 and "B2" its backward'
_MESSAGES = (
    '"send F2" passes the activation to the next rank, where "receive F2" takes it; "send '
    'B2" passes the gradient to the rank before. A send blocks until the other rank is at '
    "the receive, and a receive until it is at the send"
)


def _case(p: int, m: int, name: str = "") -> str:
    ranks = f"{p} rank{'s' * (p > 1)}, {m} micro-batch{'es' * (m > 1)}"
    return f"{name}, {ranks}" if name else ranks


# --- The order ------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class OneFOneBOrder(Exercise):
    """Any order passes that holds as little, and ends as early, as 1F1B."""

    name: str = "1F1B order"
    chapter: str = "10"
    signature: str = "def my_order(stage, stages, micro_batches): return order"
    task: str = (
        f'{_WORDS}. Return what `stage` does in a step, as a list like ["F0", "F1", "B0", '
        "...]: forwards to fill the pipeline, then one forward and one backward in turn, "
        "then the backwards that are left."
    )
    lines: int = 8
    target: str = (
        "stage s of p holds at most p - s micro-batches, and with a backward that takes "
        "two forwards the step takes 3 (m + p - 1) forwards"
    )

    def grade(self, function: Callable) -> Verdict:
        for p, m in SIZES:
            try:
                orders = [function(s, p, m) for s in range(p)]
                fault = _order_fault(orders, p, m)
            except Exception as error:
                return of_error(error, _case(p, m))
            if fault:
                return wrong(*fault, _case(p, m))
        p, m = SIZES[0]
        units = words.units(one_f_one_b_words(p, m), m)
        return right(
            f"right: stage 0 holds {p} micro-batches, the step takes {units:g} forwards",
            f"case: {_case(p, m)}; right also for {len(SIZES) - 1} other sizes",
        )


def one_f_one_b_words(p: int, m: int) -> list[list[str]]:
    return words.words_of(one_f_one_b(p, m).orders)


def _order_fault(orders: list, p: int, m: int) -> words.Fault | None:
    for s, order in enumerate(orders):
        fault = words.not_an_order(order, s, messages=False)
        if fault:
            return fault
    orders = list(map(list, orders))
    return words.work_fault(orders, m) or _cost_fault(orders, p, m)


def _cost_fault(orders: list[list[str]], p: int, m: int) -> words.Fault | None:
    for s, order in enumerate(orders):
        most, enough = words.held(order), min(p - s, m)
        if most > enough:
            says = f"stage {s} holds {most} micro-batches at once where {enough} "
            return "too much memory", says + ("are enough" if enough > 1 else "is enough")
    took, enough = words.units(orders, m), 3 * (m + p - 1)
    if took > enough:
        says = f"the step takes {took:g} forwards where {enough} are enough"
        return "too slow", says
    return None


# --- The messages ---------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class PlaceTheSends(Exercise):
    """Any placing passes that has what is needed and never stands still."""

    name: str = "place the sends"
    chapter: str = "10"
    signature: str = "def my_messages(orders): return orders_with_messages"
    task: str = (
        f"{_WORDS}; `orders` has for each rank a list of them. Return for each rank the "
        f"same list with sends and receives put in. {_MESSAGES}. No order may stand still: "
        "think of one line in which all work of all ranks can be done, one after the other."
    )
    lines: int = 15
    target: str = "each activation and each gradient once, and all ranks get through"

    def grade(self, function: Callable) -> Verdict:
        for schedule in _schedules():
            case = _case(schedule.ranks, schedule.micro_batches, schedule.name)
            orders = words.words_of(schedule.orders)
            try:
                answer = function([list(order) for order in orders])
                fault = _placing_fault(answer, orders)
            except Exception as error:
                return of_error(error, case)
            if fault:
                return wrong(*fault, case)
        count = len(list(_schedules()))
        return right(f"right: all ranks get through, in all {count} schedules")


def _schedules() -> Iterator[Schedule]:
    for make in (one_f_one_b, gpipe):
        for p, m in SIZES:
            yield make(p, m)


def _placing_fault(answer, orders: list[list[str]]) -> words.Fault | None:
    if not isinstance(answer, list | tuple) or len(answer) != len(orders):
        has = f"a list of {len(answer)}" if isinstance(answer, list | tuple) else answer
        says = (
            f"the answer is {has!s:.60}, should be a list for each of {len(orders)} ranks"
        )
        return "wrong shape", f"wrong shape: {says}"
    for rank, order in enumerate(answer):
        fault = words.not_an_order(order, rank, messages=True)
        if fault:
            return fault
    answer = list(map(list, answer))
    fault = _other_work(answer, orders) or words.message_fault(answer)
    return fault or _still(answer)


def _other_work(answer: list[list[str]], orders: list[list[str]]) -> words.Fault | None:
    for rank, (mine, given) in enumerate(zip(answer, orders, strict=True)):
        if [word for word in mine if " " not in word] != given:
            says = f"rank {rank} does other work than it was given, or in another order"
            return "wrong values", f"wrong values: {says}"
    return None


def _still(answer: list[list[str]]) -> words.Fault | None:
    at = words.stands_at(answer)
    if at == list(map(len, answer)):
        return None
    return "deadlock", f"all wait, {words.where(answer, at)}"


# --- Who waits for ever ---------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class FindTheDeadlock(Exercise):
    """The answer plays orders with messages that block, and tells how far each rank got."""

    name: str = "find the deadlock"
    chapter: str = "10"
    signature: str = "def my_standstill(orders): return places"
    task: str = (
        "`orders` has for each rank a list of work and messages, like "
        f'["receive F0", "F0", "send F0", "receive B0", "B0"]. {_WORDS}. {_MESSAGES}. '
        "Work never waits. Return for each rank how many things it has done when nobody "
        "can go on: the length of its list where it gets through."
    )
    lines: int = 18
    target: str = "right for orders that get through, and for orders that do not"

    def grade(self, function: Callable) -> Verdict:
        cases = list(_played())
        for case, orders in cases:
            try:
                answer = function([list(order) for order in orders])
            except Exception as error:
                return of_error(error, case)
            fault = _places_fault(answer, orders)
            if fault:
                return wrong(*fault, case)
        stuck = sum(words.stands_at(o) != list(map(len, o)) for _, o in cases)
        return right(f"right: {stuck} of {len(cases)} sets of orders stand still")


def _played() -> Iterator[tuple[str, list[list[str]]]]:
    """Orders that deadlock and orders that do not, with what each is."""
    naive = "receives just before, sends just after"
    for p, m in ((2, 2), (4, 8), (3, 2), (1, 2)):
        for make in (one_f_one_b, gpipe):
            schedule = make(p, m)
            for way, adds in ((naive, with_messages_naively), ("in order", with_messages)):
                case = f"{_case(p, m, schedule.name)}, {way}"
                yield case, words.words_of(adds(schedule))
    yield "two sends that cross", [["F0", "send F0"], ["send B0", "receive F0"]]
    orders = words.words_of(with_messages(gpipe(3, 3)))
    yield (
        "GPipe, 3 ranks, a receive forgotten",
        [
            [w for w in order if (rank, w) != (1, "receive F1")]
            for rank, order in enumerate(orders)
        ],
    )
    yield "GPipe, 3 ranks, rank 1 receives F1 first", [
        orders[0], _swapped(orders[1], "receive F0", "receive F1"), orders[2],
    ]  # fmt: skip


def _swapped(order: list[str], one: str, other: str) -> list[str]:
    return [{one: other, other: one}.get(word, word) for word in order]


def _places_fault(answer, orders: list[list[str]]) -> words.Fault | None:
    numbers = isinstance(answer, list | tuple) and all(
        isinstance(n, int) and not isinstance(n, bool) for n in answer
    )
    if not numbers or len(answer) != len(orders):
        says = f"the answer is {answer!r:.60}, should be {len(orders)} whole numbers"
        return "wrong shape", f"wrong shape: {says}"
    for rank, (got, want) in enumerate(zip(answer, words.stands_at(orders), strict=True)):
        if got != want:
            order = orders[rank]
            end = f'stands at "{order[want]}"' if want < len(order) else "gets through"
            says = f"rank {rank} {end} after {want} things done, not {got}"
            return "wrong values", f"wrong values: {says}"
    return None


EXERCISES = (OneFOneBOrder(), PlaceTheSends(), FindTheDeadlock())
