"""What every rank did and when: bars in lanes, messages as arrows, memory underneath.

Ranks run from top to bottom, from 0. The pale band of a lane is the time in which it did
nothing. Each kind of work has a colour and a hatch, so that neither is needed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from course.figures import theme
from course.figures.bars import KINDS, Bar
from course.figures.looks import IDLE, LOOK, hover, message_hover
from course.figures.memory_curve import add_memory
from course.figures.panel import (
    MOST_BARS,
    Panel,
    chosen_memory,
    chosen_messages,
    make_panel,
    notes,
    rank_ticks,
    used_lanes,
)
from course.quantities import write_seconds
from course.worlds.overlap import total_s
from course.worlds.rows import joined
from course.worlds.run import LANES, Message, Run

# pixels: a row of bars, between panels, the memory curve, the most for all panels,
# a line of the legend, what the margins take, a note
ROW_PX, BETWEEN_PX, MEMORY_PX, MOST_PX = 20, 40, 130, 640
LEGEND_PX, MARGINS_PX, NOTE_PX = 30, 116, 20


def timeline(
    run: Run,
    *,
    ranks: Sequence[int] | None = None,
    lanes: Sequence[str] | None = None,
    messages: str | bool = "auto",
    memory: str | bool = "auto",
    title: str | None = None,
    time_unit: str = "auto",
    max_bars: int = MOST_BARS,
) -> go.Figure:
    """The run as bars: one rank under the other, one lane for each thing done at once.

    ranks:     which to draw; by default all, up to the first 64
    lanes:     of "compute" and "communication"; by default those that took any time
    messages:  arrows from sender to receiver: True, False, or "auto": if 60 or fewer
    memory:    the memory curve underneath: True, False, or "auto": where it was measured
    time_unit: "s", "ms", "us", "ns" or "auto"
    max_bars:  beyond this, neighbours of one kind are drawn as one bar, and a note says so

    Raises NotMetered where the run does not hold what is asked for, ValueError for a rank,
    lane or unit that there is not.
    """
    curve = chosen_memory(memory, run)
    panel = make_panel(run, ranks, lanes, max_bars, time_unit)
    figure = _canvas([panel], title or _default_title(run), bool(curve))
    _add_panel(figure, panel, chosen_messages(messages, panel))
    if curve:
        add_memory(figure, curve, panel.ranks, 1 / panel.seconds_per_x, total_s(run), row=2)
    _finish(figure, [panel], f"time ({panel.unit_label})", rows=2 if curve else 1)
    return figure


def _default_title(run: Run) -> str:
    return f"{run.ranks} {'rank' if run.ranks == 1 else 'ranks'}, {run.world}"


def compare(
    predicted: Run,
    measured: Run,
    *,
    names: tuple[str, str] = ("predicted", "measured"),
    align: str = "time",
    ranks: Sequence[int] | None = None,
    lanes: Sequence[str] | None = None,
    title: str | None = None,
    time_unit: str = "auto",
    max_bars: int = MOST_BARS,
) -> go.Figure:
    """Two runs, one over the other, the first on top.

    align: "time" gives both one axis of time; "share" stretches each to its own length,
           for runs whose clocks have nothing to do with each other
    Otherwise as `timeline`.
    """
    if align not in ("time", "share"):
        raise ValueError(f'align must be "time" or "share", not {align!r}')
    runs = (predicted, measured)
    lanes = lanes or _lanes_of(runs)
    spans = [total_s(r) for r in runs]
    spans = [max(spans)] * 2 if align == "time" else spans
    make = partial(make_panel, ranks=ranks, lanes=lanes, max_bars=max(1, max_bars // 2))
    panels = [make(r, unit=time_unit, span_s=s) for r, s in zip(runs, spans, strict=True)]
    if align == "share":
        panels = [p.stretched() for p in panels]
    figure = _canvas(panels, title or " and ".join(names), False, _headings(names, runs))
    for row, panel in enumerate(panels, start=1):
        _add_panel(figure, panel, [], row)
    x_title = f"time ({panels[0].unit_label})"
    _finish(
        figure, panels, "share of each run (%)" if align == "share" else x_title, rows=2
    )
    return figure


def _lanes_of(runs) -> tuple[str, ...] | None:
    """The lanes that either run uses, so that both show the same; None for none."""
    return tuple(k for k in LANES if any(k in used_lanes(r) for r in runs)) or None


def _headings(names, runs) -> list[str]:
    pairs = zip(names, runs, strict=True)
    return [f"{n}: {write_seconds(total_s(r))} ({r.world})" for n, r in pairs]


# --- Drawing ------------------------------------------------------------------------


def _canvas(panels: list[Panel], title: str, memory: bool, headings=None) -> go.Figure:
    most = MOST_PX / len(panels)
    heights = [_height_px(p, most) for p in panels] + ([MEMORY_PX] if memory else [])
    inside = sum(heights) + BETWEEN_PX * (len(heights) - 1)
    figure = make_subplots(
        rows=len(heights),
        cols=1,
        shared_xaxes=True,
        row_heights=heights,
        vertical_spacing=BETWEEN_PX / inside if len(heights) > 1 else 0,
        subplot_titles=headings,
    )
    headings_px = 24 if headings else 0
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    figure.update_layout(
        template="ring_to_rack",
        title_text=escape(title),
        height=inside + MARGINS_PX + headings_px,
        margin_t=52 + headings_px,
        barmode="overlay",
    )
    return figure


def _height_px(panel: Panel, most: float) -> float:
    rows = len(panel.ranks) * (sum(panel.rows.values()) or 1)
    return min(max(60, ROW_PX * rows + 8 * len(panel.ranks)), most)


def _add_panel(figure: go.Figure, panel: Panel, messages, row: int = 1) -> None:
    _add_idle(figure, panel, row)
    shown = {k: [] for k in KINDS}
    for bar in panel.bars:
        shown[bar.kind].append(bar)
    for kind, of_kind in shown.items():
        _add_bars(figure, panel, kind, [b for b in of_kind if b.end_s > b.start_s], row)
    _add_instants(figure, panel, [b for b in panel.bars if b.end_s == b.start_s], row)
    if messages:
        _add_arrows(figure, panel, messages, row)
    figure.update_yaxes(**_rank_axis(panel), row=row, col=1)


def _add_idle(figure: go.Figure, panel: Panel, row: int) -> None:
    spots = [(r, k) for r in panel.ranks for k in panel.lanes]
    figure.add_bar(
        orientation="h",
        y=[panel.middle(r, k) for r, k in spots],
        x=[total_s(panel.run) / panel.seconds_per_x] * len(spots),
        width=[panel.rows[k] * panel.row_height for _, k in spots],
        marker={"color": IDLE, "line": {"width": 0.5, "color": theme.GRID}},
        name="idle",
        hoverinfo="skip",
        legendgroup="idle",
        legendrank=2000,
        showlegend=row == 1,
        row=row,
        col=1,
    )


def _add_bars(figure: go.Figure, panel: Panel, kind: str, of_kind: list[Bar], row) -> None:
    if not of_kind:
        return
    color, hatch = LOOK[kind]
    # a light edge parts neighbours, but would swallow a bar of a pixel or two
    wide_s = total_s(panel.run) / 200
    edges = [0.7 if b.end_s - b.start_s > wide_s else 0 for b in of_kind]
    figure.add_bar(
        orientation="h",
        base=[b.start_s / panel.seconds_per_x for b in of_kind],
        x=[(b.end_s - b.start_s) / panel.seconds_per_x for b in of_kind],
        y=[panel.y(b.rank, b.lane, b.row) for b in of_kind],
        width=panel.row_height,
        marker={
            "color": color,
            "line": {"width": edges, "color": theme.CARD},
            "pattern": {
                "shape": hatch,
                "bgcolor": color,
                "fgcolor": "rgba(0,0,0,0.5)",
                "size": 6,
                "solidity": 0.25,
            },
        },
        name="other communication" if kind == "communication" else kind,
        hovertext=[hover(b) for b in of_kind],
        hoverinfo="text",
        legendgroup=kind,
        showlegend=_first(figure, kind),
        legendrank=1000 + KINDS.index(kind),
        row=row,
        col=1,
    )


def _first(figure: go.Figure, group: str) -> bool:
    return all(t.legendgroup != group for t in figure.data)


def _add_instants(figure: go.Figure, panel: Panel, instants: list[Bar], row: int) -> None:
    """Events that took no time, as ticks: a bar without width would not be seen."""
    if not instants:
        return
    figure.add_scatter(
        mode="markers",
        x=[b.start_s / panel.seconds_per_x for b in instants],
        y=[panel.y(b.rank, b.lane, b.row) for b in instants],
        marker={
            "symbol": "line-ns-open",
            "size": 11,
            "color": [LOOK[b.kind][0] for b in instants],
            "line": {"width": 2},
        },
        name="took no time",
        hovertext=[hover(b) for b in instants],
        hoverinfo="text",
        legendgroup="instant",
        showlegend=_first(figure, "instant"),
        legendrank=1900,
        row=row,
        col=1,
    )


def _add_arrows(figure: go.Figure, panel: Panel, messages: list[Message], row: int) -> None:
    x, y, texts = [], [], []
    row_of = lambda i: 0 if i is None else panel.event_rows[i]
    height = lambda rank, i: panel.y(rank, "communication", row_of(i))
    ends = joined(panel.run.events, messages)
    for m, (sender, receiver) in zip(messages, ends, strict=True):
        x += [m.start_s / panel.seconds_per_x, m.end_s / panel.seconds_per_x, None]
        y += [height(m.source, sender), height(m.destination, receiver), None]
        texts += [message_hover(m)] * 2 + [""]
    figure.add_scatter(
        mode="lines+markers",
        x=x,
        y=y,
        line={"width": 1.3, "color": theme.INK},
        marker={
            "symbol": ["circle", "arrow", "circle"] * len(messages),
            "size": [4, 9, 0] * len(messages),
            "angleref": "previous",
            "color": theme.INK,
        },
        hovertext=texts,
        hoverinfo="text",
        name="message",
        legendrank=1950,
        row=row,
        col=1,
    )


def _rank_axis(panel: Panel) -> dict:
    values, texts = rank_ticks(panel)
    axis = {"range": [len(panel.ranks) - 0.5, -0.5], "tickvals": values, "ticktext": texts}
    return axis | {"showgrid": False, "ticks": ""}


def _finish(figure: go.Figure, panels: list[Panel], x_title: str, rows: int) -> None:
    lines = dict.fromkeys(note for p in panels for note in notes(p))
    small = "".join(f"<br><sub>{line}</sub>" for line in lines)
    end = max(total_s(p.run) / p.seconds_per_x for p in panels) or 1
    figure.update_xaxes(range=[0, end * 1.01])
    figure.update_xaxes(title_text=x_title + small, row=rows, col=1)
    # the legend must not be cut off beside a low figure
    legend_px = LEGEND_PX * sum(t.showlegend is not False for t in figure.data)
    least_px = max(figure.layout.height, legend_px + MARGINS_PX)
    figure.update_layout(height=least_px + NOTE_PX * len(lines))
    if not any(p.bars for p in panels):
        figure.add_annotation(text="no events", showarrow=False, xref="paper", x=0.5)
