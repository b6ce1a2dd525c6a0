"""Ranks as rows, what they hold as numbered cells: the picture of every collective.

Ranks run from top to bottom, from 0. A cell's colour says whose data it is: one colour
a rank, deepening blue for a sum of several ranks, yellow for the sum of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from course.figures import theme

ROW_PX = 44
COMPLETE = theme.tint(theme.YELLOW, 0.75)
MOST_RANKS = 16
# share of the width between two panels
GAP = 0.1


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
    # one dict, one Figure: plotly is slow to add and to update, and sliders must not wait
    cells = [_cells(rows, column, by) for rows in panels.values()]
    for place, trace in enumerate(cells[1:], start=2):
        trace |= {"xaxis": f"x{place}", "yaxis": f"y{place}"}
    layout = {"template": "ring_to_rack", "title": {"text": title}}
    return go.Figure(cells, layout | _layout(list(panels), column, *shape))


def _cells(rows: Rows, column: str, by: str) -> dict:
    """A heatmap whose z only numbers the colours."""
    ranks = len(rows)
    colors = [[_color(cell, ranks, by) for cell in row] for row in rows]
    palette = list(dict.fromkeys(c for row in colors for c in row))
    longest = max(len(cell.text) for row in rows for cell in row)
    return {
        "type": "heatmap",
        "z": [[palette.index(c) for c in row] for row in colors],
        "text": [[cell.text for cell in row] for row in rows],
        "customdata": [
            [f"rank {r}, {column} {j}: {cell.hover}" for j, cell in enumerate(row)]
            for r, row in enumerate(rows)
        ],
        "texttemplate": "%{text}",
        "textfont": {"size": 15 if longest < 6 else 11, "color": theme.INK},
        "hovertemplate": "%{customdata}<extra></extra>",
        "colorscale": _steps(palette),
        "zmin": -0.5,
        "zmax": len(palette) - 0.5,
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
    }


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


def _layout(names: list[str], column: str, ranks: int, columns: int) -> dict:
    """Panels from left to right with a gap between them; only the first names its ranks."""
    width = (1 + GAP) / len(names) - GAP
    layout = {"height": ROW_PX * ranks + 128, "margin": {"t": 78, "b": 46}}
    annotations = []
    for place, name in enumerate(names):
        left = place * (width + GAP)
        at = str(place + 1) if place else ""
        x = _columns_axis(column, columns) | {"domain": [left, left + width]}
        y = theme.rank_axis(ranks) | {"showticklabels": place == 0}
        layout |= {
            f"xaxis{at}": x | {"anchor": f"y{at}"},
            f"yaxis{at}": y | {"anchor": f"x{at}"},
        }
        annotations.append(_heading(name, left + width / 2))
    return layout | {"annotations": annotations}


def _columns_axis(column: str, columns: int) -> dict:
    few = columns <= 4
    names = [f"{column} {j}" if few else str(j) for j in range(columns)]
    return {
        "range": [-0.5, columns - 0.5],
        "tickvals": list(range(columns)),
        "ticktext": names,
        "showgrid": False,
        "ticks": "",
        "title": {"text": "" if few else column, "standoff": 4},
    }


def _heading(name: str, x: float) -> dict:
    place = {
        "xref": "paper",
        "yref": "paper",
        "x": x,
        "y": 1,
        "yanchor": "bottom",
        "yshift": 2,
    }
    return {"text": name, "showarrow": False, "font": {"size": 13}, **place}
