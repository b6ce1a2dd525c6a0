"""Pipeline schedules in time: who works on which micro-batch, who idles, what is held.

One row a rank, from 0 at the top. The bubble, the idle share, is measured in the drawing
and stands beside the closed formula.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import plotly.graph_objects as go

from course.costs.pipeline import Step, bubble_s, total_from_ideal
from course.figures.pipeline_boxes import Boxes, Span, boxes_from_spans, boxes_of
from course.figures.pipeline_panels import Panel, draw
from course.parallel.schedule_time import Timeline, Times, lay_out
from course.parallel.schedules import Schedule, build
from course.quantities import write, write_seconds

# a schedule stays the same while sliders of time move
_built = lru_cache(maxsize=8)(build)


def bubble(
    schedule: str = "1F1B",
    ranks: int = 4,
    micro_batches: int = 8,
    chunks: int = 2,
    forward_ms: float = 1.0,
    input_gradient_ms: float = 1.0,
    weight_gradient_ms: float = 1.0,
    message_ms: float = 0.0,
    last_stage: float = 1.0,
) -> tuple[go.Figure, str]:
    """One schedule: its timeline, its bubble both ways, what each rank holds at most.

    schedule:   a name in parallel.schedules.SCHEDULES
    chunks:     stages on each rank, for the schedules that have several
    forward_ms, input_gradient_ms, weight_gradient_ms: of all stages of a rank together,
                so that schedules of one and of many chunks do the same work
    message_ms: from one rank to another, per micro-batch
    last_stage: how many times the work of another stage the model's last one is
    Raises ValueError for a name that there is not, and for what the schedule cannot do.
    """
    work_ms = (forward_ms, input_gradient_ms, weight_gradient_ms, message_ms)
    timeline = _laid_out(schedule, ranks, micro_batches, chunks, work_ms, last_stage)
    return schedule_timeline(timeline)


def two_schedules(
    first: str = "GPipe",
    second: str = "1F1B",
    ranks: int = 4,
    micro_batches: int = 8,
    chunks: int = 2,
    message_ms: float = 0.0,
) -> tuple[go.Figure, str]:
    """Two schedules of the same work on one axis of time, the first on top.

    1 ms forward and 2 ms backward on each rank. Otherwise as `bubble`.
    """
    pair = [
        _laid_out(name, ranks, micro_batches, chunks, (1.0, 1.0, 1.0, message_ms))
        for name in (first, second)
    ]
    panels = [Panel(_heading(t), boxes_of(t)) for t in pair]
    names = _unlike(*(t.schedule.name for t in pair))
    held = {name: _held(t) for name, t in zip(names, pair, strict=True)}
    figure = draw(f"{_size(pair[0].schedule)}: {first} and {second}", panels, held)
    return figure, _difference(*pair)


def schedule_timeline(timeline: Timeline) -> tuple[go.Figure, str]:
    """Any schedule that was laid out, e.g. torch's or the reader's own, as `bubble`."""
    schedule = timeline.schedule
    panel = Panel(_heading(timeline), boxes_of(timeline))
    title = f"{schedule.name}, {_size(schedule)}"
    figure = draw(title, [panel], {"held": _held(timeline)})
    return figure, _words(timeline)


def timelines_under_names(
    lines: Mapping[str, Timeline], title: str
) -> tuple[go.Figure, str]:
    """One or two timelines under names of one's own: nothing tells what they are.

    Raises ValueError where there are more, or none.
    """
    if not 1 <= len(lines) <= 2:
        raise ValueError(f"lines must be one timeline or two, not {len(lines)}")
    panels = [Panel(f"<b>{name}</b>", boxes_of(line)) for name, line in lines.items()]
    idle = (f"{name} {_percent(t.bubble_of_total())}" for name, t in lines.items())
    return draw(title, panels, {}), f"Idle time of the total: {', '.join(idle)}."


def measured_and_predicted(
    spans: Iterable[Span], timeline: Timeline, title: str = ""
) -> tuple[go.Figure, str]:
    """What was predicted over what was measured, on one axis of time.

    spans: (rank, kind, stage, micro_batch, start_s, end_s), as from `spans_of(run.spans)`;
           the first start of all is put at 0
    Raises ValueError where there is no span, or one of a rank that there is not.
    """
    schedule = timeline.schedule
    measured = boxes_from_spans(spans, ranks=schedule.ranks)
    panels = [
        Panel(_heading(timeline, "predicted"), boxes_of(timeline)),
        Panel(_drawn_bubble("measured", measured), measured),
    ]
    title = title or f"{schedule.name}, {_size(schedule)}: predicted and measured"
    ratio = measured.makespan_s / timeline.makespan_s
    text = (
        f"Predicted {write_seconds(timeline.makespan_s)}, "
        f"measured {write_seconds(measured.makespan_s)}: {ratio:.2f} times as long."
    )
    return draw(title, panels, {}), text


def _laid_out(name, ranks, micro_batches, chunks, work_ms, last_stage=1.0) -> Timeline:
    if not last_stage > 0:
        raise ValueError(f"last_stage must be more than 0, not {last_stage}")
    schedule = _built(name, ranks, micro_batches, chunks)
    weights = (1.0,) * (schedule.stages - 1) + (float(last_stage),)
    times = Times(*(ms / 1e3 for ms in work_ms[:3]), weights, work_ms[3] / 1e3)
    return lay_out(schedule, times.divided(schedule.chunks))


# --- Words ----------------------------------------------------------------------------


def _size(schedule: Schedule) -> str:
    batches = _many(schedule.micro_batches, "micro-batch", "micro-batches")
    said = f"{_many(schedule.ranks, 'rank', 'ranks')}, {batches}"
    return said if schedule.chunks == 1 else f"{said}, {schedule.chunks} chunks a rank"


def _many(count: float, one: str, several: str) -> str:
    return f"{write(count)} {one if count == 1 else several}"


def _percent(share: float) -> str:
    # sums of seconds differ in their last digits: equal shares are to be written alike
    return f"{round(100 * share, 6) + 0.0:.1f} %".replace(".0 %", " %")


def _both(of_total: float, of_ideal: float) -> str:
    return f"{_percent(of_total)} of total, {_percent(of_ideal)} of ideal"


def _heading(timeline: Timeline, name: str = "") -> str:
    """The bubble as drawn, and as the closed formula has it."""
    drawn = _both(timeline.bubble_of_total(), timeline.bubble_of_ideal())
    return (
        f"<b>{name or timeline.schedule.name}</b>, bubble as drawn: {drawn}"
        f"<br>{_formula(timeline)}"
    )


def _drawn_bubble(name: str, boxes: Boxes) -> str:
    total = boxes.bubble_of_total
    return f"<b>{name}</b>, bubble as drawn: {_both(total, total / (1 - total))}"


def _held(timeline: Timeline) -> list[float]:
    """Most micro-batches that each rank holds at once, all its chunks together as one."""
    return [float(n) / timeline.schedule.chunks for n in timeline.peak_in_flight()]


def _words(timeline: Timeline) -> str:
    """What stands under the picture of one schedule."""
    held, schedule = _held(timeline), timeline.schedule
    said = [
        f"All done after {write_seconds(timeline.makespan_s)}; "
        f"the average rank works {write_seconds(timeline.busy_s.mean())} of it.",
        _most(held),
    ]
    span, total = timeline.bubble_of_span(), timeline.bubble_of_total()
    if abs(span - total) > 5e-4:
        said.append(
            f"With each rank counted from its own first action: {_percent(span)} idle."
        )
    if schedule.chunks > 1:
        said.append("A letter names the chunk of the rank; later chunks are paler.")
    return " ".join(said)


def _most(held: list[float]) -> str:
    count = _many(max(held), "micro-batch", "micro-batches")
    if min(held) == max(held):
        return f"Each rank holds {count} at most."
    return f"Rank {held.index(max(held))} holds the most: {count}."


def _unlike(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (first, f"{second}, below")


def _difference(first: Timeline, second: Timeline) -> str:
    ratio = f"{second.makespan_s / first.makespan_s:.3g}"
    took = [f"{t.schedule.name} {write_seconds(t.makespan_s)}" for t in (first, second)]
    said = "equally long" if ratio == "1" else f"{ratio} times as long"
    return f"{took[0]}, {took[1]}: {said}."


# --- The closed formula ---------------------------------------------------------------

RATIOS = {
    "GPipe": ("(p-1)/(m+p-1)", "(p-1)/m"),
    "1F1B": ("(p-1)/(m+p-1)", "(p-1)/m"),
    "Interleaved 1F1B": ("(p-1)/(vm+p-1)", "(p-1)/(vm)"),
}


def _formula(timeline: Timeline) -> str:
    """What costs.pipeline says, or why it says nothing."""
    name, times = timeline.schedule.name, timeline.times
    formula = "formula" if _is_even(timeline) else "formula if all stages were equal"
    try:
        step = step_of(timeline)
        lost_s = bubble_s(name, step)
    except ValueError as rule:
        return str(rule)
    of_ideal = lost_s / step.ideal_s if step.ideal_s else 0.0
    of_total = total_from_ideal(of_ideal)
    if name in RATIOS and not times.message_s:
        total, ideal = RATIOS[name]
        return f"{formula}: {total} = {_percent(of_total)}, {ideal} = {_percent(of_ideal)}"
    return f"{formula}: {write_seconds(lost_s)}, {_both(of_total, of_ideal)}"


def _is_even(timeline: Timeline) -> bool:
    return len(set(timeline.times.stage_weights or (1.0,))) == 1


def step_of(timeline: Timeline) -> Step:
    """The step that the closed formulas of costs.pipeline speak of: stages of weight 1.

    Raises ValueError where sends block: they speak of none that do.
    """
    schedule, times = timeline.schedule, timeline.times
    if times.blocking:
        raise ValueError("this bubble has a formula only for sends that do not block")
    return Step(
        schedule.ranks,
        schedule.micro_batches,
        schedule.chunks,
        times.forward_s * schedule.chunks,
        times.input_gradient_s * schedule.chunks,
        times.weight_gradient_s * schedule.chunks,
        times.message_s,
    )
