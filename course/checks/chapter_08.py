"""Exercises of chapter 08: ZeRO, a stage at a time.

n ranks, M bytes in a rank's parameters. The exercises with layers have modules of their
own: `reduce_in_hook`, `free_after_use`.
"""

from __future__ import annotations

import torch
from torch import nn

from course.checks.compare import InPlace
from course.checks.exercise import ITEM, Case, Limits, OnRanks
from course.checks.free_after_use import FREE
from course.checks.inputs import tensor_of, total
from course.checks.memory import Held, Scale
from course.checks.reduce_in_hook import HOOK

STEPS = 3


def make_optimizer(parameters) -> torch.optim.Optimizer:
    """AdamW hardly sees a factor in its gradients, but for eps: so that is large here."""
    return torch.optim.AdamW(parameters, lr=0.1, eps=50.0)


def _start(case: Case) -> nn.Parameter:
    return nn.Parameter(tensor_of(case, 0, index=STEPS) / 100)


def _play_shard(function, case: Case, rank: int):
    parameter = _start(case)
    scale = Scale()
    step = function(parameter, make_optimizer)
    if not callable(step):
        return step
    for k in range(STEPS):
        parameter.grad = tensor_of(case, rank, k)
        step()
        parameter.grad = None
    return Held(InPlace(parameter.detach(), None), {"between steps": scale.now()})


def _trained(case: Case, gradients: list) -> torch.Tensor:
    """The parameter after torch's AdamW has seen those gradients, in one process."""
    parameter = _start(case)
    optimizer = make_optimizer([parameter])
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    return parameter.detach()


def _means(case: Case) -> list:
    return [total(case, k) / case.ranks for k in range(STEPS)]


def _shard_slips(case: Case) -> dict[str, list]:
    n, means = case.ranks, _means(case)
    start, right = _start(case).detach(), _trained(case, means)
    mine = [start.clone() for _ in range(n)]
    for rank, values in enumerate(mine):
        values.tensor_split(n)[rank].copy_(right.tensor_split(n)[rank])
    sums = [total(case, k) for k in range(STEPS)]
    own = [[tensor_of(case, rank, k) for k in range(STEPS)] for rank in range(n)]
    return {
        "that is what the sum of gradients gives: divide by n": [_trained(case, sums)] * n,
        "that is what this rank's own gradients give": [_trained(case, g) for g in own],
        "only this rank's shard is right: gather the others": mine,
        "the parameters are those of one step before: gather after the update": (
            [_trained(case, means[:-1])] * n
        ),
        "the parameters are as they were": [start] * n,
    }


def _shard_limits(case: Case) -> Limits:
    """Two moments and a gradient, and AdamW's count of steps, which is a tensor too."""
    n, m, piece = case.ranks, case.nbytes, case.piece_bytes
    most = STEPS * 2 * (n - 1) * piece
    needs = (STEPS * m if n > 1 else 0,) * n
    return Limits(
        most,
        most,
        needs,
        total=STEPS * 2 * (n - 1) * m,
        held={"between steps": 3 * piece + ITEM},
        held_least={"between steps": 2 * m},
    )


SHARD = OnRanks(
    "shard the optimizer",
    "08",
    "def my_zero1(parameter, make_optimizer): return step",
    "`parameter` (one dim, any length) is the same on all ranks. Return a function "
    "step(), which is called once parameter.grad holds this rank's own gradient, and "
    f"again after the next backward ({STEPS} times). It updates `parameter`, in place and "
    "on all ranks, as one AdamW would with the mean gradient; but each rank keeps "
    "optimizer state for its shard only. make_optimizer([tensor]) makes the AdamW. "
    "Functions of course.parallel.collectives and torch's collectives are allowed.",
    9,
    cases=(
        Case(4), Case(1, (5,)), Case(2, (6,)), Case(3, (7,)), Case(5, (3,)), Case(8, (21,)),
    ),
    play=_play_shard,
    expected=lambda case: [_trained(case, _means(case))] * case.ranks,
    limits=_shard_limits,
    by_hand=False,
    memory=True,
    slips=_shard_slips,
    hints={
        "between steps": "two moments of a shard, its gradient, and a count of steps. Is "
        "the optimizer made for the shard alone? If so: does a copy of the shard live "
        "beside its .grad, or a whole row behind a view of it?"
    },
)  # fmt: skip

EXERCISES = (SHARD, HOOK, FREE)
