"""An exercise without ranks: tensors in, one tensor out, known slips told by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from course.checks.compare import Fault
from course.checks.exercise import Exercise
from course.checks.verdict import Verdict, of_error, right, wrong


@dataclass(frozen=True, repr=False)
class Alone(Exercise):
    """An answer is called by itself, on tensors that are its own to change.

    cases:     things with describe(); the first one is the one that is shown
    given:     given(case): the arguments, made anew at every call
    expected:  expected(*arguments): the tensor to return
    slips:     slips(*arguments): {what to say of it: the tensor that a slip returns}
    axes:      names of the tensor's dims, ("token", "choice")
    """

    cases: tuple = ()
    given: Callable = field(default=None, kw_only=True)
    expected: Callable = field(default=None, kw_only=True)
    slips: Callable = field(default=None, kw_only=True)
    axes: tuple[str, ...] = field(default=(), kw_only=True)

    def grade(self, function: Callable) -> Verdict:
        for case in self.cases:
            try:
                got = function(*self.given(case))
            except Exception as error:
                return of_error(error, case.describe())
            fault = self._fault(got, case)
            if fault:
                return wrong(*fault, case.describe())
        first = f"case: {self.cases[0].describe()}"
        return right(f"right: every element, in {len(self.cases)} cases", first)

    def _fault(self, got, case) -> Fault | None:
        want = self.expected(*self.given(case))
        shape = _shape_fault(got, want)
        if shape or _same(got, want):
            return shape
        slips = self.slips(*self.given(case))
        named = [words for words, values in slips.items() if _alike(got, values, want)]
        told = f"; {named[0]}" if named else ""
        return "wrong values", self._first(got, want) + told

    def _first(self, got: torch.Tensor, want: torch.Tensor) -> str:
        """ "right shape, wrong values (first at token 2, choice 1: ...)"."""
        at = tuple((~_close(got, want)).nonzero()[0].tolist())
        where = ", ".join(f"{axis} {i}" for axis, i in zip(self.axes, at, strict=True))
        says = f"{_text(got[at])}, should be {_text(want[at])}"
        return f"right shape, wrong values (first at {where}: {says})"


def _shape_fault(got, want: torch.Tensor) -> Fault | None:
    if not isinstance(got, torch.Tensor):
        says = "nothing" if got is None else f"a {type(got).__name__}"
        should = f"a tensor of shape {list(want.shape)}"
    elif got.shape != want.shape:
        says, should = str(list(got.shape)), str(list(want.shape))
    elif got.dtype != want.dtype:
        says, should = str(got.dtype), str(want.dtype)
    else:
        return None
    return "wrong shape", f"wrong shape: {says} was returned, should be {should}"


def _close(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    exact = not a.is_floating_point()
    return a == b if exact else torch.isclose(a, b, rtol=1e-5, atol=1e-6)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(_close(a, b).all())


def _alike(got: torch.Tensor, slip: torch.Tensor, want: torch.Tensor) -> bool:
    """A slip that happens to be right in this case explains nothing."""
    return _same(got, slip) and not _same(slip, want)


def _text(element: torch.Tensor) -> str:
    value = element.item()
    return f"{value:.5g}" if isinstance(value, float) else str(value)
