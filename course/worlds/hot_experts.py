"""A step of an MoE layer whose experts sleep: the rank with most rows sets its length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from course.parallel.moe_traffic import my_tokens
from course.parallel.moe_versions import Task, begin_moe
from course.worlds.sleep_experts import SleepExperts
from course.worlds.step_meter import time_steps


@dataclass(frozen=True)
class Hot:
    """One rank's view of a case.

    rows:    that its experts work on
    dropped: copies of its tokens that go nowhere
    error:   the task's loss in the last step of training; nan where there was none
    seconds: of a step of the layer, forward and backward, on the slowest rank
    """

    rows: int
    dropped: int
    error: float
    seconds: float = 0.0


def begin_hot(
    task: Task, train: int, row_s: float
) -> tuple[Callable[[], torch.Tensor], Hot]:
    """Train with "EP", then put the experts to sleep: (a step of the layer, the case).

    The step is forward and backward on the first batch, and no update: the same rows in
    each. The first one, already done, does not sleep.
    """
    step, error = begin_moe("EP", task), float("nan")
    for _ in range(train):
        step()
        error = step.error.item()
    moe, mine = step.model.moe, my_tokens(task).requires_grad_()  # as after other layers
    moe.experts = SleepExperts(moe.experts, 0.0)

    def layer_step() -> torch.Tensor:
        loss = moe(mine).square().sum()
        loss.backward()
        return loss.detach()

    layer_step()
    moe.experts.seconds_of_row = row_s
    return layer_step, Hot(moe.experts.rows, moe.routing.dropped, error)


def time_hot(
    cases: Mapping[str, tuple[Task, int]], row_s: float, repeats: int = 3
) -> dict[str, Hot]:
    """Every case, timed in turn. cases: {name: (task, steps of training before)}."""
    begun = {name: begin_hot(*case, row_s) for name, case in cases.items()}
    seconds = time_steps({name: step for name, (step, _) in begun.items()}, repeats)
    return {name: replace(hot, seconds=seconds[name]) for name, (_, hot) in begun.items()}


def one_hot_step(task: Task, train: int, row_s: float) -> None:
    """All ranks meet, and do one step: look at what came `window.after` the barrier."""
    step, _ = begin_hot(task, train, row_s)
    dist.barrier()
    step()
