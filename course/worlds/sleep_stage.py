"""A pipeline stage that takes as long as one says, in any world."""

from __future__ import annotations

import torch
from torch import nn
from torch.profiler import record_function

from course.parallel.pipeline_backward import put_by_here
from course.worlds.spend import spend


class SleepStage(nn.Module):
    """A stage whose forward and backward take stated seconds, on top of its module's own.

    module: what it computes: one tensor in, one of floating point out. By default it
            multiplies with a parameter that is 1

    A schedule that splits backwards gets the two halves at their own times; an ordinary
    backward takes both. The time passes by `spend`: ranks that share a core sleep, so
    each takes its full time. `Run.spans` has the parts as "forward", "input gradient" and
    "weight gradient". Raises ValueError where seconds are negative.
    """

    def __init__(
        self,
        forward_s: float,
        input_gradient_s: float,
        weight_gradient_s: float,
        module: nn.Module | None = None,
    ):
        super().__init__()
        self.seconds = (forward_s, input_gradient_s, weight_gradient_s)
        if min(self.seconds) < 0:
            raise ValueError(f"seconds must be 0 or more, not {self.seconds}")
        self.module = Gain() if module is None else module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Spend.apply(self.module(x), self.seconds)


class Gain(nn.Module):
    """Multiplies with one number."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


class _Spend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, seconds):
        ctx.seconds, ctx.kept = seconds, put_by_here()
        _sleep(seconds[0], "forward")
        return y.view_as(y)

    @staticmethod
    def backward(ctx, y_grad):
        _, input_gradient_s, weight_gradient_s = ctx.seconds
        _sleep(input_gradient_s, "input gradient")
        if ctx.kept is None:
            _sleep(weight_gradient_s, "weight gradient")
        else:
            ctx.kept.add(lambda: _sleep(weight_gradient_s, "weight gradient"))
        return y_grad, None


def _sleep(seconds: float, name: str) -> None:
    with record_function(name):
        spend(seconds, name)
