"""Which messages a pipeline schedule needs, and where in each rank's order they stand.

A message is needed where an action's output is used on another rank:

    activation   what a forward of stage s gives, used by the forward of stage s + 1
    gradient     what a backward of stage s gives (of its input), used by stage s - 1

Nothing here runs or names torch: orders go in, orders come out. `parallel.pipeline`
executes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from course.parallel.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)

SEND, RECEIVE = "send", "receive"


class Transfer(NamedTuple):
    """One end of a message: the sender's or the receiver's.

    made_by:  the action whose output is sent; by it both ends know the message
    peer:     the rank at the other end
    """

    kind: str
    made_by: Action
    peer: int

    def __str__(self) -> str:
        way = "to" if self.kind == SEND else "from"
        return f"{self.kind} {self.made_by} {way} {self.peer}"


Order = Sequence[Action | Transfer]  # of one rank


def gives_gradient(action: Action) -> bool:
    """Whether the action makes the gradient of its stage's input."""
    return action.kind in (BACKWARD, INPUT_GRADIENT)


def made_before(action: Action) -> tuple[str, int, int] | None:
    """What an action needs from another stage, (kind, stage, micro-batch), or None.

    A gradient is named "B" here, whether a backward makes it or only its first half.
    """
    kind, stage, i = action
    if kind == FORWARD:
        return (FORWARD, stage - 1, i)
    return (BACKWARD, stage + 1, i) if gives_gradient(action) else None


def output_of(action: Action) -> tuple[str, int, int] | None:
    """What an action makes for another stage, named as in `made_before`."""
    if action.kind == FORWARD:
        return tuple(action)
    return (BACKWARD, *action[1:]) if gives_gradient(action) else None


def message_of(action: Action, owner: Sequence[int]) -> tuple[Transfer, Transfer] | None:
    """The two ends of the message that follows an action: send, receive. None: no message.

    owner: for each stage, its rank
    """
    if action.kind == WEIGHT_GRADIENT:
        return None
    to = action.stage + (1 if action.kind == FORWARD else -1)
    if not 0 <= to < len(owner) or owner[to] == owner[action.stage]:
        return None
    here, there = owner[action.stage], owner[to]
    return Transfer(SEND, action, there), Transfer(RECEIVE, action, here)


def with_messages(schedule: Schedule) -> tuple[tuple[Action | Transfer, ...], ...]:
    """Each rank's order with its sends and receives put in. It cannot deadlock.

    All work of all ranks is put in one line: in rounds, a rank does at most one action in
    a round, and only one whose input came in an earlier round. Within a round come
    forwards, then their messages, then backwards, then their messages. An action or a
    message of that line needs only what stands before it; and each rank's order is its
    own part of the line. So whatever ranks have done so far, the first thing in the line
    that is not done can be done: its ranks have nothing else before it. That holds even
    where a send blocks until it is received (gloo, large messages on NCCL), and where all
    messages of a rank, or of a pair of ranks, go one after the other, as on NCCL: both
    ends of each pair have them in the same order.

    Raises ValueError where the orders of the ranks wait for one another for ever.
    """
    orders = [[] for _ in range(schedule.ranks)]
    for actions in _rounds(schedule):
        # the later rank first in backwards, so that a rank receives before it sends
        for forwards, direction in ((True, 1), (False, -1)):
            of_kind = [a for a in actions if (a.kind == FORWARD) == forwards][::direction]
            for action in of_kind:
                orders[schedule.owner[action.stage]].append(action)
            for ends in filter(None, (message_of(a, schedule.owner) for a in of_kind)):
                send, receive = ends
                orders[receive.peer].append(send)
                orders[send.peer].append(receive)
    return tuple(map(tuple, orders))


def _rounds(schedule: Schedule) -> Iterator[list[Action]]:
    """The actions of each round, in the order of ranks."""
    left = [deque(order) for order in schedule.orders]
    done: set = set()

    def ready(action: Action) -> bool:
        kind, stage, i = action
        needs = {made_before(action)} - {None, (FORWARD, -1, i)}
        needs -= {(BACKWARD, schedule.stages, i)}
        if kind != FORWARD:  # and what its own stage did before
            needs.add((BACKWARD if kind == WEIGHT_GRADIENT else FORWARD, stage, i))
        return needs <= done

    while any(left):
        actions = [order.popleft() for order in left if order and ready(order[0])]
        if not actions:
            waiting = ", ".join(str(order[0]) for order in left if order)
            raise ValueError(f"schedule must come to an end: all wait, before {waiting}")
        yield actions
        done.update(map(output_of, actions))


def receives_early(order: Order) -> tuple[Action | Transfer, ...]:
    """Receives are posted before the action that they follow, so that both overlap.

    Only for receives that do not block. Messages keep their order among themselves, and
    nobody waits for more than before, so nothing new can deadlock. The first activation
    of a stage stays where it is: it may come with its shape, and the rank waits for that.
    """
    early, begun = [], set()
    for item in order:
        first = _is_receive(item) and item.made_by[:2] not in begun
        if _is_receive(item):
            begun.add(item.made_by[:2])
        may_move = _is_receive(item) and not (first and item.made_by.kind == FORWARD)
        if may_move and early and isinstance(early[-1], Action):
            early.insert(-1, item)
        else:
            early.append(item)
    return tuple(early)


def _is_receive(item: Action | Transfer) -> bool:
    return isinstance(item, Transfer) and item.kind == RECEIVE


# --- What goes wrong ---------------------------------------------------------------------


def with_messages_naively(schedule: Schedule) -> tuple[tuple[Action | Transfer, ...], ...]:
    """Each receive just before its use, each send just after its action.

    Where a send blocks until it is received, 1F1B deadlocks: of two neighbours one sends
    an activation, the other a gradient, and neither gets to its receive.
    """
    makers = {output_of(a): a for order in schedule.orders for a in order}
    orders = []
    for actions in schedule.orders:
        order: list[Action | Transfer] = []
        for action in actions:
            before = makers.get(made_before(action)) if made_before(action) else None
            ends = before and message_of(before, schedule.owner)
            order += [ends[1]] if ends else []
            order.append(action)
            ends = message_of(action, schedule.owner)
            order += [ends[0]] if ends else []
        orders.append(tuple(order))
    return tuple(orders)


def standstill(orders: Sequence[Order]) -> list[int]:
    """How far each rank gets where sends and receives block: an index into its order.

    A rank that gets through has the length of its order. A send and a receive meet when
    both ranks stand at them; else both wait. Work takes no time here: that changes who
    waits when, not who waits for ever.
    """
    at = [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for rank in range(len(orders)):
            while _step(orders, at, rank):
                moved = True
    return at


def _step(orders: Sequence[Order], at: list[int], rank: int) -> bool:
    """Let a rank do what comes next in its order, with its peer; False: it must wait."""
    item = _now(orders, at, rank)
    if isinstance(item, Transfer):
        other = SEND if item.kind == RECEIVE else RECEIVE
        if _now(orders, at, item.peer) != Transfer(other, item.made_by, rank):
            return False
        at[item.peer] += 1
    elif item is None:
        return False
    at[rank] += 1
    return True


def _now(orders: Sequence[Order], at: list[int], rank: int) -> Action | Transfer | None:
    known = 0 <= rank < len(orders) and at[rank] < len(orders[rank])
    return orders[rank][at[rank]] if known else None
