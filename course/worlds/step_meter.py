"""What a training step costs on one real rank: bytes held, bytes sent, seconds.

Three measurements, one after another, since each of the first two takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course.worlds.live_memory import live_memory
from course.worlds.profile import recording
from course.worlds.timing import time_calls

Step = Callable[[], torch.Tensor]  # does one training step, returns this rank's loss


@dataclass(frozen=True)
class StepCost:
    """One rank's view of a few steps.

    losses:      of each step, the mean over all ranks
    held_bytes:  of tensors between two steps
    peak_bytes:  at most at once
    peak_kinds:  what the peak was made of; on GPUs all of it is "other"
    sent_bytes:  of one step: what a ring sends for the collectives that it called
    """

    losses: tuple[float, ...]
    held_bytes: int
    peak_bytes: int
    peak_kinds: dict[str, int]
    sent_bytes: int


def meter_steps(begin: Callable[..., Step], *args, steps: int = 4) -> StepCost:
    """Begin a training, do some steps, and one more under the profiler. On every rank.

    begin: begin(*args) builds what is trained, and returns what does a step
    Raises ValueError for fewer than 1 step.
    """
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}")
    with live_memory() as live:
        step = begin(*args)
        losses = [step().item() for _ in range(steps)]
        held, peak, kinds = live.now(), live.peak(), live.peak_kinds()
    with recording(True) as recorded:
        step()
    means = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(means)
    return StepCost(
        losses=tuple((means / dist.get_world_size()).tolist()),
        held_bytes=held,
        peak_bytes=peak,
        peak_kinds=kinds,
        sent_bytes=recorded.trace.sent,
    )


def time_steps(steps: Mapping[str, Step], repeats: int = 9) -> dict[str, float]:
    """{name: seconds} of one step on the slowest rank, the median of the repeats.

    In each repeat all take their turn, so that a busy moment hits all alike.
    """
    calls = {name: lambda _, step=step: step() for name, step in steps.items()}
    return {t.name: t.median_s for t in time_calls(calls, [0], repeats)}
