"""NCCL's cost model, drawn: every algorithm and protocol, and the one that is chosen."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from course.costs import nccl
from course.facts import GIB, KIB
from course.figures import theme
from course.quantities import write_bytes, write_seconds

LOW_BYTES, HIGH_BYTES = KIB, 4 * GIB
COLORS = {"Ring": theme.BLUE, "Tree": theme.GREEN}
DASHES = {"LL": "dot", "LL128": "dash", "Simple": "solid"}
SETUPS = {"DGX A100": nccl.dgx_a100, "DGX H100": nccl.dgx_h100}


def nccl_choice(nodes: int = 2, box: str = "DGX A100") -> tuple[go.Figure, str]:
    """Expected seconds of each pair against size; dotted lines where the choice changes.

    box: "DGX A100" or "DGX H100", 8 GPUs each. The text names the choice by size.
    Raises ValueError for another box or no node.
    """
    if box not in SETUPS:
        raise ValueError(f"box must be one of {list(SETUPS)}, not {box!r}")
    setup = SETUPS[box](nodes)
    sizes = np.geomspace(LOW_BYTES, HIGH_BYTES, 45)  # two to a doubling
    curves = {
        (a, p): [nccl.seconds(setup, a, p, m) for m in sizes]
        for a in nccl.ALGORITHMS
        for p in nccl.PROTOCOLS
    }
    least = np.array(list(curves.values())).min(axis=0)
    y = theme.seconds_axis(least.min() * 0.8, least.max() * 4)
    figure = theme.new_figure(
        f"NCCL's model of all-reduce: {nodes} x {box}, {setup.ranks} GPUs",
        xaxis=theme.bytes_axis(LOW_BYTES, HIGH_BYTES)
        | {"title": {"text": "message size, the whole buffer"}},
        yaxis=y | {"title": {"text": "expected time"}},
    )
    figure.add_traces([_chosen(sizes, least), *(_curve(*c, sizes) for c in curves.items())])
    points = nccl.switch_points(setup, [2**k for k in range(10, 33)])
    for nbytes, _, _ in points[1:]:
        figure.add_vline(nbytes, line={"dash": "dot", "color": theme.MUTED, "width": 1})
    return figure, _words(points)


def _curve(pair: tuple[str, str], seconds: list[float], sizes) -> go.Scatter:
    algorithm, protocol = pair
    name = f"{algorithm}/{protocol}"
    return go.Scatter(
        x=sizes,
        y=seconds,
        name=name,
        line={"color": COLORS[algorithm], "dash": DASHES[protocol], "width": 2},
        hovertext=[
            f"{name}: {write_bytes(m)} in {write_seconds(s)}"
            for m, s in zip(sizes, seconds, strict=True)
        ],
        hoverinfo="text",
    )


def _chosen(sizes, least) -> go.Scatter:
    """A broad pale line under the least of all."""
    line = {"color": theme.tint(theme.ORANGE, 0.5), "width": 10}
    return go.Scatter(x=sizes, y=least, name="chosen", line=line, hoverinfo="skip")


def _words(points: list[tuple[int, str, str]]) -> str:
    named = [f"{algorithm}/{protocol}" for _, algorithm, protocol in points]
    changes = [f"{n} from {write_bytes(p[0])}" for n, p in zip(named, points, strict=True)]
    return f"By powers of two: {named[0]}" + "".join(f", {c}" for c in changes[1:]) + "."
