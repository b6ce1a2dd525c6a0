"""Ranks as rows, what they hold as numbered cells: the picture of every collective.

Ranks run from top to bottom, from 0. A cell's colour says whose data it is: one colour
a rank, deepening blue for a sum of several ranks, yellow for the sum of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from course.figures import theme

ROW_PX = 44
COMPLETE = theme.tint(theme.YELLOW, 0.75)
MOST_RANKS = 16


@dataclass(frozen=True)
class Cell:
    """What one rank holds in one place.

    text:    what is printed in the cell
    sources: the ranks whose data is in it; none = nothing there yet
    hover:   the sentence under the pointer, after "rank r, piece j: "
    """

    text: str = ""
    sources: tuple[int, ...] = ()
    hover: str = "nothing yet"


NOTHING = Cell()
Rows = Sequence[Sequence[Cell]]


def held(value, *sources: int) -> Cell:
    """A cell with a value, made of these ranks' data."""
    whose = "from rank " if len(sources) == 1 else "sum of ranks "
    return Cell(f"{value}", sources, f"{value}, {whose}{', '.join(map(str, sources))}")


def rank_grid(
    panels: dict[str, Rows], *, title: str, column: str = "piece", by: str = "source"
) -> go.Figure:
    """One grid per panel, side by side: {"before": rows, "after": rows}.

    rows:   one per rank, each with the same number of cells
    column: what a column is: "piece", "element"
    by:     "source" colours a cell by its rank; "share" by how many ranks are in it

    Raises ValueError for no panels, or panels of different shapes.
    """
    shapes = {(len(rows), *{len(row) for row in rows}) for rows in panels.values()}
    if len(shapes) != 1 or len(shape := next(iter(shapes))) != 2:
        raise ValueError("panels must be grids of one shape")
    if by not in ("source", "share"):
        raise ValueError(f'by must be "source" or "share", not {by!r}')
    figure = make_subplots(1, len(panels), subplot_titles=list(panels), shared_yaxes=True)
    for place, rows in enumerate(panels.values(), start=1):
        figure.add_trace(_cells(rows, column, by), row=1, col=place)
    return _laid_out(figure, title, column, *shape)


def _cells(rows: Rows, column: str, by: str) -> go.Heatmap:
    """A heatmap whose z only numbers the colours."""
    ranks = len(rows)
    colors = [[_color(cell, ranks, by) for cell in row] for row in rows]
    palette = list(dict.fromkeys(c for row in colors for c in row))
    longest = max(len(cell.text) for row in rows for cell in row)
    return go.Heatmap(
        z=[[palette.index(c) for c in row] for row in colors],
        text=[[cell.text for cell in row] for row in rows],
        customdata=[
            [f"rank {r}, {column} {j}: {cell.hover}" for j, cell in enumerate(row)]
            for r, row in enumerate(rows)
        ],
        texttemplate="%{text}",
        textfont={"size": 15 if longest < 6 else 11, "color": theme.INK},
        hovertemplate="%{customdata}<extra></extra>",
        colorscale=_steps(palette),
        zmin=-0.5,
        zmax=len(palette) - 0.5,
        showscale=False,
        xgap=3,
        ygap=3,
    )


def _color(cell: Cell, ranks: int, by: str) -> str:
    count = len(cell.sources)
    if count == 0:
        return theme.EMPTY
    if count == ranks and ranks > 1:
        return COMPLETE
    if count == 1 and by == "source":
        return theme.tint(theme.rank_color(cell.sources[0]), 0.35)
    return theme.tint(theme.BLUE, 0.08 + 0.5 * count / ranks)


def _steps(palette: list[str]) -> list[tuple[float, str]]:
    """A colour scale that jumps from one colour to the next."""
    width = 1 / len(palette)
    return [(k * width, c) for i, c in enumerate(palette) for k in (i, i + 1)]


def _laid_out(figure: go.Figure, title: str, column: str, ranks: int, columns: int):
    figure.update_layout(
        template="ring_to_rack", title_text=title, height=ROW_PX * ranks + 128
    )
    figure.update_layout(margin={"t": 78, "b": 46})
    ticks = {"tickvals": list(range(columns)), "showgrid": False, "ticks": ""}
    names = [f"{column} {j}" if columns <= 4 else str(j) for j in range(columns)]
    figure.update_xaxes(ticktext=names, range=[-0.5, columns - 0.5], **ticks)
    if columns > 4:
        figure.update_xaxes(title_text=column, title_standoff=4)
    figure.update_yaxes(**theme.rank_axis(ranks))
    figure.update_annotations(font_size=13, yshift=2)
    return figure
