"""A part of a run, as a run: what came after a call that all ranks made."""

from __future__ import annotations

from dataclasses import replace

from course.worlds.run import Event, Run


def after(run: Run, name: str = "barrier") -> Run:
    """What each rank did after its first event of that name, on a clock from 0.

    Ranks of a real world begin a run one after another, so let them meet first: the clock
    starts when the first of them leaves the meeting. Bytes and messages are left out,
    since they are counted for whole runs. Raises ValueError where a rank has no such
    event, NotMetered where the run was not recorded.
    """
    left_s = [_end_of_first(run, rank, name) for rank in range(run.ranks)]
    origin_s = min(left_s)
    kept = [e for e in run.events if e.start_s >= left_s[e.rank] and e.name != name]
    events = tuple(_earlier(e, origin_s) for e in kept)
    named = () if run._spans is None else run.spans
    spans = tuple(_earlier(s, origin_s) for s in named if s.start_s >= left_s[s.rank])
    ends = [
        max((e.end_s for e in events if e.rank == r), default=0.0) for r in range(run.ranks)
    ]
    return replace(
        run,
        seconds=max(ends),
        seconds_per_rank=tuple(ends),
        _events=events,
        _spans=spans,
        _messages=None,
        _bytes_sent=None,
        _bytes_received=None,
        _bytes_per_link=None,
        _memory_curve=None,
    )


def _end_of_first(run: Run, rank: int, name: str) -> float:
    ends = [e.end_s for e in run.events if e.rank == rank and e.name == name]
    if not ends:
        raise ValueError(
            f"name must be an event of every rank: rank {rank} has no {name!r}"
        )
    return min(ends)


def _earlier(event: Event, by_s: float) -> Event:
    return replace(event, start_s=event.start_s - by_s, end_s=event.end_s - by_s)
