"""Loads of experts in pictures: over the steps of a training, and side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from course.costs import moe
from course.figures import theme
from course.quantities import write

KEPT, DROPPED = theme.BLUE, theme.VERMILLION
MOST_STEPS = 15
GAP = 0.16  # between two panels, as a share of the height

# --- Loads over training ------------------------------------------------------------------


def load_over_steps(runs: Mapping[str, Sequence[Sequence[float]]]) -> go.Figure:
    """Share of copies of each expert, step by step, a panel for each run.

    runs: {"without balance loss": loads, ...}, loads as (steps, experts), from any router

    One colour an expert, repeated after eight, in one area from step to step. Of more
    than 15 steps every second is drawn, or every third, ...
    Raises ValueError for no runs, or loads that have no positive sum in some step.
    """
    tables = {name: _shares(name, loads) for name, loads in runs.items()}
    if not tables:
        raise ValueError("runs must hold one run or more")
    panels = _panels(len(tables))
    notes = [
        _panel_name(name, shares[-1], top)
        for (name, shares), (_, top) in zip(tables.items(), panels, strict=True)
    ]
    figure = theme.new_figure(
        "Where the copies go, step by step",
        height=150 + 190 * len(tables),
        margin={"t": 80},
        legend={"traceorder": "normal"},
        annotations=notes,
        **_axes(panels),
    )
    figure.add_traces(
        [area for row, t in enumerate(tables.values()) for area in _areas(row, t)]
    )
    return figure


def _shares(name: str, loads) -> np.ndarray:
    table = np.asarray(loads, float)
    if table.ndim != 2 or not table.size or (table < 0).any():
        raise ValueError(
            f"runs must hold loads as (steps, experts), 0 or more, in {name!r}"
        )
    sums = table.sum(axis=1, keepdims=True)
    if (sums <= 0).any():
        raise ValueError(f"runs must route at least one copy in every step, in {name!r}")
    return table / sums


def _panels(rows: int) -> list[tuple[float, float]]:
    """(low, high) of each panel on the page, the first on top."""
    height = (1 - GAP * (rows - 1)) / rows
    tops = [1 - row * (height + GAP) for row in range(rows)]
    return [(max(0.0, top - height), top) for top in tops]


def _mark(row: int) -> str:
    return "" if row == 0 else str(row + 1)


def _axes(panels) -> dict:
    layout, last = {}, len(panels) - 1
    for row, span in enumerate(panels):
        title = "training step" if row == last else ""
        layout[f"xaxis{_mark(row)}"] = {
            "anchor": f"y{_mark(row)}",
            "title": {"text": title},
        }
        layout[f"yaxis{_mark(row)}"] = {
            "anchor": f"x{_mark(row)}",
            "domain": span,
            "range": [0, 1],
            "tickformat": ".0%",
            "title": {"text": "share of copies"},
        }
    return layout


def _panel_name(name: str, last, top: float) -> dict:
    used = moe.effective_experts(last)
    return {
        "text": f"<b>{name}</b>: in the end as good as {used:.1f} of {len(last)} experts",
        "showarrow": False,
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": top,
        "yref": "paper",
        "yanchor": "bottom",
    }


def _areas(row: int, shares) -> list[dict]:
    """A last point closes the last step: an area needs two ends."""
    stride = -(-len(shares) // MOST_STEPS)
    steps = np.arange(0, len(shares), stride)
    ends = np.append(steps, steps[-1] + stride)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"expert {expert}",
            "legendgroup": f"expert {expert}",
            "showlegend": row == 0,
            "x": ends,
            "y": np.append(shares[steps, expert], shares[steps[-1], expert]),
            "xaxis": f"x{_mark(row)}",
            "yaxis": f"y{_mark(row)}",
            "stackgroup": f"panel {row}",
            "fillcolor": theme.rank_color(expert),
            "line": {"shape": "hv", "color": theme.CARD, "width": 0.5},
            "hovertemplate": f"expert {expert}, step %{{x}}: %{{y:.1%}}<extra></extra>",
        }
        for expert in range(shares.shape[1])
    ]


# --- Histogram ----------------------------------------------------------------------------


def load_histogram(
    loads: Sequence[float], slots: float | None = None, title: str = ""
) -> tuple[go.Figure, str]:
    """Load of every expert, the largest first, against the mean and the capacity.

    loads: copies of each expert       slots: capacity, None where nothing is dropped
    """
    figure = theme.new_figure(
        title or "Load of each expert", x="expert, the hottest first", y="copies"
    )
    order = sorted(range(len(loads)), key=lambda e: -loads[e])
    heights = np.array([loads[e] for e in order], float)
    room = np.inf if slots is None else slots
    parts = {
        "worked on": (np.minimum(heights, room), KEPT, ""),
        "dropped": (np.maximum(heights - room, 0), DROPPED, "/"),
    }
    for name, (part, color, hatch) in parts.items():
        if part.any():
            figure.add_trace(_load_bars(order, part, name, color, hatch))
    even = moe.imbalance(loads)
    _add_level(figure, heights.mean(), "mean", theme.INK, "dot")
    if slots is not None:
        _add_level(figure, slots, "capacity", theme.GREEN, "dash")
    ticks = list(range(0, len(order), -(-len(order) // 16)))
    figure.update_xaxes(tickvals=ticks, ticktext=[str(order[t]) for t in ticks])
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(barmode="stack", bargap=0.15, showlegend=True)
    return figure, _load_words(loads, slots, even)


def _load_words(loads, slots, largest: float) -> str:
    dead = sum(load == 0 for load in loads)
    lost = 0.0 if slots is None else moe.dropped_share(loads, slots)
    return (
        f"Largest load: {largest:.2f} times the mean. As good as "
        f"{moe.effective_experts(loads):.1f} of {len(loads)} experts in use, {dead} get "
        f"nothing. Dropped: {write(100 * lost, '%')}."
    )


def _load_bars(order, part, name: str, color: str, hatch: str) -> dict:
    return {
        "type": "bar",
        "name": name,
        "x": list(range(len(order))),
        "y": part.tolist(),
        "marker": {
            "color": color,
            "pattern": {"shape": hatch, "fillmode": "overlay", "fgcolor": theme.CARD},
        },
        "hovertext": [
            f"expert {e}: {v:.0f} {name}" for e, v in zip(order, part, strict=True)
        ],
        "hoverinfo": "text",
    }


def _add_level(figure: go.Figure, level: float, name: str, color: str, dash: str) -> None:
    ends = [-0.5, len(figure.data[0].x) - 0.5]
    figure.add_scatter(
        x=ends,
        y=[level] * 2,
        mode="lines",
        name=f"{name}: {write(level)}",
        line={"color": color, "dash": dash, "width": 2},
        hoverinfo="name",
    )
