"""Who sends how much to whom: a heatmap of bytes, sender down the side, receiver on top."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from course.costs.topology import Cluster
from course.figures import theme
from course.quantities import write_bytes
from course.worlds.run import Run

UNITS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
MOST_NUMBERS = 10


def traffic(
    sent: Run | Sequence[Sequence[float]],
    *,
    by: str = "rank",
    cluster: Cluster | None = None,
    title: str | None = None,
) -> go.Figure:
    """Bytes from each rank (row, from 0 at the top) to each rank (column).

    sent:    a run of the simulated world, or a matrix of bytes, [source][destination]
    by:      "rank", or "node" to add up what goes from node to node (needs a cluster)
    cluster: draws the borders between nodes

    The diagonal is blank by rank; by node it holds what stays inside. Raises ValueError
    for a matrix that is not square, an unknown `by`, or more ranks than the cluster has;
    NotMetered for a run whose messages were not seen.
    """
    matrix = link_matrix(sent) if isinstance(sent, Run) else checked(sent)
    if by not in ("rank", "node"):
        raise ValueError(f'by must be "rank" or "node", not {by!r}')
    if cluster is not None and cluster.ranks < len(matrix):
        raise ValueError(
            f"cluster has {cluster.ranks} ranks: too few for the {len(matrix)} of the run"
        )
    if by == "node":
        matrix = by_node(matrix, cluster)
    figure = _heatmap(matrix, by, title)
    if by == "rank" and cluster is not None:
        _add_borders(figure, len(matrix), cluster.node.gpus)
    return figure


def link_matrix(run: Run) -> np.ndarray:
    """Bytes from rank to rank, shape (ranks, ranks), [source, destination]."""
    matrix = np.zeros((run.ranks, run.ranks))
    for (source, destination), nbytes in run.bytes_per_link.items():
        matrix[source, destination] = nbytes
    return matrix


def by_node(matrix: np.ndarray, cluster: Cluster | None) -> np.ndarray:
    """Bytes from node to node, shape (nodes, nodes); the diagonal stays inside a node."""
    if cluster is None:
        raise ValueError('by="node" needs a cluster, to know which rank sits where')
    nodes = [cluster.node_of(r) for r in range(len(matrix))]
    total = np.zeros((max(nodes, default=-1) + 1,) * 2)
    np.add.at(total, np.ix_(nodes, nodes), matrix)
    return total


def checked(sent) -> np.ndarray:
    matrix = np.asarray(sent, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"sent must be a square matrix, not of shape {matrix.shape}")
    if not (matrix >= 0).all():
        raise ValueError("sent must hold bytes, 0 or more")
    return matrix


def unit_of(largest: float) -> tuple[str, int]:
    """The largest unit that is no larger, with its bytes."""
    unit = next((u for u, size in UNITS.items() if largest >= size), "B")
    return unit, UNITS[unit]


def _heatmap(matrix: np.ndarray, by: str, title: str | None) -> go.Figure:
    unit, size = unit_of(matrix.max(initial=0))
    shown = matrix / size
    if by == "rank":
        np.fill_diagonal(shown, np.nan)
    side = 300 if len(matrix) <= 4 else 420
    figure = theme.new_figure(
        title or f"Bytes sent from {by} to {by}", height=side + 120, width=side + 260
    )
    figure.add_heatmap(
        z=shown,
        zmin=0,
        zmax=np.nanmax(shown, initial=0) or 1,
        colorscale=theme.AMOUNTS,
        text=cell_texts(shown) if len(matrix) <= MOST_NUMBERS else None,
        texttemplate="%{text}" if len(matrix) <= MOST_NUMBERS else None,
        hovertext=hover(matrix, by),
        hoverinfo="text",
        hoverongaps=False,
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": unit}, "thickness": 14, "len": 0.9},
    )
    return _with_axes(figure, len(matrix), by)


def _with_axes(figure: go.Figure, n: int, by: str) -> go.Figure:
    axis = theme.rank_axis(max(n, 1))
    axis["ticktext"] = [str(t) for t in axis["tickvals"]]
    axis["constrain"] = "domain"
    figure.update_yaxes(**axis | {"title_text": f"from {by}", "scaleanchor": "x"})
    across = {"title_text": f"to {by}", "range": axis["range"][::-1], "side": "top"}
    figure.update_xaxes(**axis | across)
    figure.update_layout(margin_t=112, title={"y": 0.97, "yanchor": "top"})
    return figure


def cell_texts(shown: np.ndarray) -> list[list[str]]:
    """Numbers for what moved; cells of zero bytes and the blank diagonal stay empty."""
    return [["" if np.isnan(v) or v == 0 else _short(v) for v in row] for row in shown]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def hover(matrix: np.ndarray, by: str) -> list[list[str]]:
    sends, receives = matrix.sum(axis=1), matrix.sum(axis=0)
    return [
        [
            f"<b>{write_bytes(v)}</b> from {by} {i} to {by} {j}"
            f"<br>{by} {i} sends {write_bytes(sends[i])} in all"
            f"<br>{by} {j} receives {write_bytes(receives[j])} in all"
            for j, v in enumerate(row)
        ]
        for i, row in enumerate(matrix)
    ]


def _add_borders(figure: go.Figure, ranks: int, gpus: int) -> None:
    line = {"color": theme.INK, "width": 1.5}
    for edge in range(gpus, ranks, gpus):
        at, ends = edge - 0.5, (-0.5, ranks - 0.5)
        figure.add_shape(type="line", x0=at, x1=at, y0=ends[0], y1=ends[1], line=line)
        figure.add_shape(type="line", y0=at, y1=at, x0=ends[0], x1=ends[1], line=line)
