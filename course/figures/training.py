"""Loss curves of several runs that should be one curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from course.figures import theme

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


def loss_curves(
    losses: Mapping[str, Sequence[float]], title: str = "Loss of each step"
) -> go.Figure:
    """One curve for each run. The first is a line; the others are open marks around it.

    Later marks are larger, so that curves which coincide are all seen.
    losses: {name: loss of each step}, up to 8 of them
    Raises ValueError where there is none, too many, or where numbers of steps differ.
    """
    if not 1 <= len(losses) <= len(_SYMBOLS) + 1:
        raise ValueError(f"losses must hold 1 to {len(_SYMBOLS) + 1} runs")
    if len({len(curve) for curve in losses.values()}) > 1:
        raise ValueError("losses must have equally many steps in all runs")
    figure = theme.new_figure(title, x="step", y="loss (nats a token)")
    figure.add_traces([_curve(i, *run) for i, run in enumerate(losses.items())])
    figure.update_xaxes(dtick=max(1, len(next(iter(losses.values()))) // 10))
    return figure


def _curve(number: int, name: str, losses: Sequence[float]) -> dict:
    color = theme.PALETTE[number % len(theme.PALETTE)]
    look = {"mode": "lines", "line": {"color": theme.INK, "width": 2}}
    if number:
        size = 5 + 3.5 * number
        line = {"width": 1.5, "color": color}
        marker = {"symbol": f"{_SYMBOLS[number - 1]}-open", "size": size, "line": line}
        look = {"mode": "markers", "marker": marker | {"color": color}}
    return {
        "type": "scatter",
        "name": name,
        "x": list(range(1, len(losses) + 1)),
        "y": list(losses),
        "hovertext": [f"{name}, step {i}: {y:.6f}" for i, y in enumerate(losses, start=1)],
        "hoverinfo": "text",
        **look,
    }
