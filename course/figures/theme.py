"""One look for every picture: a light card, colours for every eye, axes with units.

Figures sit on their own light card in light and in dark JupyterLab alike, so that the
stored SVG, the live figure and a printed page are the same picture and no label has to
be legible on two backgrounds. Importing this module makes the template plotly's default.

Ranks run from top to bottom and start at 0.
"""

from __future__ import annotations

import math

import plotly.graph_objects as go
import plotly.io as pio

from course.quantities import write_bytes, write_seconds

# Okabe and Ito, "Color Universal Design" (2008): told apart under every common
# colour blindness. Yellow is left for fills: as a line it fades on white.
BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, YELLOW, INK = "#CC79A7", "#56B4E9", "#F0E442", "#20242B"
PALETTE = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, "#6B7280", INK)

CARD = "#FFFFFF"
GRID = "#E3E6EA"
MUTED = "#5B6470"
EMPTY = "#F2F4F6"
# light to dark in one hue, for heatmaps of amounts
AMOUNTS = ("#F2F4F6", "#C6DDF0", "#7DB6DC", "#2E86C1", "#0B4F85")
HEIGHT = 360
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def _axis() -> dict:
    return {
        "gridcolor": GRID,
        "linecolor": MUTED,
        "zeroline": False,
        "ticks": "outside",
        "tickcolor": GRID,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 13}},
    }


def template() -> go.layout.Template:
    """The plotly template of the course."""
    layout = {
        "colorway": PALETTE,
        "font": {"family": FONT, "size": 13, "color": INK},
        "title": {"x": 0.012, "xanchor": "left", "font": {"size": 15}},
        "paper_bgcolor": CARD,
        "plot_bgcolor": CARD,
        "margin": {"l": 64, "r": 24, "t": 52, "b": 52},
        "xaxis": _axis(),
        "yaxis": _axis(),
        "legend": {"bgcolor": "rgba(255,255,255,0.8)"},
        "hoverlabel": {"font": {"family": FONT, "size": 13}},
        "hovermode": "closest",
    }
    return go.layout.Template(layout=layout)


pio.templates["ring_to_rack"] = template()
pio.templates.default = "ring_to_rack"


def rank_color(rank: int) -> str:
    """The colour of a rank, the same in every picture; it repeats after eight."""
    return PALETTE[rank % len(PALETTE)]


def tint(color: str, share: float) -> str:
    """A "#RRGGBB" colour mixed into white: share 0 is white, 1 is the colour itself."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must be from 0 to 1, not {share}")
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (p - 255) * share):02X}" for p in parts)


def new_figure(
    title: str, *, x: str = "", y: str = "", height: int = HEIGHT, **layout
) -> go.Figure:
    """An empty figure in the course's look. x and y are axis titles with their unit."""
    # one dict at once: each update of a figure costs as much again
    mine = {
        "template": "ring_to_rack",
        "height": height,
        "title": {"text": title},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
    }
    return go.Figure(layout=mine | layout)


def bytes_axis(low: float, high: float, *, most_ticks: int = 8) -> dict:
    """A log axis of message sizes with ticks at powers of two: 4 KiB, 1 MiB, ..."""
    _check_range(low, high)
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / most_ticks))
    if step > 1:
        step += step % 2
    ticks = [2.0**k for k in range(first, last + 1, step)]
    return _log_axis(low, high, ticks, write_bytes)


def seconds_axis(low: float, high: float) -> dict:
    """A log axis of time with ticks at powers of ten: 10 µs, 1 ms, ..."""
    _check_range(low, high)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [10.0**k for k in range(first, last + 1)]
    return _log_axis(low, high, ticks, write_seconds)


def _log_axis(low: float, high: float, ticks: list[float], write) -> dict:
    pad = 0.02 * (math.log10(high) - math.log10(low))
    return {
        "type": "log",
        "range": [math.log10(low) - pad, math.log10(high) + pad],
        "tickvals": ticks,
        "ticktext": [write(t) for t in ticks],
    }


def _check_range(low: float, high: float) -> None:
    if not 0 < low < high:
        raise ValueError(f"low and high must be 0 < low < high, not {low} and {high}")


def rank_axis(ranks: int, *, most_ticks: int = 16) -> dict:
    """An axis of ranks that runs from the top down, 0 first."""
    if ranks < 1:
        raise ValueError(f"ranks must be 1 or more, not {ranks}")
    step = math.ceil(ranks / most_ticks)
    ticks = list(range(0, ranks, step))
    return {
        "range": [ranks - 0.5, -0.5],
        "tickvals": ticks,
        "ticktext": [f"rank {r}" for r in ticks],
        "title": {"text": ""},
        "showgrid": False,
        "ticks": "",
    }


def title_of(figure: go.Figure) -> str:
    """The figure's title as one line of plain text, "" where it has none."""
    text = figure.layout.title.text or ""
    for mark in (
        "<br>",
        "<b>",
        "</b>",
        "<i>",
        "</i>",
        "<sub>",
        "</sub>",
        "<sup>",
        "</sup>",
    ):
        text = text.replace(mark, " " if mark == "<br>" else "")
    return " ".join(text.split())
