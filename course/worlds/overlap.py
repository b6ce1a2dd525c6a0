"""How each rank spent its time: computing, communicating, both at once, or neither.

Interval arithmetic on events, no torch. For every rank, with T the run's seconds:

    compute_s + exposed_s + idle_s     = T
    communication_s - overlapped_s     = exposed_s
"""

from __future__ import annotations

from collections.abc import Iterable

from course.worlds.run import Run

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time covered once: disjoint intervals, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """The time covered by both. Each argument is disjoint and in order, as from `union`."""
    common: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def covered_s(intervals: list[Interval]) -> float:
    """Seconds covered by disjoint intervals."""
    return sum(end - start for start, end in intervals)


def total_s(run: Run) -> float:
    """Seconds from the start of the run to its last sign of life."""
    return max([run.seconds, *(e.end_s for e in run.events)])


def busy(run: Run) -> tuple[dict[str, float], ...]:
    """Seconds that each rank spent in each way, one dict per rank.

    compute_s:        at least one computation was under way
    communication_s:  at least one communication was under way
    overlapped_s:     both were: communication that cost nothing
    exposed_s:        communication alone: what a step waits for
    idle_s:           neither, up to the end of the slowest rank

    Raises NotMetered where the run was not recorded.
    """
    lanes: dict[tuple[int, str], list[Interval]] = {}
    for e in run.events:
        lanes.setdefault((e.rank, e.lane), []).append((e.start_s, e.end_s))
    total = total_s(run)
    return tuple(
        _busy_rank(
            lanes.get((r, "compute"), []), lanes.get((r, "communication"), []), total
        )
        for r in range(run.ranks)
    )


def _busy_rank(compute, communication, total: float) -> dict[str, float]:
    compute, communication = union(compute), union(communication)
    compute_s, communication_s = covered_s(compute), covered_s(communication)
    overlapped_s = covered_s(intersection(compute, communication))
    exposed_s = communication_s - overlapped_s
    return {
        "compute_s": compute_s,
        "communication_s": communication_s,
        "overlapped_s": overlapped_s,
        "exposed_s": exposed_s,
        # rounding may leave a hair below zero
        "idle_s": max(0.0, total - compute_s - exposed_s),
    }
