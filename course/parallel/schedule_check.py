"""What is wrong with a schedule, in sentences that name the rank and the action.

names      every action is of a known kind, stage and micro-batch, on the stage's rank
once       one forward, and one backward or one pair of its halves
order      nothing before what it needs, on one rank
deadlock   no circle of ranks that wait for each other
memory     no rank holds more than it may
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from course.parallel.schedule_time import Times, lay_out, stashed
from course.parallel.schedule_waits import awaited
from course.parallel.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)

KINDS = (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
SHOWN = 5  # problems that an error tells


def problems(schedule: Schedule, most_in_flight: float | None = None) -> list[str]:
    """What is wrong, a sentence each; none where the schedule is right.

    most_in_flight: how many micro-batches of one chunk a rank may hold at once

    Later questions are asked only where earlier ones found nothing: names, then once and
    order, then deadlock and memory.
    """
    found = list(_names(schedule))
    found = found or [*_once(schedule), *_local_order(schedule)]
    return found or [*_deadlock(schedule), *_memory(schedule, most_in_flight)]


def require_valid(schedule: Schedule) -> Schedule:
    """The schedule itself. Raises ValueError with what is wrong."""
    found = problems(schedule)
    if found:
        more = f" And {len(found) - SHOWN} more." if len(found) > SHOWN else ""
        raise ValueError(f"{schedule.name}: {' '.join(found[:SHOWN])}{more}")
    return schedule


def _names(schedule: Schedule) -> Iterator[str]:
    for stage, rank in enumerate(schedule.owner):
        if rank not in range(schedule.ranks):
            yield f"Stage {stage} is on rank {rank}, but there are {schedule.ranks} ranks."
            return
    for rank, order in enumerate(schedule.orders):
        for at, action in enumerate(order):
            wrong = _misnamed(schedule, rank, action)
            if wrong:
                yield f"Rank {rank}, action {at}: {action} {wrong}."


def _misnamed(schedule: Schedule, rank: int, action: Action) -> str:
    kind, stage, micro_batch = action
    if kind not in KINDS:
        return f"is of no kind of {', '.join(KINDS)}"
    if stage not in range(schedule.stages):
        return f"is of stage {stage}, but there are {schedule.stages} stages"
    if micro_batch not in range(schedule.micro_batches):
        return f"is of micro-batch {micro_batch}, but there are {schedule.micro_batches}"
    if schedule.owner[stage] != rank:
        return f"is of stage {stage}, which is on rank {schedule.owner[stage]}"
    return ""


def _once(schedule: Schedule) -> Iterator[str]:
    done = [Counter(order) for order in schedule.orders]
    for rank, counts in enumerate(done):
        for action, times in counts.items():
            if times > 1:
                yield f"Rank {rank} does {action} {times} times."
    for stage, rank in enumerate(schedule.owner):
        for i in range(schedule.micro_batches):
            missing = _missing(done[rank], stage, i)
            if missing:
                yield f"Rank {rank} {missing}."


def _missing(counts: Counter, stage: int, micro_batch: int) -> str:
    forward, whole, inputs, weights = (Action(kind, stage, micro_batch) for kind in KINDS)
    if forward not in counts:
        return f"never does {forward}"
    if whole in counts:
        halves = [half for half in (inputs, weights) if half in counts]
        return f"does {halves[0]}, which {whole} contains" if halves else ""
    if inputs not in counts:
        return f"never does {inputs if weights in counts else whole}"
    return "" if weights in counts else f"never does {weights}"


def _local_order(schedule: Schedule) -> Iterator[str]:
    """What a rank does before something that it needs from itself."""
    for rank, order in enumerate(schedule.orders):
        place = {order[at]: at for at in reversed(range(len(order)))}
        for action, at in place.items():
            for need in _own_needs(schedule, action):
                if place.get(need, at) > at:
                    yield (
                        f"Rank {rank} does {action} (action {at}) before {need} "
                        f"(action {place[need]}), which it needs."
                    )


def _own_needs(schedule: Schedule, action: Action) -> tuple[Action, ...]:
    """What it waits for, and of a backward the forward whose activations it uses."""
    used = (action._replace(kind=FORWARD),) if action.kind in "BI" else ()
    return tuple(dict.fromkeys(awaited(schedule, action) + used))


def _deadlock(schedule: Schedule) -> Iterator[str]:
    try:
        lay_out(schedule, Times())
    except ValueError as error:
        message = str(error)
        yield f"{message[0].upper()}{message[1:]}."


def _memory(schedule: Schedule, most: float | None) -> Iterator[str]:
    if most is None:
        return
    for rank, order in enumerate(schedule.orders):
        held = stashed(order)
        if held.max(initial=0) > most:
            at = int((held > most).argmax()) // 2
            yield (
                f"Rank {rank} holds {held.max():g} micro-batches at once, more than "
                f"{most:g}: the first too many is {order[at]} (action {at})."
            )


# --- Messages ----------------------------------------------------------------------------


def crossings(schedule: Schedule) -> list[str]:
    """Messages that one rank needs from another in a different order than it sends them.

    No fault in a schedule. But where messages are matched in the order of the calls, as
    in NCCL, and each is received when it is needed, the wrong one arrives or both hang:
    then sends need tags, or receives must be posted in the order of the sends.
    """
    sent, needed = _messages(schedule)
    found = []
    for (source, target), messages in needed.items():
        pairs = zip(sent[source, target], messages, strict=False)
        apart = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if apart:
            first, wanted = apart
            found.append(f"Rank {source} sends {first} when rank {target} needs {wanted}.")
    return found


def _messages(schedule: Schedule) -> tuple[dict, dict]:
    """For each sending and receiving rank, the messages as sent, and as needed."""
    sent, needed = defaultdict(list), defaultdict(list)
    ends = (None, *schedule.owner, None)  # stage s is at s + 1
    for rank, order in enumerate(schedule.orders):
        for kind, stage, i in order:
            if kind == WEIGHT_GRADIENT:
                continue
            what, step = ("activations", 1) if kind == FORWARD else ("the gradient", -1)
            source, target = ends[stage + 1 - step], ends[stage + 1 + step]
            if source not in (None, rank):
                needed[source, rank].append(f"{what} of micro-batch {i} for stage {stage}")
            if target not in (None, rank):
                message = f"{what} of micro-batch {i} for stage {stage + step}"
                sent[rank, target].append(message)
    return sent, needed
