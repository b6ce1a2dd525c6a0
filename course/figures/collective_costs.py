"""What collectives cost, drawn: time against message size, and who wins where.

Every predicted time here is a line, alpha part + beta part x bytes, so two evaluations
of `course.costs` give a whole curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import plotly.graph_objects as go

from course.costs import collectives as costs
from course.costs.hierarchical import (
    BY_DISTANCE,
    all_reduce_by_distance,
    hierarchical_all_reduce,
    leader_all_reduce,
)
from course.costs.topology import cluster_for, collective_seconds
from course.facts import DGX_H100, GIB, KIB, Link, Node
from course.figures import theme
from course.quantities import write_bytes, write_seconds

# name in a legend, colour, dash: the same in every picture
LOOK = {
    "ring": ("ring", theme.BLUE, "solid"),
    "tree": ("tree", theme.GREEN, "dash"),
    "double_tree": ("double binary tree", theme.ORANGE, "dashdot"),
    "halving_doubling": ("halving-doubling", theme.VERMILLION, "longdash"),
    "recursive_doubling": ("recursive doubling", theme.PURPLE, "dot"),
    "hierarchical": ("hierarchical", theme.SKY, "longdashdot"),
    "leader": ("leader of each node", "#6B7280", "dot"),
    "naive": ("through one rank", theme.INK, "dash"),
}
TWO_LEVEL = {"hierarchical": hierarchical_all_reduce, "leader": leader_all_reduce}


def algorithms_for(collective: str, ranks: int, where: Node | Link) -> tuple[str, ...]:
    """The algorithms whose cost is known for so many ranks there."""
    flat = [a for a in costs.algorithms(collective) if _applies(collective, a, ranks)]
    whole_nodes = isinstance(where, Node) and ranks > where.gpus and not ranks % where.gpus
    two_level = tuple(TWO_LEVEL) if whole_nodes and collective == "all_reduce" else ()
    return (*flat, *two_level)


def _chosen(collective: str, ranks: int, where, algorithms) -> tuple[str, ...]:
    known = algorithms_for(collective, ranks, where)
    if algorithms is None:
        return known
    if unknown := [a for a in algorithms if a not in LOOK]:
        raise ValueError(f"algorithms must be among {list(LOOK)}, not {unknown[0]!r}")
    chosen = tuple(a for a in algorithms if a in known)
    if not chosen:
        raise ValueError(f"none of {list(algorithms)} applies to {ranks} ranks")
    return chosen


def _applies(collective: str, algorithm: str, ranks: int) -> bool:
    try:
        costs.cost(collective, algorithm, ranks, 1)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=4096)
def _line(collective: str, algorithm: str, ranks: int, where) -> tuple[float, float]:
    """(seconds at 0 bytes, seconds per byte)."""
    zero = _seconds(collective, algorithm, ranks, where, 0)
    return zero, (_seconds(collective, algorithm, ranks, where, GIB) - zero) / GIB


def _seconds(collective: str, algorithm: str, ranks: int, where, nbytes: float) -> float:
    if isinstance(where, Link):
        return costs.cost(collective, algorithm, ranks, nbytes).seconds(where)
    if algorithm in TWO_LEVEL:
        cost = TWO_LEVEL[algorithm](where.gpus, ranks // where.gpus, nbytes)
        return cost.seconds(where.fabric, where.nic)
    if collective == "all_reduce" and _by_distance(algorithm, ranks, where):
        cost = all_reduce_by_distance(algorithm, where.gpus, ranks // where.gpus, nbytes)
        return cost.seconds(where.fabric, where.nic)
    cluster = cluster_for(ranks, where)
    return collective_seconds(cluster, range(ranks), collective, algorithm, nbytes)


def _by_distance(algorithm: str, ranks: int, where: Node) -> bool:
    powers = costs.core(ranks) == ranks and costs.core(where.gpus) == where.gpus
    return algorithm in BY_DISTANCE and powers and ranks > where.gpus


def _sizes(low_bytes: int, high_bytes: int, per_doubling: int) -> np.ndarray:
    doublings = np.log2(high_bytes / low_bytes)
    return low_bytes * 2 ** np.linspace(0, doublings, round(doublings * per_doubling) + 1)


def _check(ranks: int, low_bytes: float, high_bytes: float) -> None:
    if ranks < 2:
        raise ValueError(f"ranks must be 2 or more, not {ranks}")
    if not 0 < low_bytes < high_bytes:
        raise ValueError(
            f"low_bytes must be above 0 and below high_bytes, not {low_bytes}, {high_bytes}"
        )


def time_against_size(
    ranks: int = 8,
    where: Node | Link = DGX_H100,
    *,
    collective: str = "all_reduce",
    algorithms: Sequence[str] | None = None,
    low_bytes: int = KIB,
    high_bytes: int = GIB,
) -> go.Figure:
    """Predicted seconds of each algorithm from low_bytes to high_bytes, on log axes.

    where:      a Link that joins every two ranks, or the Node that ranks fill one by one
    algorithms: names as in `course.costs`, also "hierarchical" and "leader"; those that
                do not apply to so many ranks are left out
    """
    _check(ranks, low_bytes, high_bytes)
    sizes = _sizes(low_bytes, high_bytes, 2)
    texts = [write_bytes(m) for m in sizes]
    chosen = _chosen(collective, ranks, where, algorithms)
    lines = np.array([_line(collective, a, ranks, where) for a in chosen])
    seconds = lines[:, :1] + lines[:, 1:] * sizes
    name = collective.replace("_", "-")
    title = f"{name} on {ranks} ranks, {_place(where, ranks)}: time against message size"
    x = theme.bytes_axis(low_bytes, high_bytes) | _titled("message size, the whole buffer")
    y = theme.seconds_axis(seconds.min() * 0.8, seconds.max() * 1.2)
    figure = theme.new_figure(title, xaxis=x, yaxis=y | _titled("predicted time"))
    return figure.add_traces(
        [_curve(a, sizes, texts, row) for a, row in zip(chosen, seconds, strict=True)]
    )


def _titled(text: str) -> dict:
    return {"title": {"text": text}}


def _place(where: Node | Link, ranks: int) -> str:
    return cluster_for(ranks, where).name if isinstance(where, Node) else where.name


def _curve(algorithm: str, sizes: np.ndarray, texts: list[str], seconds) -> dict:
    name, color, dash = LOOK[algorithm]
    return {
        "type": "scatter",
        "x": sizes,
        "y": seconds,
        "name": name,
        "mode": "lines",
        "line": {"color": color, "dash": dash, "width": 2.5},
        "hovertext": [
            f"{name}: {size} in {write_seconds(s)}"
            for size, s in zip(texts, seconds.tolist(), strict=True)
        ],
        "hoverinfo": "text",
    }


def map_of_fastest(
    where: Node | Link = DGX_H100,
    *,
    collective: str = "all_reduce",
    algorithms: Sequence[str] | None = None,
    most_ranks: int = 1024,
    low_bytes: int = KIB,
    high_bytes: int = 4 * GIB,
) -> go.Figure:
    """The algorithm with the least predicted time, by message size and number of ranks.

    Ranks are the powers of two from 2 to most_ranks.
    """
    _check(most_ranks, low_bytes, high_bytes)
    counts = [2**k for k in range(1, most_ranks.bit_length())]
    sizes = _sizes(low_bytes, high_bytes, 1)
    rows = [_winners(collective, n, where, sizes, algorithms) for n in counts]
    winners = [a for a in LOOK if any(a in {w for w, _ in row} for row in rows)]
    title = f"The fastest {collective.replace('_', '-')} by size and ranks, {_many(where)}"
    figure = theme.new_figure(title, height=400, **_map_axes(counts, sizes))
    keys = [_key(algorithm) for algorithm in winners]
    return figure.add_traces([_map(rows, winners, counts, sizes), *keys])


def _many(where: Node | Link) -> str:
    return f"{where.name} nodes" if isinstance(where, Node) else where.name


def _winners(collective, ranks, where, sizes, algorithms) -> list[tuple[str, str]]:
    """(algorithm, hover text) at each size."""
    chosen = _chosen(collective, ranks, where, algorithms)
    lines = np.array([_line(collective, a, ranks, where) for a in chosen])
    seconds = lines[:, :1] + lines[:, 1:] * sizes
    best = [chosen[i] for i in seconds.argmin(axis=0)]
    texts = [
        f"{ranks} ranks, {write_bytes(m)}: {LOOK[a][0]}, {write_seconds(s)}"
        for m, a, s in zip(sizes, best, seconds.min(axis=0), strict=True)
    ]
    return list(zip(best, texts, strict=True))


def _map(rows, winners: list[str], counts: list[int], sizes: np.ndarray) -> go.Heatmap:
    width = 1 / len(winners)
    scale = [
        (k * width, theme.tint(LOOK[a][1], 0.75))
        for i, a in enumerate(winners)
        for k in (i, i + 1)
    ]
    return go.Heatmap(
        z=[[winners.index(a) for a, _ in row] for row in rows],
        x=list(range(len(sizes))),
        y=list(range(len(counts))),
        text=[[text for _, text in row] for row in rows],
        hovertemplate="%{text}<extra></extra>",
        colorscale=scale,
        zmin=-0.5,
        zmax=len(winners) - 0.5,
        showscale=False,
        xgap=1,
        ygap=1,
    )


def _key(algorithm: str) -> go.Scatter:
    """A trace without points that only brings the legend's entry."""
    name, color, _ = LOOK[algorithm]
    marker = {"color": theme.tint(color, 0.75), "size": 12, "symbol": "square"}
    return go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name)


def _map_axes(counts: list[int], sizes: np.ndarray) -> dict:
    every = max(1, round(len(sizes) / 8))
    at = list(range(0, len(sizes), every))
    x = {
        "tickvals": at,
        "ticktext": [write_bytes(sizes[i]) for i in at],
        "range": [-0.5, len(sizes) - 0.5],
        "showgrid": False,
    }
    y = {
        "tickvals": list(range(len(counts))),
        "ticktext": [str(n) for n in counts],
        "range": [-0.5, len(counts) - 0.5],
        "showgrid": False,
    }
    return {
        "xaxis": x | _titled("message size, the whole buffer"),
        "yaxis": y | _titled("ranks"),
        "showlegend": True,
    }
