"""Schedules on stages that sleep: what a pipeline's timeline is, however few the cores.

Ranks that compute on shared cores make each other slow, and no timeline of theirs is that
of a pipeline. Ranks that sleep do not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from course.parallel.pipeline import Pipeline
from course.parallel.pipeline_versions import schedule_of, step_of
from course.parallel.schedule_time import Times
from course.parallel.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Schedule,
)
from course.worlds.run import Run
from course.worlds.sleep_stage import SleepStage

WIDTH = 2  # of the rows that are sent
# what a stage does in an action, by the names that SleepStage gives
PARTS = {
    FORWARD: ("forward",),
    BACKWARD: ("input gradient", "weight gradient"),
    INPUT_GRADIENT: ("input gradient",),
    WEIGHT_GRADIENT: ("weight gradient",),
}


def begin_asleep(
    way: str, micro_batches: int, times: Times, chunks: int = 1
) -> Callable[[], torch.Tensor]:
    """Build this rank's sleeping stages; what is returned does a step of theirs.

    way:   a name in `pipeline_versions.WAYS`, but "serial"
    times: of one stage, whatever the chunks: see `Times.divided`
    The first step does not sleep: connections are set up and shapes exchanged in it.
    """
    schedule = schedule_of(way, dist.get_world_size(), micro_batches, chunks)
    me = dist.get_rank()
    mine = {s: SleepStage(0, 0, 0) for s, owner in enumerate(schedule.owner) if owner == me}
    data = torch.ones(micro_batches, WIDTH)
    step = step_of(way, mine, schedule, mse_loss, like=data[:1])
    step(data, data)
    for s, stage in mine.items():
        stage.seconds = seconds_of_stage(times, s)
    return lambda: step(data, data)


def seconds_of_stage(times: Times, stage: int) -> tuple[float, float, float]:
    """Forward, input gradient and weight gradient of one micro-batch in a stage."""
    weight = times.stage_weights[stage] if times.stage_weights else 1.0
    parts = times.forward_s, times.input_gradient_s, times.weight_gradient_s
    return tuple(weight * part for part in parts)


def step_asleep(way: str, micro_batches: int, times: Times, chunks: int = 1) -> None:
    """All ranks meet, and do one step: look at what came `window.after` the barrier."""
    step = begin_asleep(way, micro_batches, times, chunks)
    dist.barrier()
    step()


def sleep_through(schedule: Schedule, times: Times) -> int:
    """One step of any schedule, by our executor. Returns the most forwards held at once.

    times: of one stage, whatever the chunks: see `Times.divided`
    """
    me, data = dist.get_rank(), torch.ones(schedule.micro_batches, WIDTH)
    mine = {
        s: SleepStage(*seconds_of_stage(times, s))
        for s, owner in enumerate(schedule.owner)
        if owner == me
    }
    pipeline = Pipeline(mine, schedule, mse_loss, like=data[:1])
    pipeline.step(data, data)
    return pipeline.most_held


def slept(run: Run, schedule: Schedule) -> list[tuple[int, str, int, int, float, float]]:
    """(rank, kind, stage, micro_batch, start_s, end_s) of all work in a step asleep.

    Told by the order: the parts that a rank's stages slept, one after the other, are those
    of its actions. So it does not matter whose executor it was, and what it writes down.
    torch's schedules that split backwards do not split a SleepStage's.
    Raises ValueError where the run has other parts than the schedule.
    """
    names = {name for parts in PARTS.values() for name in parts}
    found = []
    for rank, order in enumerate(schedule.orders):
        parts = [s for s in run.spans if s.rank == rank and s.name in names]
        parts = iter(sorted(parts, key=lambda span: span.start_s))
        for action in order:
            mine = [next(parts, None) for _ in PARTS[action.kind]]
            if tuple(part and part.name for part in mine) != PARTS[action.kind]:
                raise ValueError(f"run must be of {schedule.name}: rank {rank}, {action}")
            found.append((rank, *action[:3], mine[0].start_s, mine[-1].end_s))
        if next(parts, None):
            raise ValueError(f"run must be of {schedule.name}: rank {rank} did more")
    return found
