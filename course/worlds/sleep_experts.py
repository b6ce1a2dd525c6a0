"""Experts that take so long for each row, in any world: who is hot can then be seen.

Ranks that compute on shared cores make each other slow. Ranks that sleep do not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.profiler import record_function

from course.worlds.run import Run
from course.worlds.spend import spend

FORWARD, BACKWARD = "experts", "experts, backward"
BACKWARD_RATIO = 2  # a product's backward is two products


class SleepExperts(nn.Module):
    """Experts that sleep for each of their rows, on top of what they do.

    experts:        what they compute: a list of rows in, a list of rows out
    seconds_of_row: in forward; in backward twice as long. May be changed at any time
    rows:           how many the last forward had

    `Run.spans` has the two as "experts" and "experts, backward". Raises ValueError for
    seconds that are negative.
    """

    def __init__(self, experts: nn.Module, seconds_of_row: float):
        super().__init__()
        if seconds_of_row < 0:
            raise ValueError(f"seconds_of_row must be 0 or more, not {seconds_of_row}")
        self.experts, self.seconds_of_row, self.rows = experts, seconds_of_row, 0

    def forward(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        self.rows = sum(map(len, rows))
        seconds = self.seconds_of_row * self.rows
        return list(_Sleep.apply(seconds, *self.experts(rows)))


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, seconds, *rows):
        ctx.seconds = seconds
        _sleep(seconds, FORWARD)
        return tuple(part.view_as(part) for part in rows)

    @staticmethod
    def backward(ctx, *gradients):
        _sleep(BACKWARD_RATIO * ctx.seconds, BACKWARD)
        return None, *gradients


def _sleep(seconds: float, name: str) -> None:
    with record_function(name):
        spend(seconds, name)


def step_seconds(rows: int, seconds_of_row: float) -> float:
    """Asleep in one step, forward and backward, of a rank with so many rows."""
    return (1 + BACKWARD_RATIO) * rows * seconds_of_row


def asleep_and_talking(run: Run) -> Run:
    """The run with sleep and exchanges alone, to be drawn: other events left out."""
    naps = [span for span in run.spans if span.name in (FORWARD, BACKWARD)]
    talk = [event for event in run.events if event.name == "all_to_all"]
    events = sorted([*naps, *talk], key=lambda e: (e.start_s, e.rank))
    return replace(run, _events=tuple(events), _spans=())
