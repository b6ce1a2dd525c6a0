"""What a ring all-reduce costs, drawn: its two terms, a server beside it, bandwidths.

n  ranks    M  nbytes, the whole buffer    alpha, B  of one link, one direction
"""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from course.costs import parameter_server
from course.costs.bandwidth import algbw, busbw
from course.costs.collectives import cost, crossover_bytes
from course.facts import GB, GIB, IB_NDR, KIB, NVLINK4, Link
from course.figures import theme
from course.quantities import write_bytes, write_rate, write_seconds

LOW_BYTES, HIGH_BYTES = 4 * KIB, 4 * GIB


def ring_terms(ranks: int = 8, link: Link = NVLINK4) -> tuple[go.Figure, str]:
    """Seconds of a ring against M: the latency term, the bandwidth term, their sum.

    A dotted line marks M = n * alpha * B, where both terms are equal.
    Raises ValueError for fewer than 2 ranks.
    """
    _check_ranks(ranks)
    sizes = np.geomspace(LOW_BYTES, HIGH_BYTES, 61)
    costs = [cost("all_reduce", "ring", ranks, m) for m in sizes]
    latency, bandwidth, both = (
        [how(c) for c in costs]
        for how in (
            lambda c: c.latency_seconds(link),
            lambda c: c.bandwidth_seconds(link),
            lambda c: c.seconds(link),
        )
    )
    figure = theme.new_figure(
        f"Ring all-reduce on {ranks} ranks, {link.name}: which term counts?",
        x="buffer M",
        y="time",
    )
    _add_term(figure, sizes, latency, "latency, 2(n-1) alpha", theme.VERMILLION, "dash")
    _add_term(figure, sizes, bandwidth, "bandwidth, 2(n-1)/n M/B", theme.GREEN, "dot")
    _add_term(figure, sizes, both, "both together", theme.BLUE, "solid")
    figure.update_xaxes(theme.bytes_axis(LOW_BYTES, HIGH_BYTES))
    figure.update_yaxes(theme.seconds_axis(1e-6, 1))
    return _with_crossover(figure, ranks, link)


def _add_term(figure, sizes, seconds, name: str, color: str, dash: str) -> None:
    hover = [
        f"{name}: {write_bytes(m)} in {write_seconds(s)}"
        for m, s in zip(sizes, seconds, strict=True)
    ]
    look = {"color": color, "dash": dash, "width": 3 if dash == "solid" else 2}
    figure.add_scatter(
        x=sizes, y=seconds, name=name, line=look, hovertext=hover, hoverinfo="text"
    )


def _with_crossover(figure: go.Figure, ranks: int, link: Link) -> tuple[go.Figure, str]:
    at = crossover_bytes("all_reduce", "ring", ranks, link)
    seconds = cost("all_reduce", "ring", ranks, at).seconds(link)
    figure.add_vline(at, line={"dash": "dot", "color": theme.INK, "width": 1.5})
    figure.update_layout(legend={"x": 0.02, "y": 0.98})
    words = (
        f"n alpha B = {ranks} x {write_seconds(link.latency_s)} x "
        f"{write_rate(link.bytes_per_s)} = {write_bytes(at)}. There the ring takes "
        f"{write_seconds(seconds)}, half of it latency."
    )
    return figure, words


def ring_against_server(
    nbytes: float = GIB, servers: int = 1, link: Link = IB_NDR, *, most_workers: int = 64
) -> tuple[go.Figure, str]:
    """Seconds of one gradient exchange against the number of workers.

    nbytes:  P, gradients and parameters alike
    servers: S, each keeps P / S; pushes first, then pulls, every port full-duplex
    Raises ValueError for no bytes, no servers, or fewer than 2 workers.
    """
    _check_ranks(most_workers)
    workers = list(range(2, most_workers + 1))
    server = [
        parameter_server.push_and_pull(n, nbytes, servers=servers).seconds(link)
        for n in workers
    ]
    ring = [cost("all_reduce", "ring", n, nbytes).seconds(link) for n in workers]
    many = f"{servers} server" + "s" * (servers > 1)
    figure = theme.new_figure(
        f"{write_bytes(nbytes)} of gradients, {link.name}: {many} or a ring",
        x="workers",
        y="time of one exchange",
    )
    _add_workers(figure, workers, server, f"{many}, push then pull", theme.VERMILLION)
    _add_workers(figure, workers, ring, "ring all-reduce", theme.BLUE)
    top = max(*server, *ring)
    figure.update_yaxes(**_linear_seconds(top))
    # beside the plot: with many servers both lines run along its top
    figure.update_layout(legend={"x": 1.02, "y": 1})
    return figure, (
        f"{most_workers} workers: {many} {write_seconds(server[-1])}, ring "
        f"{write_seconds(ring[-1])}: {server[-1] / ring[-1]:.3g} times as long."
    )


def _add_workers(figure, workers, seconds, name: str, color: str) -> None:
    hover = [
        f"{name}: {n} workers, {write_seconds(s)}"
        for n, s in zip(workers, seconds, strict=True)
    ]
    look = {"color": color, "width": 2.5}
    figure.add_scatter(
        x=workers, y=seconds, name=name, line=look, hovertext=hover, hoverinfo="text"
    )


def _linear_seconds(top: float) -> dict:
    """A linear axis from 0 with round ticks, each written in its best unit."""
    power = 10 ** math.floor(math.log10(top))
    step = next(s * power for s in (0.2, 0.25, 0.5, 1, 2) if top <= 5 * s * power)
    ticks = [k * step for k in range(6)]
    return {
        "range": [0, top * 1.05],
        "tickvals": ticks,
        "ticktext": [write_seconds(t) if t else "0" for t in ticks],
    }


def ring_bandwidths(
    nbytes: float = GIB, link: Link = NVLINK4, *, most_ranks: int = 64
) -> tuple[go.Figure, str]:
    """algbw and busbw of a ring all-reduce against the number of ranks, in GB/s.

    Raises ValueError for no bytes or fewer than 2 ranks.
    """
    _check_ranks(most_ranks)
    if nbytes <= 0:
        raise ValueError(f"nbytes must be positive, not {nbytes}")
    ranks = list(range(2, most_ranks + 1))
    seconds = [cost("all_reduce", "ring", n, nbytes).seconds(link) for n in ranks]
    pairs = list(zip(ranks, seconds, strict=True))
    seen = {
        "busbw, of a wire": [busbw("all_reduce", n, nbytes, s) / GB for n, s in pairs],
        "algbw, M over time": [algbw(nbytes, s) / GB for n, s in pairs],
    }
    figure = theme.new_figure(
        f"{write_bytes(nbytes)} on {link.name}: the two bandwidths", x="ranks", y="GB/s"
    )
    for (name, values), color in zip(seen.items(), (theme.BLUE, theme.ORANGE), strict=True):
        figure.add_scatter(x=ranks, y=values, name=name, line={"color": color, "width": 3})
    wire = link.bytes_per_s / GB
    figure.add_hline(wire, line={"dash": "dot", "color": theme.INK})
    figure.update_yaxes(range=[0, wire * 1.1])
    eight = ranks.index(min(8, most_ranks))
    bus, alg = (values[eight] for values in seen.values())
    return figure, (
        f"On {ranks[eight]} ranks: algbw {alg:.4g} GB/s, busbw {bus:.4g} GB/s. "
        f"The dotted line is the wire, {write_rate(link.bytes_per_s)} per direction."
    )


def _check_ranks(ranks: int) -> None:
    if ranks < 2:
        raise ValueError(f"ranks must be 2 or more, not {ranks}")
