"""Pipelines in still pictures: where the model is cut, bubble curves, what it costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from course.costs.pipeline import bubble_of_ideal, bubble_of_total
from course.costs.pipeline_stages import best_cuts, imbalance, unit_flops
from course.facts_models import MODELS
from course.figures import theme
from course.figures.memory import named
from course.parallel.schedule_time import Times, lay_out
from course.parallel.schedules import SCHEDULES, build
from course.quantities import write

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "cross",
    "x",
    "triangle-up",
    "star",
    "pentagon",
    "bowtie",
)
ROW_PX, LETTER_PX, PLOT_PX = 34, 6.5, 540


def cut_model(
    model: str = "Llama 3 8B", ranks: int = 4, sequence: int = 8192, cut: str = "best"
) -> tuple[go.Figure, str]:
    """A model cut in depth: its units in running order, each as wide as its work.

    cut: "best", by costs.pipeline_stages.best_cuts, or "equal layers": as many layers on
         each rank as on the next, the embedding with the first and the head with the last
    Raises ValueError for a model or cut that there is not, and for too many ranks.
    """
    costs = unit_flops(named("model", MODELS, model), sequence)
    if cut not in ("best", "equal layers"):
        raise ValueError(f'cut must be "best" or "equal layers", not {cut!r}')
    cuts = best_cuts(costs, ranks) if cut == "best" else equal_layers(len(costs), ranks)
    title = f"{model}, {sequence:,} tokens: {ranks} stages, {cut}"
    names = ["embedding", *map(str, range(1, len(costs) - 1)), "head"]
    figure, text = cut_units(costs, cuts, title, names=names)
    return figure, f"{text} The embedding is looked up: no matrix, no work."


def equal_layers(units: int, stages: int) -> tuple[range, ...]:
    """Cuts that count layers only; unit 0 is the embedding, the last one the head.

    Raises ValueError where the layers cannot be divided so.
    """
    layers = units - 2
    if stages < 1 or layers % stages:
        raise ValueError(f"stages must divide {layers} layers, not {stages}")
    each = layers // stages
    ends = [0, *(1 + each * s for s in range(1, stages)), units]
    return tuple(range(a, b) for a, b in zip(ends, ends[1:], strict=False))


def cut_units(
    costs: Sequence[float],
    cuts: Sequence[range],
    title: str = "Cut in depth",
    owner: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[go.Figure, str]:
    """Units in running order from left to right, each on the row of its rank.

    costs: the work of each unit, in any unit; its share of the whole is its width
    cuts:  for each stage, its units, as from `best_cuts`
    owner: for each stage, its rank, as in a Schedule (default: stage s on rank s)
    names: of the units (default: their numbers)
    Raises ValueError where the cuts do not take each unit once, in order.
    """
    if [unit for stage in cuts for unit in stage] != list(range(len(costs))):
        raise ValueError(f"cuts must take units 0 to {len(costs) - 1} once, in order")
    owner = range(len(cuts)) if owner is None else owner
    if len(owner) != len(cuts):
        raise ValueError(f"owner must name a rank for each of {len(cuts)} stages")
    share = 100 * np.array(costs, float) / sum(costs)
    ends = np.concatenate([[0.0], share.cumsum()])
    loads = [float(share[list(stage)].sum()) for stage in cuts]
    names = names or [str(unit) for unit in range(len(costs))]
    figure = _units_figure(title, cuts, owner, ends, loads, names)
    heaviest = max(range(len(loads)), key=loads.__getitem__)
    ratio = imbalance([sum(costs[u] for u in stage) for stage in cuts])
    text = (
        f"Stage {heaviest} is the heaviest, {loads[heaviest]:.1f} % of the work: "
        f"{ratio:.3g} times the average stage."
    )
    return figure, text


def _units_figure(title, cuts, owner, ends, loads, names) -> go.Figure:
    ranks = max(owner) + 1
    figure = theme.new_figure(
        title, x="depth of the model (% of the work)", height=110 + ROW_PX * ranks
    )
    drawn, rows, numbers = [], [0.0] * ranks, []
    for stage, (units, rank) in enumerate(zip(cuts, owner, strict=True)):
        rows[rank] += loads[stage]
        drawn.append(_stage(units, rank, ends))
        numbers += [(u, rank) for u in units]
    figure.add_traces([*drawn, *_unit_names(numbers, ends, names)])
    axis = theme.rank_axis(ranks)
    words = [f"rank {r}: {rows[r]:.1f} %" for r in axis["tickvals"]]
    figure.update_yaxes(axis | {"ticktext": words, "ticklabelstandoff": 4})
    figure.update_xaxes(range=[0, 100])
    return figure


def _stage(units: range, rank: int, ends: np.ndarray) -> dict:
    """The units of one stage, side by side."""
    left, right = ends[units.start : units.stop], ends[units.start + 1 : units.stop + 1]
    x = np.stack([left, left, right, right], axis=1).ravel()
    y = np.tile([rank + 0.4, rank - 0.4, rank - 0.4, rank + 0.4], len(units))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": theme.tint(theme.rank_color(rank), 0.55),
        "line": {"color": theme.CARD, "width": 1},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _unit_names(
    numbers: list[tuple[int, int]], ends: np.ndarray, names: Sequence[str]
) -> list[dict]:
    """The name of each unit that is wide enough, and points that say how much it is."""
    widths = np.diff(ends)
    wide = lambda u: widths[u] * PLOT_PX / 100 >= LETTER_PX * len(names[u]) + 2
    return [
        {
            "type": "scatter",
            "mode": "text",
            "x": [(ends[u] + ends[u + 1]) / 2 for u, _ in numbers],
            "y": [rank for _, rank in numbers],
            "text": [names[u] if wide(u) else "" for u, _ in numbers],
            "textfont": {"size": 11},
            "hovertext": [f"{names[u]}: {widths[u]:.2f} % of the work" for u, _ in numbers],
            "hoverinfo": "text",
            "showlegend": False,
        }
    ]


# --- Curves and points --------------------------------------------------------------------


def bubble_curves(
    ranks: Sequence[int] = (2, 4, 8, 16), chunks: int = 1, of: str = "total"
) -> go.Figure:
    """The bubble of GPipe, 1F1B and interleaved 1F1B against m, one curve for each p.

    of: "total" for (p-1)/(vm+p-1), "ideal" for (p-1)/(vm)
    Raises ValueError for another word, or where there is no rank to draw.
    """
    if of not in ("total", "ideal"):
        raise ValueError(f'of must be "total" or "ideal", not {of!r}')
    if not len(ranks):
        raise ValueError("ranks must name one number of ranks or more")
    share = bubble_of_total if of == "total" else bubble_of_ideal
    counts = [2**k for k in range(10)]
    figure = theme.new_figure(
        "Bubble against micro-batches" + (f", {chunks} chunks a rank" * (chunks > 1)),
        x="micro-batches m",
        y=f"bubble (% of {of} time)",
    )
    figure.add_traces(
        [
            _curve(p, counts, [100 * share(p, m, chunks) for m in counts], i)
            for i, p in enumerate(ranks)
        ]
    )
    figure.update_xaxes(type="log", tickvals=counts, ticktext=counts)
    figure.update_yaxes(rangemode="tozero")
    return figure


def _curve(ranks: int, counts: list[int], percents: list[float], place: int) -> dict:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"p = {ranks}",
        "x": counts,
        "y": percents,
        "line": {
            "dash": DASHES[place % len(DASHES)],
            "color": theme.rank_color(place),
            "width": 2.5,
        },
        "marker": {"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 6},
        "hovertemplate": f"p = {ranks}, m = %{{x}}: %{{y:.3g}} %<extra></extra>",
    }


def schedules_compared(
    ranks: int = 4,
    micro_batches: int = 16,
    chunks: int = 2,
    weight_gradient_ms: float = 1.0,
    message_ms: float = 0.0,
) -> tuple[go.Figure, str]:
    """Every schedule as a point: the most that a rank holds, and the idle share of time.

    Left and low is better. A schedule that does not take these numbers is left out, and
    the text says so; Naive, which idles most, is only told in the text. Forward and input
    gradient take 1 ms each; arguments as in figures.pipeline.bubble.
    """
    times = Times(1e-3, 1e-3, weight_gradient_ms / 1e3, message_s=message_ms / 1e3)
    points, said = {}, []
    for name in SCHEDULES:
        try:
            schedule = build(name, ranks, micro_batches, chunks)
        except ValueError as rule:
            if min(ranks, micro_batches, chunks) < 1:
                raise
            said.append(f"{name} is not drawn: {rule}.")
            continue
        timeline = lay_out(schedule, times.divided(schedule.chunks))
        held = float(timeline.peak_in_flight().max()) / schedule.chunks
        points[name] = (held, 100 * timeline.bubble_of_total())
    held, percent = points.pop("Naive")
    said.append(f"Naive holds {write(held)} and idles {percent:.0f} %: far above.")
    title = f"{ranks} ranks, {micro_batches} micro-batches: what a small bubble costs"
    return _points_figure(title, points), " ".join(said)


def _points_figure(title: str, points: dict[str, tuple[float, float]]) -> go.Figure:
    figure = theme.new_figure(
        title,
        x="micro-batches held at once on the fullest rank",
        y="bubble (% of total time)",
        height=400,
        showlegend=False,
    )
    figure.add_traces([_point(n, *point) for n, point in points.items()])
    ends = [max(numbers) for numbers in zip(*points.values(), strict=True)]
    for spot in sorted(set(map(_spot, points.values()))):
        names = [name for name, point in points.items() if _spot(point) == spot]
        figure.add_annotation(_point_label(", ".join(names), *points[names[0]]))
    figure.update_xaxes(range=[0, 1.2 * ends[0]])
    figure.update_yaxes(range=[-0.04 * ends[1], 1.12 * ends[1] + 1])
    return figure


def _spot(point: tuple[float, float]) -> tuple[float, float]:
    """Equal for points that cannot be told apart."""
    return round(point[0], 2), round(point[1], 1)


def _point(name: str, held: float, percent: float) -> dict:
    place = list(SCHEDULES).index(name)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [held],
        "y": [percent],
        "marker": {
            "symbol": SYMBOLS[place % len(SYMBOLS)],
            "color": theme.rank_color(place),
            "size": 12,
            "line": {"color": theme.INK, "width": 1},
        },
        "hovertext": [f"{name}: holds {write(held)}, idle {percent:.1f} %"],
        "hoverinfo": "text",
    }


def _point_label(names: str, held: float, percent: float) -> dict:
    return {
        "text": names,
        "x": held,
        "y": percent,
        "showarrow": False,
        "xanchor": "left",
        "xshift": 10,
    }
