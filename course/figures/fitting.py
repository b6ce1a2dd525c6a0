"""Which algorithm is fastest at which size: one row for each prediction and measurement."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from course.figures import theme
from course.quantities import write_bytes

SHORT = {"recursive_doubling": "double", "halving_doubling": "halve"}  # fit in a cell
# in the order of their colours in `course.figures.measured`, when all four are timed
KNOWN = ("ring", "tree", "recursive_doubling", "halving_doubling")
ROW_HEIGHT, FRAME_HEIGHT = 46, 190


def fastest_rows(
    rows: Mapping[str, Mapping[int, str]], *, title: str = "The fastest, by message size"
) -> go.Figure:
    """A row of coloured cells for each {nbytes: name of the fastest}, the first on top.

    rows: {label: {nbytes: name}}, all with the same sizes
    Raises ValueError where there is no row, or sizes differ.
    """
    sizes = _sizes(rows)
    names = list(dict.fromkeys([*KNOWN, *(row[m] for row in rows.values() for m in sizes)]))
    x = {
        "tickvals": list(range(len(sizes))),
        "ticktext": [write_bytes(m) for m in sizes],
        "title": {"text": "message size, the whole buffer"},
        "showgrid": False,
        "tickangle": 0,
        "tickfont": {"size": 10},
    }
    y = {"autorange": "reversed", "showgrid": False, "ticks": "", "ticklabelstandoff": 6}
    height = FRAME_HEIGHT + ROW_HEIGHT * len(rows)
    figure = theme.new_figure(title, height=height, xaxis=x, yaxis=y)
    return figure.add_trace(_cells(rows, sizes, names))


def _sizes(rows) -> list[int]:
    if not rows:
        raise ValueError("rows must hold at least one row")
    first, *others = [sorted(row) for row in rows.values()]
    if not first or any(sizes != first for sizes in others):
        raise ValueError("rows must all hold the same sizes, at least one")
    return first


def _cells(rows, sizes: list[int], names: list[str]) -> go.Heatmap:
    width = 1 / len(names)
    colors = [
        theme.tint(theme.PALETTE[i % len(theme.PALETTE)], 0.45) for i in range(len(names))
    ]
    scale = [(k * width, c) for i, c in enumerate(colors) for k in (i, i + 1)]
    words = [[SHORT.get(row[m], row[m]) for m in sizes] for row in rows.values()]
    return go.Heatmap(
        z=[[names.index(row[m]) for m in sizes] for row in rows.values()],
        x=list(range(len(sizes))),
        y=list(rows),
        text=words,
        texttemplate="%{text}",
        textfont={"size": 10, "color": theme.INK},
        customdata=[[write_bytes(m) for m in sizes] for _ in rows],
        hovertemplate="%{y}, %{customdata}: %{text}<extra></extra>",
        colorscale=scale,
        zmin=-0.5,
        zmax=len(names) - 0.5,
        showscale=False,
        xgap=2,
        ygap=4,
    )
