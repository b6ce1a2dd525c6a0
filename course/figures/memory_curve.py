"""Live tensor bytes over time, as steps: the curve under a timeline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import plotly.graph_objects as go

from course.figures import theme
from course.quantities import write_bytes, write_seconds

Curve = Sequence[tuple[float, int]]

# more ranks than this: only the one with the highest peak and the one with the lowest
MOST_CURVES = 4
MOST_POINTS = 600
DASHES = ("solid", "dash", "dot", "dashdot")
UNITS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}


def add_memory(figure: go.Figure, curves, ranks, x_per_s: float, end_s: float, row: int):
    """Draw the memory curves of some ranks in that row of the figure.

    curves:  one list per rank of (seconds, live bytes), as `Run.memory_curve`
    x_per_s: units of the x axis in a second
    end_s:   the last value holds until then
    """
    peak = max((_peak(curves[r]) for r in ranks), default=0)
    unit = next((u for u, size in UNITS.items() if peak >= size), "B")
    for number, (rank, name) in enumerate(_chosen(curves, ranks).items()):
        held = coarser(in_time(curves[rank]), MOST_POINTS)
        held = [*held, (max(end_s, held[-1][0]), held[-1][1])] if held else []
        figure.add_scatter(
            x=[s * x_per_s for s, _ in held],
            y=[n / UNITS[unit] for _, n in held],
            mode="lines",
            line={"shape": "hv", "width": 2, "dash": DASHES[number % len(DASHES)]},
            line_color=theme.rank_color(number),
            # plotly would cut the corners of steps that lie close together
            line_simplify=False,
            hovertext=[_hover(rank, s, n) for s, n in held],
            hoverinfo="text",
            name=name,
            legendrank=3000 + number,
            row=row,
            col=1,
        )
    figure.update_yaxes(title_text=unit, rangemode="tozero", row=row, col=1)


def _chosen(curves, ranks: Sequence[int]) -> dict[int, str]:
    """Which ranks to draw, and what to call each."""
    first = ranks[0]
    if len(ranks) > 1 and all(curves[r] == curves[first] for r in ranks):
        return {first: "memory, each rank"}
    if len(ranks) <= MOST_CURVES:
        return {r: f"memory, rank {r}" for r in ranks}
    peaks = {r: _peak(curves[r]) for r in ranks}
    high, low = max(peaks, key=peaks.get), min(peaks, key=peaks.get)
    return {high: f"most memory: rank {high}", low: f"least memory: rank {low}"}


def _peak(curve: Curve) -> int:
    return max((nbytes for _, nbytes in curve), default=0)


def in_time(curve: Curve) -> list[tuple[float, int]]:
    """The curve with no step back in time: a change is not seen before the one before it.

    Tensors of a side stream are made and freed at that stream's time, not the rank's.
    """
    times = accumulate((seconds for seconds, _ in curve), max)
    return [(seconds, nbytes) for seconds, (_, nbytes) in zip(times, curve, strict=True)]


def coarser(curve: list[tuple[float, int]], most: int) -> list[tuple[float, int]]:
    """At most about `most` points: of each stretch of time the lowest and the highest.

    The peak stays, to the byte.
    """
    if len(curve) <= most:
        return curve
    start, end = curve[0][0], curve[-1][0]
    times = [s for s, _ in curve]
    kept = [curve[0]]
    stretches = most // 2
    for k in range(stretches):
        low_s = start + (end - start) * k / stretches
        high_s = start + (end - start) * (k + 1) / stretches
        first = 0 if k == 0 else bisect_right(times, low_s)
        last = len(curve) if k == stretches - 1 else bisect_right(times, high_s)
        part = curve[first:last]
        if part:
            ends = {part.index(min(part, key=_bytes)), part.index(max(part, key=_bytes))}
            kept += [part[i] for i in sorted(ends)]
    return [*kept, curve[-1]]


def _bytes(point: tuple[float, int]) -> int:
    return point[1]


def _hover(rank: int, seconds: float, nbytes: int) -> str:
    return f"rank {rank} holds {write_bytes(nbytes)}<br>from {write_seconds(seconds)}"
