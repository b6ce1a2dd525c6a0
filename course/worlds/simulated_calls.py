"""Calls of the ranks, and how they are matched: sends with receives, collectives by order.

A group of ranks sees its collectives in one order. The k-th call of each rank belongs
to the group's k-th collective: if the calls differ, the reader gets both lines.
No tensor is touched here.
"""

from __future__ import annotations

import sys
from collections import deque

from course.worlds.places import Place, is_readers
from course.worlds.verdict import names

_is_readers: dict[str, bool] = {}  # by file name; asked for on every call


def readers_line(frame) -> tuple | None:
    """(code, line number) of the innermost frame that is the reader's, or None."""
    while frame is not None:
        if is_readers_code(frame.f_code):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def is_readers_code(code) -> bool:
    name = code.co_filename
    mine = _is_readers.get(name)
    if mine is None:
        mine = _is_readers[name] = is_readers(name)
    return mine


def place_of(line: tuple | None) -> Place | None:
    return None if line is None else Place(line[0].co_filename, line[1], line[0].co_name)


class Call:
    """One call of one rank: what it gave, and what it is still owed.

    end_s is None until the call is done; `wait` and `wake` of the clock look at it.
    """

    __slots__ = (
        "kind", "rank", "group", "group_rank", "inputs", "outputs", "op", "root", "tag",
        "peer", "nbytes", "clock_s", "start_s", "end_s", "line", "source", "shape", "dtype",
        "sequence", "splits", "during",
    )  # fmt: skip

    def __init__(
        self, kind: str, group, inputs: list, outputs: list, like, *,
        op=None, root=None, tag=None, peer=None,
    ):  # fmt: skip
        self.kind, self.group = kind, group
        self.rank, self.group_rank = group.rank_in_world, group.rank_in_group
        self.inputs, self.outputs = inputs, outputs
        self.op, self.root, self.tag, self.peer = op, root, tag, peer
        self.nbytes = 0
        self.clock_s = self.start_s = self.end_s = None
        self.source = self.sequence = self.splits = None
        self.shape = None if like is None else like.shape
        self.dtype = None if like is None else like.dtype
        self.line = readers_line(sys._getframe(2))
        self.during = sys.exc_info()[1]  # an error on its way, in a "finally"

    def describe(self) -> str:
        """'all_reduce of float32 [4, 2], sum'."""
        text = self.kind
        if self.peer is not None:
            way = "to" if self.kind == "send" else "from"
            text += f" {way} rank {self.group.members[self.peer]}"
        elif self.kind == "recv":
            text += " from any rank"
        if self.splits is not None:
            text += f" of {str(self.dtype).removeprefix('torch.')}"
        elif self.shape is not None:
            text += f" of {str(self.dtype).removeprefix('torch.')} {list(self.shape)}"
        if self.kind in ("send", "recv"):
            tag = f", tag {self.tag}" if self.tag else ""
            return text + tag + self.group.shared.suffix
        if self.op:
            text += f", {self.op}"
        if self.root is not None:
            text += f", root {self.group.members[self.root]}"
        if self.splits is not None:
            text += f", sends {self.splits[0]} elements, receives {self.splits[1]}"
        return text + self.group.shared.suffix

    def key(self) -> tuple:
        """What must be the same on all ranks of a collective."""
        shape = None if self.kind in ("all_to_all", "barrier") else self.shape
        return self.kind, self.op, self.root, shape, self.dtype


class Collective:
    """The k-th collective of a group, as it fills with the calls of its ranks."""

    __slots__ = ("calls", "first", "missing", "sequence")

    def __init__(self, size: int, sequence: int):
        self.calls: list[Call | None] = [None] * size
        self.first: Call | None = None
        self.missing = size
        self.sequence = sequence

    def join(self, call: Call) -> bool:
        """Add a rank's call; True when it was the last."""
        call.sequence = self.sequence
        if self.first is None:
            self.first = call
        elif call.key() != self.first.key():
            raise MismatchedCalls(self.first, call)
        self.calls[call.group_rank] = call
        self.missing -= 1
        return self.missing == 0


class MismatchedCalls(Exception):
    """Two calls that should be the same are not; the report is made from them."""

    def __init__(self, first: Call, second: Call, rule: str = ""):
        super().__init__(rule)
        self.first, self.second, self.rule = first, second, rule


class GroupCalls:
    """All open calls of one group, shared by the ranks that are its members."""

    def __init__(self, name: str, members: list[int], number: int = 0):
        self.name, self.members = name, members
        self.number = number  # 0 is the world, then as they were made
        self.makers: dict[int, tuple | None] = {}  # rank: the line that made it
        self.collectives: dict[int, Collective] = {}
        self.next_sequence = [0] * len(members)
        # (source, destination, tag), in group ranks: calls not yet matched
        self.sends: dict[tuple, deque] = {}
        self.receives: dict[tuple, deque] = {}
        self.any_source: dict[tuple, deque] = {}  # (destination, tag)

    def __str__(self) -> str:
        return (
            f"group {self.number} ({names(self.members)})" if self.number else "the world"
        )

    @property
    def suffix(self) -> str:
        """Which group a call is of, where it is not the world."""
        return f", in {self}" if self.number else ""

    def not_made_by(self) -> list[int]:
        """Members that never called new_group for it."""
        return [rank for rank in self.members if rank not in self.makers]

    def collective(self, call: Call) -> list[Call] | None:
        """Join the rank's next collective; all its calls, once it is complete."""
        sequence = self.next_sequence[call.group_rank]
        self.next_sequence[call.group_rank] += 1
        open_ = self.collectives.get(sequence)
        if open_ is None:
            open_ = self.collectives[sequence] = Collective(len(self.members), sequence)
        if not open_.join(call):
            return None
        del self.collectives[sequence]
        return open_.calls

    def send(self, call: Call) -> Call | None:
        """The receive that waits for this send, or None: then the send waits."""
        key = (call.group_rank, call.peer, call.tag)
        receive = _pop(self.receives, key)
        if receive is None:
            self.sends.setdefault(key, deque()).append(call)
        return receive

    def receive(self, call: Call) -> Call | None:
        """The send that waits for this receive, or None: then the receive waits."""
        if call.peer is None:
            mine = (call.group_rank, call.tag)
            self.any_source.setdefault(mine, deque()).append(call)
            return None
        key = (call.peer, call.group_rank, call.tag)
        send = _pop(self.sends, key)
        if send is None:
            self.receives.setdefault(key, deque()).append(call)
        return send

    def next_from_any(self, mine: tuple) -> tuple[float, tuple] | None:
        """When a receive from any rank meets its send, and that send's key; or None.

        mine: (destination, tag). Of the sends that wait, the one that was called first.
        """
        receives = self.any_source.get(mine)
        waiting = [key for key, queue in self.sends.items() if key[1:] == mine and queue]
        if not receives or not waiting:
            return None
        first = min(waiting, key=lambda key: (self.sends[key][0].clock_s, key))
        return max(receives[0].clock_s, self.sends[first][0].clock_s), first

    def take_from_any(self, mine: tuple, key: tuple) -> tuple[Call, Call]:
        return self.sends[key].popleft(), self.any_source[mine].popleft()

    def open_messages(self) -> list[Call]:
        """Sends and receives that nobody has answered."""
        queues = (*self.sends.values(), *self.receives.values(), *self.any_source.values())
        return [call for queue in queues for call in queue]

    def open_collectives(self) -> list[Collective]:
        return [self.collectives[k] for k in sorted(self.collectives)]


def _pop(queues: dict, key: tuple) -> Call | None:
    queue = queues.get(key)
    return queue.popleft() if queue else None


def check_pair(send: Call, receive: Call) -> None:
    """A send and a receive that meet must agree on what is sent."""
    sent, wanted = send.inputs[0], receive.outputs[0]
    if sent.numel() != wanted.numel() or sent.dtype != wanted.dtype:
        raise MismatchedCalls(
            send, receive, "both must have the same dtype and as many elements"
        )


def check_splits(calls: list[Call]) -> None:
    """What rank i keeps for rank j must be what j expects from i."""
    for i, sender in enumerate(calls):
        for j, receiver in enumerate(calls):
            if sender.splits[0][j] != receiver.splits[1][i]:
                rule = (
                    "as much as one rank sends to another, that one must expect from it: "
                    f"rank {sender.rank} sends {sender.splits[0][j]} to rank "
                    f"{receiver.rank}, which expects {receiver.splits[1][i]}"
                )
                raise MismatchedCalls(sender, receiver, rule)
