"""One or two timelines of boxes under each other on one axis of time, bars under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from course.figures import theme
from course.figures.memory import PATTERN
from course.figures.pipeline_boxes import Boxes
from course.figures.pipeline_traces import traces
from course.quantities import write

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
# pixels: the rows of all timelines together, a row at least and at most, the bars, a
# line of a heading, an axis with its title, the margins, the width for labels
ROWS_PX, LEAST_ROW_PX, MOST_ROW_PX = 384, 5, 32
BARS_PX, LINE_PX, AXIS_PX = 100, 18, 44
TOP_PX, BOTTOM_PX, PLOT_PX = 36, 78, 640
BAR_LOOK = ((theme.GREEN, ""), (theme.PURPLE, "/"))
MOST_BAR_NUMBERS = 32
MOST_HOVERS = 4000  # boxes that say what they are, or the page slows down
AXES = ("y", "y2")
# measuring labels, to make room for them or hide some, takes longer than drawing all boxes
QUICK = {"automargin": False, "ticklabeloverflow": "allow"}
HELD = "most activations held at once by each rank, in micro-batches"


@dataclass(frozen=True)
class Panel:
    """One timeline and the lines above it."""

    heading: str
    boxes: Boxes


def draw(
    title: str,
    panels: Sequence[Panel],
    held: Mapping[str, Sequence[float]],
) -> go.Figure:
    """The figure.

    held: name -> for each rank, the most micro-batches that it holds at once
    """
    span_s = max(panel.boxes.makespan_s for panel in panels)
    unit = next((u for u, size in UNITS.items() if span_s >= size), "s")
    second, row_px = 1 / UNITS[unit], _row_px(panels)
    inside_px, domains = _domains(panels, row_px, bool(held))
    hovers = sum(len(panel.boxes) for panel in panels) <= MOST_HOVERS
    data = []
    for axis, panel in zip(AXES, panels, strict=False):
        plot_px = PLOT_PX * panel.boxes.makespan_s / (span_s or 1)
        scale = (second, unit, row_px, plot_px)
        data += traces(panel.boxes, *scale, hovers=hovers, yaxis=axis)
    layout = _layout(title, inside_px, bool(held))
    layout |= _time_axes(panels, domains, span_s * second, f"time ({unit})")
    if held:
        data += _bars(held)
        layout |= _bar_axes(held, domains[-1])
        layout["annotations"].append(_heading(HELD, domains[-1][1]))
    return go.Figure(data=_legend_once(data), layout=layout)


def _layout(title: str, inside_px: float, bars: bool) -> dict:
    below_px = 32 if bars else 52
    return {
        "template": "ring_to_rack",
        "title": {"text": title},
        "height": inside_px + TOP_PX + BOTTOM_PX,
        "margin": {"t": TOP_PX, "b": BOTTOM_PX},
        "legend": {"orientation": "h", "y": -below_px / inside_px, "yanchor": "top"},
        "barmode": "group",
        "hoverdistance": 30,
    }


def _time_axes(panels, domains, end: float, title: str) -> dict:
    """One x axis under the last timeline, a y axis of ranks for each, and the headings."""
    last = AXES[len(panels) - 1]
    axes = {
        "xaxis": {"range": [0, 1.005 * end], "anchor": last, "title": {"text": title}}
        | QUICK,
        "annotations": [],
    }
    for name, panel, domain in zip(AXES, panels, domains, strict=False):
        rows = theme.rank_axis(panel.boxes.ranks)
        rows |= {"domain": domain, "ticklabelstandoff": 4} | QUICK
        axes[f"yaxis{name[1:]}"] = rows
        axes["annotations"].append(_heading(panel.heading, domain[1]))
    return axes


def _legend_once(data: list[dict]) -> list[dict]:
    """Each name stands in the legend once."""
    seen = set()
    for trace in data:
        name = trace.get("name")
        trace.setdefault("showlegend", bool(name) and name not in seen)
        seen.add(name)
    return data


def _row_px(panels: Sequence[Panel]) -> float:
    rows = sum(panel.boxes.ranks for panel in panels)
    return min(max(ROWS_PX / rows, LEAST_ROW_PX), MOST_ROW_PX)


def _domains(panels, row_px: float, bars: bool) -> tuple[float, list[list[float]]]:
    """Height in pixels of all that lies between the margins, and each one's share of it."""
    heights = [row_px * panel.boxes.ranks for panel in panels] + [BARS_PX] * bars
    tops = []
    at = 0.0
    for i, height in enumerate(heights):
        lines = 1 if i == len(panels) else 1 + panels[i].heading.count("<br>")
        at += 10 + LINE_PX * lines + (AXIS_PX if i == len(panels) else 0)
        tops.append(at)
        at += height
    return at, [[1 - (t + h) / at, 1 - t / at] for t, h in zip(tops, heights, strict=True)]


def _heading(text: str, top: float) -> dict:
    return {
        "text": text,
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "align": "left",
        "font": {"size": 13},
    }


def _bars(held: Mapping[str, Sequence[float]]) -> list[dict]:
    drawn = []
    for (name, values), (color, hatch) in zip(held.items(), BAR_LOOK, strict=False):
        few = len(values) * len(held) <= MOST_BAR_NUMBERS
        drawn.append(
            {
                "type": "bar",
                "name": name,
                "x": list(range(len(values))),
                "y": list(values),
                "xaxis": "x2",
                "yaxis": "y3",
                "marker": {
                    "color": color,
                    "pattern": PATTERN | {"shape": hatch},
                },
                "text": [write(value) for value in values] if few else None,
                "textposition": "outside",
                "cliponaxis": False,
                "showlegend": len(held) > 1,
                "legendrank": 3000,
                "hovertemplate": "rank %{x}: %{y:.4g}<extra></extra>",
            }
        )
    return drawn


def _bar_axes(held: Mapping[str, Sequence[float]], domain: list[float]) -> dict:
    ranks = len(next(iter(held.values())))
    across = theme.rank_axis(ranks)
    across |= {"range": across["range"][::-1], "anchor": "y3", "tickangle": 0}
    if ranks > 8:
        numbers = [text.removeprefix("rank ") for text in across["ticktext"]]
        across |= {"ticktext": ["rank 0", *numbers[1:]]}
    end = max(v for values in held.values() for v in values)
    up = {"domain": domain, "anchor": "x2", "range": [0, 1.3 * end], "nticks": 4}
    return {"xaxis2": across | QUICK, "yaxis3": up | QUICK}
