"""Exercises of lab 05: read a measured timeline. How much is idle, and whose fault is it?

A span is (rank, kind, stage, micro_batch, start_s, end_s).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real

import numpy as np

from course.checks.compare import is_whole
from course.checks.exercise import Exercise
from course.checks.verdict import Verdict, of_error, right, wrong
from course.parallel.schedule_time import Times, lay_out
from course.parallel.schedules import Schedule, build

FAR, NOISE, ORIGIN_S = 1.1, 0.04, 3.25
# what it is, schedule, p, m, v, weights of stages, seconds of a message
CASES = (
    ("few micro-batches", "GPipe", 4, 4, 1, None, 0.0),
    ("a heavy stage in the middle", "1F1B", 4, 12, 1, (1, 1, 1.5, 1), 0.0),
    ("slow messages", "1F1B", 4, 8, 1, None, 0.6),
    ("a heavy last stage", "GPipe", 3, 6, 1, (1, 1, 2), 0.0),
    ("a heavy first stage", "ZB-H1", 4, 8, 1, (1.6, 1, 1, 1), 0.1),
    ("two chunks, even ranks", "Interleaved 1F1B", 2, 4, 2, (1.4, 0.6, 0.6, 1.4), 0.0),
    ("two chunks, a heavy rank", "Interleaved 1F1B", 2, 4, 2, (1, 1, 1, 1.8), 0.0),
)
Spans = list[tuple[int, str, int, int, float, float]]


def spans_of_case(case) -> tuple[Spans, Schedule]:
    """A laid-out schedule as somebody would measure it: noise, and a clock of its own."""
    _, name, p, m, v, weights, message_s = case
    schedule = build(name, p, m, v)
    timeline = lay_out(schedule, Times(0.02, 0.02, 0.02, weights, 0.02 * message_s))
    noise = random.Random(name)
    spans = [
        (r, *action, ORIGIN_S + a, ORIGIN_S + a + (b - a) * (1 - NOISE * noise.random()))
        for r, order in enumerate(schedule.orders)
        for action, a, b in zip(
            order, timeline.start_s[r].tolist(), timeline.end_s[r].tolist(), strict=True
        )
    ]
    return sorted(spans, key=lambda span: span[4]), schedule


def busy_s(spans: Spans, ranks: int) -> np.ndarray:
    """Seconds of work of each rank."""
    work_s = np.zeros(ranks)
    for rank, *_, start_s, end_s in spans:
        work_s[rank] += end_s - start_s
    return work_s


def _played(function: Callable, fault_of: Callable) -> Verdict | None:
    """The first fault over all cases."""
    for case in CASES:
        spans, schedule = spans_of_case(case)
        size = f"{case[1]}, {schedule.ranks} ranks, {schedule.micro_batches} micro-batches"
        shown = f"{case[0]}: {size}"
        try:
            answer = function(list(spans), schedule.ranks)
        except Exception as error:
            return of_error(error, shown)
        if fault := fault_of(answer, spans, schedule.ranks):
            return wrong(*fault, shown)
    return None


# --- How much is idle ------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class MeasuredBubble(Exercise):
    """The idle share of all ranks' time."""

    name: str = "measured bubble"
    chapter: str = "lab 05"
    signature: str = "def my_bubble(spans, ranks): return share"
    task: str = (
        "`spans` is a list of (rank, kind, stage, micro_batch, start_s, end_s), all work "
        "of a step, on a clock that began some time before. Return the bubble as a share "
        "of total: from the first start of all to the last end of all, which part of the "
        "time of all ranks is idle?"
    )
    lines: int = 5
    target: str = "right on 2 to 4 ranks, with stages that differ, to 6 digits"

    def grade(self, function: Callable) -> Verdict:
        fault = _played(function, _bubble_fault)
        return fault or right(f"right: the bubble of all {len(CASES)} timelines")


def idle_share(spans: Spans, ranks: int) -> float:
    """The answer: of the time that all ranks have, the share in which nothing is done."""
    first_s, last_s = min(s[4] for s in spans), max(s[5] for s in spans)
    work_s = sum(end_s - start_s for *_, start_s, end_s in spans)
    return 1 - work_s / (ranks * (last_s - first_s))


def _bubbles(spans: Spans, ranks: int) -> tuple[float, dict[float, str]]:
    """The right answer, and wrong ones with what they are."""
    work = busy_s(spans, ranks)
    first, last = min(s[4] for s in spans), max(s[5] for s in spans)
    all_s = ranks * (last - first)
    own_s = sum(
        max(s[5] for s in spans if s[0] == r) - min(s[4] for s in spans if s[0] == r)
        for r in range(ranks)
    )
    share = idle_share(spans, ranks)
    return share, {
        all_s / work.sum() - 1: "that is idle time to time of work, the bubble of ideal",
        1 - work.sum() / (ranks * last): "the step begins with its first span, not at 0",
        1 - work.sum() / own_s: "each rank is counted from its own first start only",
        100 * share: "that is in per cent, asked is a share",
        work.sum() / all_s: "that is the share that is busy",
        share * ranks: "that is the sum over ranks, asked is a share of the time of all",
    }


def _bubble_fault(answer, spans: Spans, ranks: int) -> tuple[str, str] | None:
    if isinstance(answer, bool) or not isinstance(answer, Real):
        return (
            "wrong shape",
            f"wrong shape: {answer!r:.60} was returned, should be a number",
        )
    share, known = _bubbles(spans, ranks)
    close = lambda value: abs(answer - value) <= 1e-6 * max(1.0, abs(value))
    if close(share):
        return None
    why = next((says for value, says in known.items() if close(value)), "")
    says = f"wrong values: {float(answer):.4f}, should be {share:.4f}"
    return "wrong values", f"{says}; {why}" if why else says


# --- Whose fault it is -----------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class SlowRank(Exercise):
    """Bubble or imbalance, and where."""

    name: str = "slow rank"
    chapter: str = "lab 05"
    signature: str = "def my_slow_rank(spans, ranks): return rank or None"
    task: str = (
        "`spans` as in `measured bubble`. Is the pipeline uneven? Return the rank that "
        f"works longest, if it works more than {FAR} times as long as the average rank. "
        "Return None where no rank does: then it is bubble, or messages, that idles."
    )
    lines: int = 5
    target: str = "right on 2 to 4 ranks, where spans are a few per cent off"

    def grade(self, function: Callable) -> Verdict:
        fault = _played(function, _rank_fault)
        return fault or right(f"right: {len(CASES)} timelines, {_uneven()} of them uneven")


def slow_rank(spans: Spans, ranks: int) -> int | None:
    """The answer: who works more than FAR (1.1) times as long as the average rank."""
    work = busy_s(spans, ranks)
    slowest = int(work.argmax())
    return slowest if work[slowest] > FAR * work.mean() else None


def _uneven() -> int:
    played: Iterator = (spans_of_case(case) for case in CASES)
    return sum(slow_rank(spans, s.ranks) is not None for spans, s in played)


def _rank_fault(answer, spans: Spans, ranks: int) -> tuple[str, str] | None:
    if answer is not None and not (is_whole(answer) and answer in range(ranks)):
        rule = f"a rank from 0 to {ranks - 1}, or None"
        return "wrong shape", f"wrong shape: {answer!r:.60} was returned, should be {rule}"
    should = slow_rank(spans, ranks)
    if answer == should:
        return None
    work = busy_s(spans, ranks)
    parts = ", ".join(f"{s / work.mean():.2f}" for s in work)
    said = "no rank" if answer is None else f"rank {answer}"
    true = "none is slow" if should is None else f"rank {should} is"
    says = f"wrong values: {said}, but {true}; to the average they work {parts}"
    return "wrong values", says


EXERCISES = (MeasuredBubble(), SlowRank())
