"""What an action of a pipeline schedule needs first, and who waits for whom for ever."""

from __future__ import annotations

from course.parallel.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)


def awaited(schedule: Schedule, action: Action) -> tuple[Action, ...]:
    """What an action needs first: none, or one of these (a backward may be split)."""
    kind, s, i = action
    if kind == WEIGHT_GRADIENT:
        return (Action(INPUT_GRADIENT, s, i),)
    if kind == FORWARD:
        return (Action(FORWARD, s - 1, i),) if s else ()
    if s + 1 < schedule.stages:
        return (Action(BACKWARD, s + 1, i), Action(INPUT_GRADIENT, s + 1, i))
    return (Action(FORWARD, s, i),)


def deadlock(schedule: Schedule, stuck: dict[int, int]) -> str:
    """Who waits for what. stuck: for each rank, the place in its order."""
    waits = [_wait(schedule, rank, at) for rank, at in stuck.items()]
    more = f"; and {len(waits) - 4} more ranks" if len(waits) > 4 else ""
    return f"the schedule deadlocks: {'; '.join(waits[:4])}{more}"


def _wait(schedule: Schedule, rank: int, at: int) -> str:
    action = schedule.orders[rank][at]
    choices = awaited(schedule, action)
    other = schedule.owner[choices[0].stage]
    there = [choice for choice in choices if choice in schedule.orders[other]]
    where = "later on the same rank" if other == rank else f"on rank {other}"
    return f"rank {rank} at {action} waits for {(there or choices)[0]} " + (
        where if there else "which no rank does"
    )
