"""The first slider of the course: ranks and message size against all-reduce time."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from course.costs.collectives import cost
from course.costs.topology import cluster_for, collective_seconds
from course.facts import DGX_H100, GIB, KIB, Node
from course.figures import theme
from course.quantities import write_bytes, write_seconds

LOW_BYTES, HIGH_BYTES = KIB, 8 * GIB
FASTEST_S, SLOWEST_S = 1e-6, 1.0  # one axis for all settings, so that the curve moves


def ring_seconds(ranks: int, nbytes: float, node: Node = DGX_H100) -> float:
    """Predicted seconds of a ring all-reduce on the smallest cluster of such nodes.

    nbytes: the buffer M of each rank
    """
    cluster = cluster_for(ranks, node)
    return collective_seconds(cluster, range(ranks), "all_reduce", "ring", nbytes)


def all_reduce_time(
    ranks: int = 8, nbytes: int = GIB, node: Node = DGX_H100
) -> tuple[go.Figure, str]:
    """Ring all-reduce against message size, with the chosen size marked; and in words.

    Raises ValueError for fewer than 2 ranks, or a size outside the axis.
    """
    if ranks < 2:
        raise ValueError(f"ranks must be 2 or more, not {ranks}")
    if not LOW_BYTES <= nbytes <= HIGH_BYTES:
        raise ValueError(f"nbytes must be {LOW_BYTES} to {HIGH_BYTES}, not {nbytes}")
    seconds = ring_seconds(ranks, nbytes, node)
    figure = theme.new_figure(
        f"{ranks} ranks add up {write_bytes(nbytes)} in {write_seconds(seconds)}",
        x="message size: the buffer of each rank",
        y="predicted time",
        showlegend=True,
    )
    _add_curve(figure, ranks, node)
    _add_mark(figure, nbytes, seconds)
    figure.update_xaxes(theme.bytes_axis(LOW_BYTES, HIGH_BYTES))
    figure.update_yaxes(theme.seconds_axis(FASTEST_S, SLOWEST_S))
    return figure, _in_words(ranks, nbytes, node, seconds)


def _add_curve(figure: go.Figure, ranks: int, node: Node) -> None:
    sizes = np.geomspace(LOW_BYTES, HIGH_BYTES, 47)
    times = [ring_seconds(ranks, m, node) for m in sizes]
    figure.add_scatter(
        x=sizes,
        y=times,
        mode="lines",
        name=f"{ranks} ranks",
        line={"color": theme.BLUE, "width": 2.5},
        hovertext=[
            f"{write_bytes(m)}: {write_seconds(s)}"
            for m, s in zip(sizes, times, strict=True)
        ],
        hoverinfo="text",
    )


def _add_mark(figure: go.Figure, nbytes: int, seconds: float) -> None:
    figure.add_scatter(
        x=[nbytes],
        y=[seconds],
        mode="markers",
        name="your message",
        marker={"color": theme.VERMILLION, "size": 12, "symbol": "diamond"},
        hovertext=f"{write_bytes(nbytes)}: {write_seconds(seconds)}",
        hoverinfo="text",
    )


def _in_words(ranks: int, nbytes: int, node: Node, seconds: float) -> str:
    cluster = cluster_for(ranks, node)
    total = cost("all_reduce", "ring", ranks, nbytes)
    latency_s = ring_seconds(ranks, 0, node)
    boxes = "one node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    return (
        f"{boxes} of {node.gpus} GPUs. {total.steps} steps take {write_seconds(latency_s)} "
        f"whatever the size; the {write_bytes(total.bytes_sent)} that each rank sends take "
        f"{write_seconds(seconds - latency_s)}."
    )
