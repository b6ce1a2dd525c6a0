"""Measured times and bandwidths by message size, and the line that predicts them.

Curves are plain data, {name: {nbytes: value}}. Measured points are marks, predicted ones
lines. A full mark was used to find the line, an open mark was not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import plotly.graph_objects as go

from course.figures import theme
from course.quantities import write_bytes, write_rate, write_seconds

Curves = Mapping[str, Mapping[int, float]]
SYMBOLS = ("circle", "square", "diamond", "cross")


def measured_times(
    measured: Curves,
    predicted: Curves | None = None,
    *,
    fitted_on: Collection[int] = (),
    title: str = "Time against message size",
) -> go.Figure:
    """Seconds at each size in bytes, on log axes: measured as marks, predicted as lines.

    fitted_on: sizes that the prediction was found from; their marks are full, others open.
               Empty: all marks are full
    A prediction has the colour of the measurement of the same name.
    Raises ValueError where nothing was measured, or a value is not positive.
    """
    predicted = predicted or {}
    _check(measured, "measured")
    figure = theme.new_figure(title, x="message size, the whole buffer", y="time")
    _add(figure, measured, predicted, fitted_on, write_seconds)
    values = [v for c in (*measured.values(), *predicted.values()) for v in c.values()]
    figure.update_xaxes(theme.bytes_axis(*_span(_sizes(measured), 1.15)))
    figure.update_yaxes(theme.seconds_axis(*_decades(values)))
    return figure


def measured_bandwidths(
    measured: Curves,
    predicted: Curves | None = None,
    *,
    fitted_on: Collection[int] = (),
    wire_bytes_per_s: float | None = None,
    title: str = "Bus bandwidth against message size",
) -> go.Figure:
    """Bytes per second at each size, sizes on a log axis. Otherwise as `measured_times`.

    wire_bytes_per_s: a dotted line there, what one wire carries in one direction
    """
    predicted = predicted or {}
    _check(measured, "measured")
    figure = theme.new_figure(
        title, x="message size, the whole buffer", y="bus bandwidth (GB/s)"
    )
    _add(figure, measured, predicted, fitted_on, write_rate, per_unit=1e9)
    figure.update_xaxes(theme.bytes_axis(*_span(_sizes(measured), 1.15)))
    figure.update_yaxes(rangemode="tozero")
    if wire_bytes_per_s is not None:
        text = f"the wire, {write_rate(wire_bytes_per_s)}"
        line = {"dash": "dot", "color": theme.INK}
        place = {"annotation_text": text, "annotation_position": "top left"}
        figure.add_hline(wire_bytes_per_s / 1e9, line=line, **place)
    return figure


def _check(measured: Curves, name: str) -> None:
    values = [v for curve in measured.values() for v in curve.values()]
    if not values:
        raise ValueError(f"{name} must hold at least one point")
    if min(values) <= 0 or min(_sizes(measured)) <= 0:
        raise ValueError(f"sizes and values of {name} must all be positive")


def _sizes(curves: Curves) -> list[int]:
    return [nbytes for curve in curves.values() for nbytes in curve]


def _span(values, room: float) -> tuple[float, float]:
    """Low and high ends with some room, for a log axis."""
    return min(values) / room, max(values) * room


def _decades(values) -> tuple[float, float]:
    """Whole powers of ten around the values, so that a log axis has two labels or more."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _add(figure, measured, predicted, fitted_on, write, per_unit: float = 1.0) -> None:
    looks = _looks([*measured, *predicted])
    for name, curve in predicted.items():
        line = {"color": looks[name][0], "width": 2, "dash": "dash"}
        label = f"{name}, predicted"
        trace = _trace(label, curve, write, per_unit, mode="lines", line=line)
        figure.add_trace(trace)
    for name, curve in measured.items():
        color, symbol = looks[name]
        full = [not fitted_on or m in fitted_on for m in sorted(curve)]
        marker = {
            "color": [color if f else theme.CARD for f in full],
            "line": {"color": color, "width": 2},
            "symbol": symbol,
            "size": 9,
        }
        trace = _trace(name, curve, write, per_unit, mode="markers", marker=marker)
        figure.add_trace(trace)
    figure.update_layout(showlegend=True)


def _looks(names) -> dict[str, tuple[str, str]]:
    """Colour and symbol of each name, in order."""
    return {
        name: (theme.PALETTE[i % len(theme.PALETTE)], SYMBOLS[i % len(SYMBOLS)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def _trace(name: str, curve, write, per_unit: float, **look) -> go.Scatter:
    points = sorted(curve.items())
    return go.Scatter(
        x=[m for m, _ in points],
        y=[v / per_unit for _, v in points],
        name=name,
        hovertext=[f"{name}: {write_bytes(m)}, {write(v)}" for m, v in points],
        hoverinfo="text",
        **look,
    )
