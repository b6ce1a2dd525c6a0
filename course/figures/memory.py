"""Where training memory goes: one rank, stacked by component.

GB is 1e9 bytes, as on a GPU's data sheet. Limits are what the GPU has, all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from course.costs.memory import COMPONENTS, Setup, estimate
from course.costs.recipes import RECIPES
from course.facts import A100_40GB, B200, GB, H100, H200, RTX_4090, Gpu
from course.facts_models import MODELS
from course.figures import theme
from course.quantities import write

# colour and hatch of each component
LOOK = {
    "weights": (theme.BLUE, ""),
    "gradients": (theme.VERMILLION, ""),
    "master weights": (theme.SKY, "/"),
    "optimizer moments": (theme.ORANGE, ""),
    "gathered weights": (theme.tint(theme.BLUE, 0.45), "x"),
    "activations": (theme.GREEN, ""),
    "recomputed layer": (theme.tint(theme.GREEN, 0.45), "x"),
    "logits": (theme.PURPLE, ""),
    "buckets": (theme.tint(theme.VERMILLION, 0.45), "x"),
    "fragmentation": ("#B8BEC7", "."),
}
# hatched in white, so that a component keeps its colour
PATTERN = {"fillmode": "overlay", "fgcolor": theme.CARD, "solidity": 0.25}
LIMITS = (RTX_4090, A100_40GB, H100, H200, B200)


def in_gb(nbytes: float) -> str:
    """ "49 GB"."""
    return write(nbytes / GB, "GB")


def in_words(parts: Mapping[str, float], least_gb: float = 0.3) -> str:
    """ "weights 16.1, logits 50.4": bytes by component in GB, smaller ones left out."""
    sizes = {name: nbytes / GB for name, nbytes in parts.items()}
    return ", ".join(f"{name} {gb:.1f}" for name, gb in sizes.items() if gb > least_gb)


def training_memory(
    model: str = "Llama 3 8B",
    recipe: str = "bf16 Adam, fp32 master",
    micro_batch: int = 1,
    sequence: int | None = None,
    dp: int = 1,
    zero: int = 0,
    **setup,
) -> tuple[go.Figure, str]:
    """One model, one recipe: a bar for each way to recompute, GPU limits as lines.

    model, recipe: names in facts_models.MODELS and costs.recipes.RECIPES
    setup:         any other field of costs.memory.Setup, but recompute
    The text names the largest component, and the GPUs that are large enough.
    Raises ValueError for a name that there is not.
    """
    chosen = named("model", MODELS, model)
    common = {"micro_batch": micro_batch, "sequence": sequence, "dp": dp, "zero": zero}
    base = common | setup | {"recipe": named("recipe", RECIPES, recipe)}
    ways = ("none", "selective", "full")
    rows = {_way(w): estimate(chosen, Setup(recompute=w, **base)) for w in ways}
    tokens = f"{micro_batch} x {sequence or chosen.sequence:,} tokens"
    ranks = "1 rank" if dp == 1 else f"1 of {dp} ranks, ZeRO stage {zero}"
    figure = memory_bars(rows, f"{model}, {recipe}, {tokens}, {ranks}")
    return figure, _verdict(rows[_way("none")])


def _way(recompute: str) -> str:
    return "keep all" if recompute == "none" else f"{recompute} recompute"


def named(argument: str, table: Mapping, name: str):
    """The entry of that name. Raises ValueError where there is none."""
    if name not in table:
        raise ValueError(f"{argument} must be one of {list(table)}, not {name!r}")
    return table[name]


def _verdict(parts: dict[str, float]) -> str:
    total = sum(parts.values())
    most = max(parts, key=parts.get)
    fits = [f"{gpu.name} ({in_gb(gpu.memory_bytes)})" for gpu in _limits_from(total)]
    said = f"It fits on {', '.join(fits)}." if fits else "None of these GPUs holds it."
    share = 100 * parts[most] / total
    return f"Keep all: {in_gb(total)}. Most of it: {most}, {share:.0f} %. {said}"


def _limits_from(nbytes: float) -> list[Gpu]:
    return [gpu for gpu in LIMITS if gpu.memory_bytes >= nbytes]


def recipe_memory(
    model: str = "Llama 3 8B", micro_batch: int = 1, sequence: int | None = None, **setup
) -> tuple[go.Figure, str]:
    """One model under every recipe. setup: other fields of costs.memory.Setup.

    Raises ValueError for a name that there is not.
    """
    chosen = named("model", MODELS, model)
    base = {"micro_batch": micro_batch, "sequence": sequence} | setup
    rows = {name: estimate(chosen, Setup(r, **base)) for name, r in RECIPES.items()}
    tokens = f"{micro_batch} x {sequence or chosen.sequence:,} tokens"
    least = min(rows, key=lambda name: sum(rows[name].values()))
    text = f"Least: {least}, {in_gb(sum(rows[least].values()))}."
    return memory_bars(rows, f"{model}, {tokens}: every recipe"), text


def memory_bars(rows: Mapping[str, Mapping[str, float]], title: str) -> go.Figure:
    """Stacked bars, one a row, from {row: {component: bytes}}; GPU limits as lines.

    Raises ValueError where there is no row, or a component has no colour.
    """
    if not rows:
        raise ValueError("rows must hold one row or more")
    unknown = {part for row in rows.values() for part in row} - set(COMPONENTS)
    if unknown:
        raise ValueError(f"components must be of {COMPONENTS}, not {unknown.pop()!r}")
    totals = {name: sum(row.values()) for name, row in rows.items()}
    drawn = [c for c in COMPONENTS if any(row.get(c) for row in rows.values())]
    height = 190 + 42 * len(rows)
    figure = theme.new_figure(title, x="memory of one rank (GB)", height=height)
    figure.add_traces([_component(rows, c) for c in drawn])
    end = _end_of_axis(max(totals.values()))
    _add_limits(figure, end)
    figure.update_layout(annotations=[*figure.layout.annotations, *_totals(totals)])
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    figure.update_xaxes(range=[0, end / GB])
    below = {"orientation": "h", "y": -90 / (height - 142), "yanchor": "top"}
    figure.update_layout(barmode="stack", legend=below, legend_traceorder="normal")
    figure.update_layout(margin={"t": 80, "b": 110})
    return figure


def _component(rows: Mapping[str, Mapping[str, float]], component: str) -> dict:
    color, hatch = LOOK[component]
    values = [row.get(component, 0.0) for row in rows.values()]
    return {
        "type": "bar",
        "orientation": "h",
        "name": component,
        "y": list(rows),
        "x": [value / GB for value in values],
        "marker": {"color": color, "pattern": PATTERN | {"shape": hatch}},
        "hovertext": [f"{component}: {in_gb(value)}" for value in values],
        "hoverinfo": "text",
    }


def _totals(totals: Mapping[str, float]) -> list[dict]:
    """The sum, written at the end of each bar, over the lines of the limits."""
    return [
        {
            "x": total / GB,
            "y": name,
            "text": in_gb(total),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 6,
            "bgcolor": theme.CARD,
            "borderpad": 1,
        }
        for name, total in totals.items()
    ]


def _end_of_axis(most: float) -> float:
    """So far that the sums have room, and that the next larger GPU is seen."""
    larger = [gpu.memory_bytes for gpu in _limits_from(most)]
    return max(1.18 * most, 1.06 * larger[0] if larger else 0)


def _add_limits(figure: go.Figure, end: float) -> None:
    """A dashed line for each GPU; of those too close together, the larger."""
    last = 2 * end
    for gpu in reversed(LIMITS):
        if gpu.memory_bytes > end or last - gpu.memory_bytes < 0.1 * end:
            continue
        last = gpu.memory_bytes
        short = gpu.name.split(" SXM")[0]
        figure.add_vline(
            x=last / GB,
            line={"color": theme.INK, "dash": "dash", "width": 1.5},
            annotation_text=f"{short}<br>{in_gb(last)}",
            annotation_font={"size": 11, "color": theme.MUTED},
            annotation_position="top",
        )
