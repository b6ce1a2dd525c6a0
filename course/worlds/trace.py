"""A run as a Chrome trace: open the file at ui.perfetto.dev or chrome://tracing.

Format: "Trace Event Format" (Google, JSON object form). A rank is a process, a lane is
one of its threads; what overlaps within a lane gets a thread more. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from course.worlds.rows import joined, rows_by_lane
from course.worlds.run import LANES, Event, Message, NotMetered, Run

# thread ids of a lane: LANES.index(lane) * ROWS_PER_LANE + row
ROWS_PER_LANE = 1000
US_PER_S = 1e6
# a flow must end inside its slice, and a slice does not hold its own last instant
NANOSECOND_S = 1e-9


def write_trace(run: Run, path: str | Path) -> Path:
    """Write the run as Chrome trace JSON and return the path."""
    path = Path(path)
    path.write_text(json.dumps(chrome_trace(run), allow_nan=False), encoding="utf-8")
    return path


def chrome_trace(run: Run) -> dict:
    """The run in Chrome's trace event format, as a dict that `json` can write.

    "X" slices for events, "s" and "f" pairs for messages, "C" counters for memory, the
    last two where the run has them. Raises NotMetered where the run was not recorded.
    """
    events = run.events
    threads = [
        _thread(e.lane, row) for e, row in zip(events, rows_by_lane(events), strict=True)
    ]
    return {
        "traceEvents": [
            *_process_names(run),
            *_thread_names(events, threads),
            *(_slice(e, tid) for e, tid in zip(events, threads, strict=True)),
            *_flows(events, threads, _if_metered(run, "messages")),
            *_counters(_if_metered(run, "memory_curve")),
        ],
        "displayTimeUnit": "ns",
        "otherData": {"world": run.world, "ranks": run.ranks, "seconds": run.seconds},
    }


def events_from_trace(trace: dict) -> tuple[Event, ...]:
    """The events of a dict made by `chrome_trace`, by start time, then rank.

    Times come back to within rounding, everything else exactly. Raises ValueError where
    the dict is not such a trace.
    """
    if not isinstance(trace, dict) or "traceEvents" not in trace:
        raise ValueError('trace must be a dict with a "traceEvents" list')
    slices = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    events = [_event(s) for s in slices]
    return tuple(sorted(events, key=lambda e: (e.start_s, e.rank)))


def _event(s: dict) -> Event:
    if s.get("cat") not in LANES:
        raise ValueError(f'"cat" of a slice must be one of {LANES}, not {s.get("cat")!r}')
    args = s["args"]
    return Event(
        rank=s["pid"],
        lane=s["cat"],
        name=s["name"],
        start_s=s["ts"] / US_PER_S,
        end_s=(s["ts"] + s["dur"]) / US_PER_S,
        bytes=args["bytes"],
        peer=args.get("peer"),
        where=args.get("where", ""),
    )


def _if_metered(run: Run, name: str):
    try:
        return getattr(run, name)
    except NotMetered:
        return ()


def _thread(lane: str, row: int) -> int:
    return LANES.index(lane) * ROWS_PER_LANE + row


def _process_names(run: Run) -> Iterator[dict]:
    for rank in range(run.ranks):
        yield {
            "ph": "M",
            "pid": rank,
            "name": "process_name",
            "args": {"name": f"rank {rank}"},
        }
        yield {
            "ph": "M",
            "pid": rank,
            "name": "process_sort_index",
            "args": {"sort_index": rank},
        }


def _thread_names(events: Sequence[Event], threads: Sequence[int]) -> Iterator[dict]:
    for rank, tid in sorted({(e.rank, t) for e, t in zip(events, threads, strict=True)}):
        lane, row = LANES[tid // ROWS_PER_LANE], tid % ROWS_PER_LANE
        name = f"{lane} {row + 1}" if row else lane
        where = {"ph": "M", "pid": rank, "tid": tid}
        yield {**where, "name": "thread_name", "args": {"name": name}}
        yield {**where, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _slice(e: Event, tid: int) -> dict:
    args = {"bytes": e.bytes}
    if e.peer is not None:
        args["peer"] = e.peer
    if e.where:
        args["where"] = e.where
    return {
        "ph": "X",
        "pid": e.rank,
        "tid": tid,
        "cat": e.lane,
        "name": e.name,
        "ts": e.start_s * US_PER_S,
        "dur": max(0.0, e.end_s - e.start_s) * US_PER_S,
        "args": args,
    }


def _flows(events, threads, messages: Sequence[Message]) -> Iterator[dict]:
    """An arrow per message, tied to the slices at both ends where there are any."""
    ends = joined(events, messages)
    for number, (m, (sender, receiver)) in enumerate(zip(messages, ends, strict=True)):
        flow = {"id": number, "cat": "message", "name": m.name}
        start = _flow_end(m.source, m.start_s, sender, events, threads)
        finish = _flow_end(m.destination, m.end_s, receiver, events, threads)
        yield {"ph": "s", **flow, **start, "args": {"bytes": m.bytes}}
        yield {"ph": "f", "bp": "e", **flow, **finish}


def _flow_end(rank: int, at_s: float, i: int | None, events, threads) -> dict:
    tid = _thread("communication", 0)
    if i is not None:
        tid = threads[i]
        at_s = max(events[i].start_s, min(at_s, events[i].end_s - NANOSECOND_S))
    return {"pid": rank, "tid": tid, "ts": at_s * US_PER_S}


def _counters(curves) -> Iterator[dict]:
    for rank, curve in enumerate(curves):
        for seconds, nbytes in curve:
            yield {
                "ph": "C",
                "pid": rank,
                "name": "live tensor bytes",
                "ts": seconds * US_PER_S,
                "args": {"bytes": nbytes},
            }
