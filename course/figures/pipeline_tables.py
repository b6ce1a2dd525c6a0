"""Pipelines in rows of text: what is held, what messages cost, published rates, stages.

p ranks, m micro-batches of a step, v chunks of the model on each rank, as in
`course.costs.pipeline`. Every time comes from a schedule that is laid out, or from a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from course.costs.pipeline import bubble_of_total, micro_batches
from course.costs.pipeline_stages import best_cuts, imbalance, unit_flops
from course.facts_models import Model
from course.facts_pipeline import ZERO_BUBBLE_TABLE_5, ZeroBubbleRow
from course.figures.pipeline_boxes import bubble_of_run
from course.parallel.schedule_time import Timeline, Times, lay_out
from course.parallel.schedules import build
from course.worlds.run import Run
from course.worlds.timing import lines_of


def laid_out(
    name: str, ranks: int, micro_batches: int, chunks: int = 1, message_s: float = 0.0
) -> Timeline:
    """1 s forward and 2 s backward of all stages of a rank, whatever its chunks."""
    schedule = build(name, ranks, micro_batches, chunks)
    return lay_out(schedule, Times(message_s=message_s).divided(schedule.chunks))


def held_table(names: Sequence[str], ranks: int, counts: Sequence[int]) -> str:
    """A row for each m: the seconds of a step, and what each rank holds at most."""
    rows = [["m", *(word for name in names for word in (name, "each rank holds"))]]
    for m in counts:
        row = [str(m)]
        for line in (laid_out(name, ranks, m) for name in names):
            row += [f"{line.makespan_s:g} s", str(_held(line))]
        rows.append(row)
    return lines_of(rows)


def _held(line: Timeline) -> list[int]:
    return line.peak_in_flight().astype(int).tolist()


def message_table(
    names: Sequence[str], ranks: int, m: int, messages_s: Sequence[float], chunks: int
) -> str:
    """A row for each time of a message: the seconds of a step."""
    rows = [["message", *names]]
    for message_s in messages_s:
        lines = [laid_out(name, ranks, m, chunks, message_s) for name in names]
        rows.append([f"{message_s:g} s", *(f"{s.makespan_s:.1f} s" for s in lines)])
    return lines_of(rows)


def chunks_table(runs: Mapping[int, Run]) -> str:
    """Recorded runs by v. Their results are the most forwards that each rank held."""
    rows = [["v", "bubble of total", "messages", "rank 0 holds"]]
    for chunks, run in runs.items():
        held = f"{run.results[0] / chunks:.2f}"
        bubble = f"{bubble_of_run(run):.1%}"
        rows.append([str(chunks), bubble, str(len(run.messages)), held])
    return lines_of(rows)


def bubbles_table(
    names: Sequence[str], ranks: int, m: int, chunks: int, message_s: float
) -> str:
    """A row for each schedule: its bubble three ways, and with messages.

    held: on the fullest rank, in micro-batches of all that the rank owns
    """
    slow = f"bubble if c = {message_s:g} s"
    rows = [["", "bubble", "of total", "of own span", "held", slow]]
    for name in names:
        line = laid_out(name, ranks, m, chunks)
        late = laid_out(name, ranks, m, chunks, message_s)
        held = line.peak_in_flight().max() / line.schedule.chunks
        shares = line.bubble_of_total(), abs(line.bubble_of_span())
        rows.append([name, f"{_lost_s(line):.1f} s", *(f"{x:.1%}" for x in shares)])
        rows[-1] += [f"{held:.1f}", f"{_lost_s(late):.1f} s"]
    return lines_of(rows)


def _lost_s(line: Timeline) -> float:
    """Seconds that a step takes longer than its work."""
    return line.makespan_s - float(line.busy_s.mean())


# --- Published ------------------------------------------------------------------------


def table_5_rate(name: str, row: ZeroBubbleRow, *, messages: bool = True) -> float:
    """Our bubble rate at the published times of a row, rounded as it is there."""
    times = Times(row.forward_s, row.input_gradient_s, row.weight_gradient_s)
    if messages:
        times = replace(times, message_s=row.message_s)
    schedule = build(name, row.ranks, row.micro_batches)
    return round(lay_out(schedule, times).bubble_of_span(), 4)


def table_5(names: Sequence[str]) -> str:
    """Ours for each row of Qi et al.'s Table 5: without messages, then with them.

    The last column is the time of a message over that of a micro-batch's work.
    """
    rows = [["model", "p", "m", "1F1B, c = 0", *names, "c / (tf + tb)"]]
    for row in ZERO_BUBBLE_TABLE_5:
        rates = [table_5_rate("1F1B", row, messages=False)]
        rates += [table_5_rate(name, row) for name in names]
        work_s = row.forward_s + row.input_gradient_s + row.weight_gradient_s
        rows.append([row.model, str(row.ranks), str(row.micro_batches)])
        rows[-1] += [*(f"{rate:.4f}" for rate in rates), f"{row.message_s / work_s:.1%}"]
    return lines_of(rows)


# --- Unequal stages, how many micro-batches ------------------------------------------


def stages_table(
    stage_weights: Mapping[str, Sequence[float]], counts: Sequence[int]
) -> str:
    """1F1B: idle time for each m, and how busy each rank is at the last m."""
    rows = [["", *(f"m = {m}" for m in counts), "each rank busy"]]
    for name, weights in stage_weights.items():
        times = Times(stage_weights=tuple(weights))
        lines = [lay_out(build("1F1B", len(weights), m), times) for m in counts]
        rows.append([name, *(f"{line.bubble_of_total():.1%}" for line in lines)])
        rows[-1].append(busy_shares(lines[-1]))
    return lines_of(rows)


def busy_shares(line: Timeline) -> str:
    """For each rank the share of the step in which it works."""
    return " ".join(f"{share:.0%}" for share in line.busy_s / line.makespan_s)


def heads_table(models: Sequence[Model], sequence: int, ranks: Sequence[int]) -> str:
    """The work of the head in layers; the heaviest stage over the average at best cuts."""
    rows = [["", "head, in layers", *(f"best cut, p = {p}" for p in ranks)]]
    for model in models:
        costs = unit_flops(model, sequence)
        rows.append([model.name, f"{costs[-1] / costs[1]:.2f}"])
        for p in ranks:
            stages = [sum(costs[u] for u in units) for units in best_cuts(costs, p)]
            rows[-1].append(f"{imbalance(stages):.2f}")
    return lines_of(rows)


def global_batch_table(
    global_batch: int, data_parallel: Sequence[int], ranks: int, chunks: Sequence[int]
) -> str:
    """A row for each number of pipelines, at micro-batches of one sequence: m, bubbles."""
    rows = [["d", "m", *(f"of total, v = {v}" for v in chunks)]]
    for d in data_parallel:
        m = micro_batches(global_batch, d, 1)
        rows.append(
            [str(d), str(m), *(f"{bubble_of_total(ranks, m, v):.1%}" for v in chunks)]
        )
    return lines_of(rows)


def longer_table(lines: Mapping[str, Timeline], factors: Sequence[int]) -> str:
    """Idle time of each schedule if a step has so many times as many micro-batches."""
    rows = [["", *("m" if k == 1 else f"{k}m" for k in factors), "each rank busy"]]
    for name, line in lines.items():
        rows.append([name])
        for k in factors:
            was = line.schedule
            more = build(was.name, was.ranks, k * was.micro_batches, was.chunks)
            rows[-1].append(f"{lay_out(more, line.times).bubble_of_total():.1%}")
        rows[-1].append(busy_shares(line))
    return lines_of(rows)
