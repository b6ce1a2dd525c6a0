"""Where to draw events: a row for each, and the pair of events that a message joins.

No torch: plain data in and out, for the timeline and the trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from course.worlds.run import Event, Message

# how many events on each side of a message's start are looked at to find its own
NEIGHBOURS = 6


def rows(events: Sequence[Event]) -> list[int]:
    """A row for each event of one lane, such that no two in a row overlap.

    Row 0 while nothing overlaps. An event prefers a row whose last event has its name,
    so that sends stay with sends.
    """
    order = sorted(range(len(events)), key=lambda i: (events[i].start_s, events[i].name))
    last: list[Event] = []
    chosen = [0] * len(events)
    for i in order:
        row = _first_free(last, events[i])
        last[row : row + 1] = [events[i]]
        chosen[i] = row
    return chosen


def _first_free(last: list[Event], event: Event) -> int:
    # a hair of overlap is rounding: two events that touch share a row
    now = event.start_s * (1 + 1e-12) + 1e-15
    free = [row for row, before in enumerate(last) if before.end_s <= now]
    if not free:
        return len(last)
    return next((row for row in free if last[row].name == event.name), free[0])


def rows_by_lane(events: Sequence[Event]) -> list[int]:
    """`rows`, for events of many ranks and lanes at once; the order is kept."""
    groups: dict[tuple[int, str], list[int]] = {}
    for i, e in enumerate(events):
        groups.setdefault((e.rank, e.lane), []).append(i)
    chosen = [0] * len(events)
    for members in groups.values():
        for i, row in zip(members, rows([events[i] for i in members]), strict=True):
            chosen[i] = row
    return chosen


def joined(
    events: Sequence[Event], messages: Sequence[Message]
) -> list[tuple[int | None, int | None]]:
    """For each message, which event sent it and which received it: indices, or None.

    The event must lie on the right rank, name the other rank as its peer or no peer at
    all, and share some time with the message. A send is preferred at one end, a receive
    at the other, then whatever shares the most time.
    """
    finder = _Finder(events)
    return [
        (
            finder.find(m, m.source, m.destination, "send"),
            finder.find(m, m.destination, m.source, "recv"),
        )
        for m in messages
    ]


class _Finder:
    """Communication events by (rank, peer), each list by start time."""

    def __init__(self, events: Sequence[Event]):
        self.events = events
        self.groups: dict[tuple[int, int | None], list[int]] = {}
        for i in sorted(range(len(events)), key=lambda i: events[i].start_s):
            if events[i].lane == "communication":
                key = events[i].rank, events[i].peer
                self.groups.setdefault(key, []).append(i)
        self.starts = {k: [events[i].start_s for i in g] for k, g in self.groups.items()}

    def find(self, m: Message, rank: int, peer: int, name: str) -> int | None:
        near = [*self._near((rank, peer), m.start_s), *self._near((rank, None), m.start_s)]
        shared = {i: _shared_s(self.events[i], m) for i in near}
        fit = [i for i in near if shared[i] >= 0]
        key = lambda i: (name in self.events[i].name, shared[i])
        return max(fit, key=key, default=None)

    def _near(self, key, start_s: float) -> list[int]:
        at = bisect_right(self.starts.get(key, ()), start_s)
        return self.groups.get(key, [])[max(0, at - NEIGHBOURS) : at + NEIGHBOURS]


def _shared_s(e: Event, m: Message) -> float:
    return min(e.end_s, m.end_s) - max(e.start_s, m.start_s)
