"""A schedule laid out in time: when each action starts and ends, what idles, what is held.

Nothing runs. A rank does its actions in its own order, one at a time, each as soon as
what it needs is there:

    forward of stage s           the forward of stage s - 1, same micro-batch
    backward, input gradient     the same of stage s + 1 (last stage: its own forward)
    weight gradient              its own input gradient

What comes from another rank comes message_s later. Messages do not queue for the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from course.parallel.schedule_waits import deadlock
from course.parallel.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)

NOT_YET = -1.0  # the end of an action that has not run


@dataclass(frozen=True)
class Times:
    """Seconds of the work on one micro-batch in one stage of average size.

    A full backward takes input_gradient_s + weight_gradient_s.
    stage_weights: for each stage, how much heavier than average; equal by default
    message_s:     from the end of an action until another rank can use its output
    blocking:      whether a message also keeps the rank that sends it from working
    """

    forward_s: float = 1.0
    input_gradient_s: float = 1.0
    weight_gradient_s: float = 1.0
    stage_weights: tuple[float, ...] | None = None
    message_s: float = 0.0
    blocking: bool = False

    def __post_init__(self):
        for name in ("forward_s", "input_gradient_s", "weight_gradient_s", "message_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if any(not weight >= 0 for weight in self.stage_weights or ()):
            raise ValueError(f"stage_weights must be 0 or more, not {self.stage_weights}")

    @property
    def backward_s(self) -> float:
        """Both halves of a backward."""
        return self.input_gradient_s + self.weight_gradient_s

    @property
    def kinds_s(self) -> dict[str, float]:
        """Seconds of each kind of action, in a stage of average size."""
        return {
            FORWARD: self.forward_s,
            BACKWARD: self.backward_s,
            INPUT_GRADIENT: self.input_gradient_s,
            WEIGHT_GRADIENT: self.weight_gradient_s,
        }

    def divided(self, chunks: int) -> Times:
        """The same model cut finer: each stage is 1/chunks of the work, messages stay.

        With it, schedules of one and of several chunks on a rank do the same work.
        """
        if chunks < 1:
            raise ValueError(f"chunks must be 1 or more, not {chunks}")
        return replace(
            self,
            forward_s=self.forward_s / chunks,
            input_gradient_s=self.input_gradient_s / chunks,
            weight_gradient_s=self.weight_gradient_s / chunks,
        )


@dataclass(frozen=True)
class Timeline:
    """When each rank does what.

    start_s, end_s: for each rank, an array over the actions of its order
    """

    schedule: Schedule
    times: Times
    start_s: tuple[np.ndarray, ...]
    end_s: tuple[np.ndarray, ...]

    @cached_property
    def makespan_s(self) -> float:
        """From the start of the first action of any rank to the end of the last."""
        return max((float(end[-1]) for end in self.end_s if len(end)), default=0.0)

    @cached_property
    def busy_s(self) -> np.ndarray:
        """Seconds of work of each rank. Sending is not work."""
        pairs = zip(self.end_s, self.start_s, strict=True)
        return np.array([(end - start).sum() for end, start in pairs])

    @cached_property
    def span_s(self) -> np.ndarray:
        """Of each rank, from its own first start to its own last end."""
        pairs = zip(self.start_s, self.end_s, strict=True)
        return np.array([end[-1] - start[0] if len(end) else 0.0 for start, end in pairs])

    @property
    def idle_s(self) -> np.ndarray:
        """Seconds in which each rank does no work, until the last rank is done."""
        return self.makespan_s - self.busy_s

    def bubble_of_total(self) -> float:
        """Idle rank-seconds / all rank-seconds: (p-1)/(m+p-1) for GPipe and 1F1B."""
        return float(self.idle_s.mean() / self.makespan_s) if self.makespan_s else 0.0

    def bubble_of_ideal(self) -> float:
        """Idle rank-seconds / busy rank-seconds: (p-1)/m for GPipe and 1F1B.

        Ideal: no rank ever idles, and the work is spread evenly.
        """
        busy = self.busy_s.sum()
        return float(self.idle_s.sum() / busy) if busy else 0.0

    def bubble_of_span(self) -> float:
        """(longest span - average work) / longest span: 0 in ZB-H2 and ZB-V at best.

        The bubble rate of Qi et al. 2023, arXiv 2401.10241, Table 5: each rank's time is
        counted from its own start, for a rank that is done can begin the next step. It is
        bubble_of_total where rank 0 starts first and ends last, as in GPipe and 1F1B.
        """
        cost = self.span_s.max()
        return float(1 - self.busy_s.mean() / cost) if cost else 0.0

    def in_flight(self, rank: int, kept: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Stashed activations of a rank over time: seconds, and how many from then on.

        Counted in micro-batches of one chunk. A forward stashes at its start, a backward
        frees at its end. A split backward frees 1 - kept at the end of its input gradient
        and kept at the end of its weight gradient. kept is M_W / M_B of Qi et al. 2023
        (arXiv 2401.10241, Table 1): 32h / (34h + 5as) without recomputation, close to 1
        where attention stores no scores. 1: nothing is freed before the weight gradient.
        """
        counts = stashed(self.schedule.orders[rank], kept)
        seconds = np.empty(len(counts))
        seconds[0::2], seconds[1::2] = self.start_s[rank], self.end_s[rank]
        return seconds, counts

    def peak_in_flight(self, kept: float = 1.0) -> np.ndarray:
        """The most that each rank holds at once. Unit and kept as for in_flight."""
        orders = self.schedule.orders
        return np.array([stashed(order, kept).max(initial=0.0) for order in orders])


def stashed(order: Sequence[Action], kept: float = 1.0) -> np.ndarray:
    """What a rank holds from the start and from the end of each action: two for each.

    The times do not matter, only the order. Unit and kept as for in_flight.
    """
    if not 0 <= kept <= 1:
        raise ValueError(f"kept must be from 0 to 1, not {kept}")
    freed = {BACKWARD: -1.0, INPUT_GRADIENT: kept - 1.0, WEIGHT_GRADIENT: -kept}
    changes = np.empty(2 * len(order))
    changes[0::2] = [action.kind == FORWARD for action in order]
    changes[1::2] = [freed.get(action.kind, 0.0) for action in order]
    return changes.cumsum()


def lay_out(schedule: Schedule, times: Times) -> Timeline:
    """Start and end of every action. Takes about half a microsecond for each.

    Raises ValueError where the order can never be worked off, naming who waits for what,
    and where an action has a kind, stage or micro-batch that the schedule has not.
    """
    _check_names(schedule, times)
    needs = _needs(schedule, times)
    starts, ends = _walk(schedule, needs)
    stuck = {r: len(ended) for r, ended in enumerate(ends)}
    stuck = {r: at for r, at in stuck.items() if at < len(schedule.orders[r])}
    if stuck:
        raise ValueError(deadlock(schedule, stuck))
    return Timeline(
        schedule, times, tuple(map(np.array, starts)), tuple(map(np.array, ends))
    )


class _Need(NamedTuple):
    """Of one kind of action in one stage, for micro-batch 0."""

    key: int  # what it waits for, or -1
    own_key: int
    seconds: float
    delay_s: float  # of the message that brings what it waits for
    sending_s: float  # for which its own message keeps the rank


def _needs(schedule: Schedule, times: Times) -> dict[str, list[_Need]]:
    """For each kind, for each stage. A backward and an input gradient are one key."""
    m, stages, owner = schedule.micro_batches, schedule.stages, schedule.owner
    weights = times.stage_weights or (1.0,) * stages
    message = lambda s, t: times.message_s if owner[s] != owner[t] else 0.0
    needs = {kind: [] for kind in times.kinds_s}
    for s in range(stages):
        down, up = max(s - 1, 0), min(s + 1, stages - 1)
        forward, gradient, weight = s * m, (stages + s) * m, (2 * stages + s) * m
        later = gradient + m if s + 1 < stages else forward
        edges = {
            FORWARD: (forward - m if s else -1, forward, message(s, down), message(s, up)),
            BACKWARD: (later, gradient, message(s, up), message(s, down)),
            INPUT_GRADIENT: (later, gradient, message(s, up), message(s, down)),
            WEIGHT_GRADIENT: (gradient, weight, 0.0, 0.0),
        }
        for kind, (key, own_key, delay, sending) in edges.items():
            sending = sending if times.blocking else 0.0
            seconds = times.kinds_s[kind] * weights[s]
            needs[kind].append(_Need(key, own_key, seconds, delay, sending))
    return needs


def _walk(schedule: Schedule, needs) -> tuple[list[list[float]], list[list[float]]]:
    """Each rank goes on until it must wait; who ends an action wakes who waits for it."""
    starts, ends = ([[] for _ in schedule.orders] for _ in range(2))
    done = [NOT_YET] * (3 * schedule.stages * schedule.micro_batches)
    free = [0.0] * schedule.ranks
    waiting: dict[int, list[int]] = {}
    awake = list(range(schedule.ranks))
    while awake:
        rank = awake.pop()
        order, start, end, now = schedule.orders[rank], starts[rank], ends[rank], free[rank]
        for at in range(len(end), len(order)):
            kind, stage, i = order[at]
            key, own_key, seconds, delay, sending = needs[kind][stage]
            if key >= 0:
                ready = done[key + i]
                if ready == NOT_YET:
                    waiting.setdefault(key + i, []).append(rank)
                    break
                now = max(now, ready + delay)
            start.append(now)
            now += seconds
            end.append(now)
            done[own_key + i] = now
            now += sending
            awake += waiting.pop(own_key + i, ())
        free[rank] = now
    return starts, ends


def _check_names(schedule: Schedule, times: Times) -> None:
    weights = times.stage_weights
    if weights is not None and len(weights) != schedule.stages:
        raise ValueError(
            f"stage_weights must be one for each of {schedule.stages} stages, "
            f"not {len(weights)}"
        )
    known = (times.kinds_s, range(schedule.stages), range(schedule.micro_batches))
    for rank, order in enumerate(schedule.orders):
        for at, (field, allowed) in enumerate(zip(Action._fields, known, strict=True)):
            strange = {action[at] for action in order} - set(allowed)
            if strange:
                raise ValueError(f"rank {rank} has an action of {field} {strange.pop()}")
