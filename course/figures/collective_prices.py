"""What every collective costs on the same ranks, side by side.

n  ranks    M  nbytes, the whole buffer    alpha, B  of one link, one direction
"""

from __future__ import annotations

import plotly.graph_objects as go

from course.costs.collectives import COLLECTIVES, Cost, cost
from course.facts import MIB, NVLINK4, Link
from course.figures import theme
from course.quantities import write_bytes, write_rate, write_seconds

# what `algorithm` of costs/collectives.py stands for here, in words
WAYS = {"ring": "every wire busy at once", "naive": "through one rank"}
PRICED = tuple(name for name in COLLECTIVES if name != "send")
_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


def collective_prices(
    ranks: int = 8, nbytes: float = 256 * MIB, link: Link = NVLINK4, way: str = "ring"
) -> tuple[go.Figure, str]:
    """Seconds of each collective, latency and bandwidth as two parts of one bar.

    way: "ring" (pipelined, or in pieces) or "naive" (through one rank)
    The text names the bytes that the busiest rank sends.
    Raises ValueError for fewer than 2 ranks or an unknown way.
    """
    if ranks < 2:
        raise ValueError(f"ranks must be 2 or more, not {ranks}")
    if way not in WAYS:
        raise ValueError(f"way must be one of {list(WAYS)}, not {way!r}")
    prices = {name: cost(name, way, ranks, nbytes) for name in PRICED}
    longest_s = max(price.seconds(link) for price in prices.values())
    unit = next((u for u, size in _UNITS.items() if longest_s >= size), "µs")
    title = f"{write_bytes(nbytes)} on {ranks} ranks, {link.name}, {WAYS[way]}"
    figure = theme.new_figure(title, x=f"time ({unit})", height=400)
    figure.add_traces([_part(prices, link, unit, *part) for part in _PARTS])
    figure.update_yaxes(range=[len(PRICED) - 0.5, -0.5], showgrid=False, ticks="")
    figure.update_xaxes(range=[0, 1.22 * longest_s / _UNITS[unit] or 1])
    figure.update_layout(barmode="stack", showlegend=True, legend_traceorder="normal")
    return figure, _words(prices, ranks)


_PARTS = (
    ("latency", Cost.latency_seconds, theme.ORANGE, "/"),
    ("bandwidth", Cost.bandwidth_seconds, theme.BLUE, ""),
)


def _part(prices: dict[str, Cost], link: Link, unit: str, name, seconds, color, hatch):
    """One half of every bar; the right half carries the total as text."""
    totals = [write_seconds(price.seconds(link)) for price in prices.values()]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [collective.replace("_", "-") for collective in prices],
        "x": [seconds(price, link) / _UNITS[unit] for price in prices.values()],
        "marker": {"color": color, "pattern": {"shape": hatch}},
        "text": totals if name == "bandwidth" else None,
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": [_hover(c, price, link) for c, price in prices.items()],
        "hoverinfo": "text",
    }


def _hover(collective: str, price: Cost, link: Link) -> str:
    return (
        f"{collective.replace('_', '-')}: {price.steps} x {write_seconds(link.latency_s)}"
        f" = {write_seconds(price.latency_seconds(link))} of latency,"
        f"<br>{write_bytes(price.bytes_sent)} / {write_rate(link.bytes_per_s)}"
        f" = {write_seconds(price.bandwidth_seconds(link))} of bandwidth"
    )


def _words(prices: dict[str, Cost], ranks: int) -> str:
    named = ("broadcast", "all_gather", "all_reduce")
    parts = [f"{c.replace('_', '-')} {write_bytes(prices[c].bytes_sent)}" for c in named]
    return f"Bytes through the busiest port, one direction: {', '.join(parts)}."
