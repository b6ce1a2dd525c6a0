"""ZeRO in pictures: model states against N, how large a unit to gather, metered peaks.

GB is 1e9 bytes, as on a GPU's data sheet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import plotly.graph_objects as go

from course.costs.recipes import RECIPES, Recipe
from course.costs.zero import (
    STAGES,
    Granularity,
    gather_seconds,
    granularity,
    grouped,
    state_bytes_per_rank,
)
from course.facts import GB, H100, NVLINK4, Gpu, Link
from course.facts_models import MODELS, Model
from course.figures import theme
from course.figures.memory import LOOK, PATTERN, in_gb, named
from course.quantities import write, write_seconds

_STAGE_LOOK = (
    ("plain data parallel", theme.INK, "dot"),
    ("ZeRO-1: optimizer", theme.ORANGE, "dashdot"),
    ("ZeRO-2: and gradients", theme.VERMILLION, "dash"),
    ("ZeRO-3, FSDP: and weights", theme.BLUE, "solid"),
)


def zero_stages(
    parameters: float = 7e9,
    recipe: str = "bf16 Adam, fp32 master",
    gpu: Gpu = H100,
    ranks: int = 64,
) -> tuple[go.Figure, str]:
    """Bytes of model states on a rank against N, one curve a stage, one GPU as a limit.

    ranks: where the text reads the curves off, and a line is drawn
    Raises ValueError for fewer than 1 parameter or rank, or for a recipe that is unknown
    or freezes the base.
    """
    chosen = named("recipe", RECIPES, recipe)
    if parameters < 1:
        raise ValueError(f"parameters must be 1 or more, not {parameters}")
    at = [state_bytes_per_rank(chosen, parameters, ranks, stage) for stage in STAGES]
    size = write(parameters / 1e9, "billion")
    figure = theme.new_figure(
        f"Model states of {size} parameters, {recipe}: one rank of N",
        x="data-parallel ranks N",
        y="GB on each rank",
        height=400,
    )
    counts = [2**k for k in range(11)]
    figure.add_traces([_stage_curve(chosen, parameters, counts, s) for s in STAGES])
    figure.update_xaxes(type="log", tickvals=counts[::2], ticktext=counts[::2])
    figure.update_yaxes(_gb_axis(figure, gpu.memory_bytes))
    figure.add_trace(_limit(gpu, counts))
    figure.add_vline(x=ranks, line={"color": theme.MUTED, "width": 1, "dash": "dot"})
    return figure, f"N = {ranks}: {', '.join(in_gb(b) for b in at)} for stages 0 to 3."


def _limit(gpu: Gpu, counts: list[int]) -> dict:
    """The GPU's memory, as a line of the legend."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{gpu.name}, {in_gb(gpu.memory_bytes)}",
        "x": [counts[0], counts[-1]],
        "y": [gpu.memory_bytes / GB] * 2,
        "line": {"color": theme.MUTED, "dash": "longdash", "width": 1.5},
    }


def _gb_axis(figure: go.Figure, limit_bytes: float) -> dict:
    """A log axis with a tick at each power of ten, around all curves and the limit."""
    drawn = [y for curve in figure.data for y in curve.y] + [limit_bytes / GB]
    low, high = math.log10(min(drawn)), math.log10(max(drawn))
    ticks = [10.0**k for k in range(math.floor(low), math.ceil(high) + 1)]
    pad = 0.06 * (high - low)
    return {
        "type": "log",
        "range": [low - pad, high + pad],
        "tickvals": ticks,
        "ticktext": [write(tick) for tick in ticks],
    }


def _stage_curve(recipe: Recipe, parameters: float, counts: list[int], stage: int) -> dict:
    name, color, dash = _STAGE_LOOK[stage]
    values = [state_bytes_per_rank(recipe, parameters, n, stage) for n in counts]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": counts,
        "y": [value / GB for value in values],
        "line": {"color": color, "dash": dash, "width": 2.5},
        "hovertext": [
            f"{name}, N = {n}: {in_gb(v)}" for n, v in zip(counts, values, strict=True)
        ],
        "hoverinfo": "text",
    }


# --- Wrapping -----------------------------------------------------------------------------


def granularity_curve(
    model: str = "Llama 3 8B", ranks: int = 8, link: Link = NVLINK4, itemsize: int = 2
) -> tuple[go.Figure, str]:
    """Peak of gathered weights against the gathers of a step, 1, 2, 4 ... layers a unit.

    The numbers beside the points: layers a unit. The embedding and the head are units of
    their own. Two curves: one unit gathered ahead, as FSDP2 does in backward, and none.
    Raises ValueError for a name that there is not.
    """
    chosen = named("model", MODELS, model)
    wraps = {n: wrapped(chosen, n) for n in _sizes(chosen.layers)}
    title = f"{model} in {itemsize}-byte weights: how large a unit?"
    figure = theme.new_figure(
        title, x="all-gathers of a step", y="gathered weights at the peak (GB)"
    )
    figure.add_trace(_wraps(wraps, 1, itemsize, ranks, link))
    figure.add_trace(_wraps(wraps, 0, itemsize, ranks, link))
    points = [granularity(units, itemsize) for units in wraps.values()]
    gathers = [point.gathers for point in points]
    figure.update_xaxes(type="log", tickvals=gathers, ticktext=gathers)
    fine, coarse = points[0], points[-1]
    figure.update_yaxes(range=[0, 1.15 * coarse.peak_bytes / GB])
    said = [_in_words(point, itemsize, ranks, link) for point in (fine, coarse)]
    return figure, (
        f"One layer a unit: {said[0]}. All layers in one: {said[1]}. "
        f"({ranks} ranks, {link.name})"
    )


def _in_words(point: Granularity, itemsize: int, ranks: int, link: Link) -> str:
    pass_s = gather_seconds(point.units, itemsize, ranks, link)
    return (
        f"{in_gb(point.peak_bytes)} and {point.gathers} gathers, "
        f"{write_seconds(pass_s)} for those of one pass"
    )


def wrapped(model: Model, layers_per_unit: int) -> tuple[float, ...]:
    """Parameters of each unit: the embedding, groups of layers, the head."""
    first, *layers, last = model.units
    return (first, *grouped(layers, layers_per_unit), last)


def _sizes(layers: int) -> list[int]:
    """1, 2, 4, ... and all layers."""
    powers = [2**k for k in range(layers.bit_length()) if 2**k < layers]
    return [*powers, layers]


def _wraps(wraps: dict, prefetch: int, itemsize: int, ranks: int, link: Link) -> dict:
    """One curve, a point for each size of unit."""
    found = {
        n: granularity(units, itemsize, prefetch=prefetch) for n, units in wraps.items()
    }
    labels = [f"{n} layer{'s' * (n > 1)} a unit" for n in found]
    pass_s = [gather_seconds(units, itemsize, ranks, link) for units in wraps.values()]
    return {
        "type": "scatter",
        "mode": "lines+markers+text" if prefetch else "lines+markers",
        "name": "one unit ahead" if prefetch else "no prefetch",
        "x": [f.gathers for f in found.values()],
        "y": [f.peak_bytes / GB for f in found.values()],
        "text": [str(n) for n in found],
        "textposition": "top right",
        "line": {
            "color": theme.BLUE if prefetch else theme.VERMILLION,
            "dash": "solid" if prefetch else "dash",
        },
        "hovertext": [
            f"{label}: {f.gathers} gathers, {in_gb(f.peak_bytes)}"
            f"<br>one pass over {link.name}, {ranks} ranks: {write_seconds(s)}"
            for label, f, s in zip(labels, found.values(), pass_s, strict=True)
        ],
        "hoverinfo": "text",
    }


# --- Measured -----------------------------------------------------------------------------

UNITS = {"GB": GB, "MB": 1e6}
# colour and hatch of each kind of a run's `peak_kinds`, as in the bars of model states
KIND_LOOK = {
    "parameters": LOOK["weights"],
    "gathered parameters": LOOK["gathered weights"],
    "gradients": LOOK["gradients"],
    "optimizer state": LOOK["optimizer moments"],
    "communication": LOOK["buckets"],
    "activations": LOOK["activations"],
    "other": LOOK["fragmentation"],
}


def metered_peaks(
    metered: Mapping[str, Mapping[str, float]],
    computed: Mapping[str, float],
    title: str = "Peak of one rank: metered bars, computed model states",
    *,
    mark: str = "computed: model states",
    unit: str = "GB",
) -> go.Figure:
    """One bar a row of what was held at the peak; a mark where the arithmetic stands.

    metered:  {row: {kind: bytes}}, as `Run.peak_kinds` has them
    computed: {row: bytes} of model states, or of what `mark` says
    unit:     "GB" or "MB", of the axis
    Raises ValueError where there is no row, where the rows differ, or for an unknown kind
    or unit.
    """
    if not metered or list(metered) != list(computed):
        raise ValueError("metered and computed must have the same rows, one or more")
    unknown = {kind for row in metered.values() for kind in row} - set(KIND_LOOK)
    if unknown:
        raise ValueError(f"kinds must be of {list(KIND_LOOK)}, not {unknown.pop()!r}")
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {list(UNITS)}, not {unit!r}")
    metered = _visible(metered)
    height = 190 + 38 * len(metered)
    figure = theme.new_figure(title, x=f"memory of one rank ({unit})", height=height)
    drawn = [k for k in KIND_LOOK if any(row.get(k) for row in metered.values())]
    figure.add_traces([_kind_bar(metered, kind, unit) for kind in drawn])
    figure.add_trace(_computed(computed, mark, unit))
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    below = {"orientation": "h", "y": -90 / (height - 142), "yanchor": "top"}
    figure.update_layout(barmode="stack", legend=below, legend_traceorder="normal")
    figure.update_layout(margin={"b": 110})
    return figure


def _visible(rows: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The rows with kinds below a pixel joined to "other"."""
    pixel = max(sum(row.values()) for row in rows.values()) / 1000
    kinds = {k for row in rows.values() for k, nbytes in row.items() if nbytes >= pixel}
    joined = {}
    for name, row in rows.items():
        joined[name] = {k: nbytes for k, nbytes in row.items() if k in kinds - {"other"}}
        rest = sum(row.values()) - sum(joined[name].values())
        joined[name] |= {"other": rest} if rest else {}
    return joined


def _kind_bar(rows: Mapping[str, Mapping[str, float]], kind: str, unit: str) -> dict:
    color, hatch = KIND_LOOK[kind]
    values = [row.get(kind, 0) for row in rows.values()]
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": list(rows),
        "x": [value / UNITS[unit] for value in values],
        "marker": {"color": color, "pattern": PATTERN | {"shape": hatch}},
        "hovertext": [f"{kind}: {write(v / UNITS[unit], unit)}" for v in values],
        "hoverinfo": "text",
    }


def _computed(rows: Mapping[str, float], mark: str, unit: str) -> dict:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": mark,
        "y": list(rows),
        "x": [value / UNITS[unit] for value in rows.values()],
        "marker": {
            "symbol": "line-ns",
            "size": 18,
            "line": {"width": 3, "color": theme.INK},
        },
        "hovertext": [f"{mark}: {write(v / UNITS[unit], unit)}" for v in rows.values()],
        "hoverinfo": "text",
    }
