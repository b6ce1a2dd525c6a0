"""The bars of a timeline: what kind each event is, and fewer bars where there are too many.

Pure data, no plotly. A `Bar` is one event, or several of one kind too close to tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from course.worlds.run import Event

# Looked for in this order, in the name without "_" and case. The name of an NCCL kernel,
# such as ncclDevKernel_AllReduce_Sum_f32_RING_LL, holds the word too.
_COMMUNICATION = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
# Whole words only: the op threshold_backward alone would be the odd one out in a backward
# pass whose other ops are mm and add. In short, as pipeline schedules write them: F3, B3,
# and I3, W3 where the backward is split.
_COMPUTE = {
    r"(?i:\b(recompute|checkpoint)\b)": "recompute",
    r"(?i:\bbackward\b)|^[BIW]\d": "backward",
    r"(?i:\bforward\b)|^F\d": "forward",
    r"(?i:\b(optimi[sz]er|adamw?|sgd)\b)": "optimizer",
}
KINDS = (
    *("forward", "backward", "recompute", "optimizer", "compute"),
    *_COMMUNICATION.values(),
    "communication",
)


@lru_cache(maxsize=4096)
def kind(lane: str, name: str) -> str:
    """Which of KINDS a name is; the lane itself where the name says no more."""
    if lane == "communication":
        plain = name.lower().replace("_", "")
        return next((k for word, k in _COMMUNICATION.items() if word in plain), lane)
    return next((k for pattern, k in _COMPUTE.items() if re.search(pattern, name)), lane)


@dataclass(frozen=True, slots=True)
class Bar:
    """Events of one rank, lane, row and kind, from the first start to the last end.

    bytes: of all its events. count: how many events. busy_s: seconds without the gaps.
    """

    rank: int
    lane: str
    row: int
    kind: str
    name: str
    start_s: float
    end_s: float
    busy_s: float
    bytes: int = 0
    peer: int | None = None
    where: str = ""
    count: int = 1


def bars(events: Sequence[Event], event_rows: Sequence[int]) -> list[Bar]:
    """One bar an event, in the row given for it."""
    return [
        Bar(
            e.rank,
            e.lane,
            row,
            kind(e.lane, e.name),
            e.name,
            e.start_s,
            e.end_s,
            e.seconds,
            e.bytes,
            e.peer,
            e.where,
        )
        for e, row in zip(events, event_rows, strict=True)
    ]


def thinned(many: Sequence[Bar], max_bars: int, span_s: float) -> list[Bar]:
    """At most about max_bars bars: neighbours of one kind are joined over small gaps.

    A gap is small below 1/1500 of the span, less than a pixel; if that does not suffice,
    below twice that, and so on up to 1/50.
    """
    gap_s, few = span_s / 1500, list(many)
    while len(few) > max_bars and gap_s < span_s / 50:
        few = _joined(few, gap_s)
        gap_s *= 2
    return few


def _joined(many: Iterable[Bar], gap_s: float) -> list[Bar]:
    groups: dict[tuple, list[Bar]] = {}
    for b in sorted(many, key=lambda b: b.start_s):
        group = groups.setdefault((b.rank, b.lane, b.row, b.kind), [])
        if group and b.start_s - group[-1].end_s <= gap_s:
            group[-1] = _both(group[-1], b)
        else:
            group.append(b)
    return [b for group in groups.values() for b in group]


def _both(a: Bar, b: Bar) -> Bar:
    same = lambda x, y, otherwise: x if x == y else otherwise
    return replace(
        a,
        name=same(a.name, b.name, a.kind),
        end_s=max(a.end_s, b.end_s),
        busy_s=a.busy_s + b.busy_s,
        bytes=a.bytes + b.bytes,
        peer=same(a.peer, b.peer, None),
        where=same(a.where, b.where, ""),
        count=a.count + b.count,
    )
