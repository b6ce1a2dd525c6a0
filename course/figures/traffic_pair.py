"""Two traffic matrices side by side, in one unit and one colour scale: what was predicted
and what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from course.costs.topology import Cluster
from course.figures import theme
from course.figures.traffic import cell_texts, checked, hover, unit_of
from course.quantities import write_bytes

GAP = 0.16
SIDE = 300


def traffic_pair(
    predicted: Sequence[Sequence[float]],
    measured: Sequence[Sequence[float]],
    *,
    names: tuple[str, str] = ("predicted", "measured"),
    cluster: Cluster | None = None,
    title: str = "",
) -> tuple[go.Figure, str]:
    """Bytes from each rank (row) to each rank (column), twice: [source, destination].

    cluster: draws the borders between nodes. Diagonals stay blank and do not count.
    Raises ValueError for matrices that are not square, or not of the same size.
    """
    pair = [checked(predicted), checked(measured)]
    if pair[0].shape != pair[1].shape:
        raise ValueError(
            f"measured must have the shape of predicted, {pair[0].shape}, "
            f"not {pair[1].shape}"
        )
    off = [matrix * ~np.eye(len(matrix), dtype=bool) for matrix in pair]
    unit, size = unit_of(max(matrix.max(initial=0) for matrix in off))
    figure = theme.new_figure(
        title or f"Bytes from rank to rank: {names[0]} and {names[1]}",
        height=SIDE + 160,
        width=2 * SIDE + 220,
    )
    most = max(matrix.max(initial=0) for matrix in off) / size or 1
    for panel, matrix in enumerate(pair):
        _add_panel(figure, matrix, panel, size, most, unit)
        _add_axes(figure, len(matrix), panel, names[panel])
        if cluster is not None:
            _add_borders(figure, len(matrix), panel, cluster.node.gpus)
    figure.update_layout(margin_t=130, title={"y": 0.97, "yanchor": "top"})
    return figure, _words(*off, names)


def _add_panel(figure: go.Figure, matrix, panel: int, size: int, most, unit: str) -> None:
    shown = matrix / size
    np.fill_diagonal(shown, np.nan)
    figure.add_heatmap(
        z=shown,
        zmin=0,
        zmax=most,
        colorscale=theme.AMOUNTS,
        text=cell_texts(shown),
        texttemplate="%{text}",
        hovertext=hover(matrix, "rank"),
        hoverinfo="text",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        showscale=panel == 1,
        colorbar={"title": {"text": unit}, "thickness": 14, "len": 0.9},
        xaxis=_axis("x", panel),
        yaxis=_axis("y", panel),
    )


def _axis(letter: str, panel: int) -> str:
    return letter + ("2" if panel else "")


def _add_axes(figure: go.Figure, ranks: int, panel: int, name: str) -> None:
    axis = theme.rank_axis(max(ranks, 1))
    axis["ticktext"] = [str(t) for t in axis["tickvals"]]
    half = (1 - GAP) / 2
    ends = [panel * (half + GAP), panel * (half + GAP) + half]
    mark = "2" if panel else ""
    across = {"title": {"text": f"<b>{name}</b><br>to rank"}, "side": "top"}
    across |= {"domain": ends, "range": axis["range"][::-1], "anchor": "y" + mark}
    down = {"title": {"text": "from rank"}, "anchor": "x" + mark}
    figure.update_layout(
        {f"xaxis{mark}": axis | across, f"yaxis{mark}": axis | down},
    )


def _add_borders(figure: go.Figure, ranks: int, panel: int, gpus: int) -> None:
    where = {"xref": _axis("x", panel), "yref": _axis("y", panel), "type": "line"}
    line = {"color": theme.INK, "width": 1.5}
    for edge in range(gpus, ranks, gpus):
        at, ends = edge - 0.5, (-0.5, ranks - 0.5)
        figure.add_shape(x0=at, x1=at, y0=ends[0], y1=ends[1], line=line, **where)
        figure.add_shape(y0=at, y1=at, x0=ends[0], x1=ends[1], line=line, **where)


def _words(first: np.ndarray, second: np.ndarray, names: tuple[str, str]) -> str:
    sums = [write_bytes(matrix.sum()) for matrix in (first, second)]
    told = f"{names[0].capitalize()} {sums[0]} between ranks, {names[1]} {sums[1]}."
    busiest = int(second.sum(axis=0).argmax())
    taken = write_bytes(second[:, busiest].sum())
    return f"{told} Rank {busiest} receives most, {taken}."
