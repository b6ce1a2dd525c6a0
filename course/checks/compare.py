"""Where the result of an answer first differs from the right one."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

Fault = tuple[str, str]  # kind of verdict, sentence


@dataclass
class InPlace:
    """What an answer that works in place has left, and what it returned besides."""

    left: Any
    returned: Any


def is_whole(answer: Any) -> bool:
    """Also of NumPy's and torch's numbers; lists, longer arrays and floats are none."""
    try:
        operator.index(answer)
    except TypeError:
        return False
    return not isinstance(answer, bool)


def first_difference(results: list, expected: list) -> Fault | None:
    """The first rank's fault, all shapes before any value; None where all is equal."""
    left = [r.left if isinstance(r, InPlace) else r for r in results]
    for compare in (_shape_fault, _value_fault):
        for rank, (got, want) in enumerate(zip(left, expected, strict=True)):
            fault = compare(rank, got, want)
            if fault:
                return _told_in_place(fault, results, expected)
    return None


def _told_in_place(fault: Fault, results: list, expected: list) -> Fault:
    """Tell the reader who returned the right thing that the tensor is to be changed."""
    returned = [r.returned for r in results if isinstance(r, InPlace)]
    if len(returned) < len(expected):
        return fault
    pairs = list(enumerate(zip(returned, expected, strict=True)))
    if any(_shape_fault(r, *p) or _value_fault(r, *p) for r, p in pairs):
        return fault
    sentence = "right values in what it returns, but its argument is unchanged: "
    return "wrong values", sentence + "write into the tensor that it is given"


def _kind_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _shape_fault(rank: int, got: Any, want: Any) -> Fault | None:
    if isinstance(want, list):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            says = f"wrong shape: rank {rank} has {_kind_of(got)}, should be a list of "
            return "wrong shape", f"{says}{len(want)} tensors"
        pairs = zip(got, want, strict=True)
        faults = (_tensor_fault(f"rank {rank}, item {i}", *p) for i, p in enumerate(pairs))
        return next((fault for fault in faults if fault), None)
    return _tensor_fault(f"rank {rank}", got, want)


def _tensor_fault(where: str, got: Any, want: torch.Tensor) -> Fault | None:
    if not isinstance(got, torch.Tensor):
        says, should = _kind_of(got), f"a tensor of shape {list(want.shape)}"
    elif got.shape != want.shape:
        says, should = str(list(got.shape)), str(list(want.shape))
    elif got.dtype != want.dtype:
        says, should = str(got.dtype), str(want.dtype)
    else:
        return None
    return "wrong shape", f"wrong shape: {where} has {says}, should be {should}"


def _value_fault(rank: int, got: Any, want: Any) -> Fault | None:
    listed = isinstance(want, list)
    pairs = zip(got, want, strict=True) if listed else [(got, want)]
    for index, (mine, right) in enumerate(pairs):
        same = torch.isclose(mine, right, rtol=1e-5, atol=1e-6).flatten()
        if not same.all():
            at = int((~same).nonzero()[0])
            values = mine.flatten()[at].item(), right.flatten()[at].item()
            where = f"rank {rank}, " + (f"item {index}, " if listed else "")
            return "wrong values", (
                f"right shape, wrong values (first at {where}element {at}: "
                f"{values[0]:.7g}, should be {values[1]:.7g})"
            )
    return None
