"""The exercise "reduce-scatter in the hook": gradients leave while backward runs."""

from __future__ import annotations

import torch
from torch import nn

from course.checks.exercise import Limits, OnRanks
from course.checks.layered import (
    CASES,
    PASSES,
    Layered,
    by_rank,
    rows_of,
    shard_bytes,
    x_of,
)  # fmt: skip
from course.checks.memory import Held, Scale


def _model(case: Layered) -> nn.Sequential:
    layers = [nn.Linear(case.width, case.width) for _ in range(case.layers)]
    for layer, row in zip(layers, rows_of(case), strict=True):
        weight, bias = row.split([case.width**2, case.width])
        layer.weight.data, layer.bias.data = weight.view_as(layer.weight), bias
    return nn.Sequential(*(nn.Sequential(layer, nn.Tanh()) for layer in layers))


def _play_hook(function, case: Layered, rank: int):
    torch.manual_seed(rank)
    model = _model(case)
    buckets = [list(layer.parameters()) for layer in reversed(model)]
    finish = function([list(bucket) for bucket in buckets])
    if not callable(finish):
        return finish
    most = 0
    for number in range(PASSES):
        shards = None
        loss = model(x_of(case, rank, number)).sum()
        scale = Scale()
        loss.backward()
        shards = finish()
        most = max(most, scale.most())
    return Held(shards, {"during backward": most})


def _own_gradients(case: Layered, rank: int, number: int) -> list[torch.Tensor]:
    """Of each layer as a row, the last layer first."""
    model = _model(case)
    model(x_of(case, rank, number)).sum().backward()
    layers = [[p.grad.flatten() for p in layer.parameters()] for layer in reversed(model)]
    return [torch.cat(gradients) for gradients in layers]


def _summed(case: Layered, number: int) -> list[torch.Tensor]:
    each = [_own_gradients(case, rank, number) for rank in range(case.ranks)]
    return [sum(rows) for rows in zip(*each, strict=True)]


def _hook_expected(case: Layered, number: int = PASSES - 1) -> list:
    return by_rank(case, [row / case.ranks for row in _summed(case, number)])


def _hook_slips(case: Layered) -> dict[str, list]:
    right, first = _hook_expected(case), _hook_expected(case, 0)
    each = range(case.ranks)
    own = [by_rank(case, _own_gradients(case, r, PASSES - 1))[r] for r in each]
    pairs = [zip(*both, strict=True) for both in zip(first, right, strict=True)]
    added = [[a + b for a, b in pair] for pair in pairs]
    last = f"item {case.layers - 1}"
    return {
        "that is the sum of gradients: divide by n": by_rank(
            case, _summed(case, PASSES - 1)
        ),
        "that is this rank's own gradient": own,
        "that is 1/n of this rank's own gradient": [
            [g / case.ranks for g in r] for r in own
        ],
        "those are the right shards, the last bucket first": [r[::-1] for r in right],
        f"all are right but {last}: is the last bucket reduced?": (
            [[*right[r][:-1], own[r][-1]] for r in each]
        ),
        f"all are right but {last}, all zeros: is the last bucket reduced?": (
            [[*right[r][:-1], torch.zeros_like(own[r][-1])] for r in each]
        ),
        "those are the shards of the first backward": first,
        "gradients of both backwards are added up: set .grad to None": added,
    }


def _hook_limits(case: Layered) -> Limits:
    """All shards, and of whole gradients four buckets at most: two that move or are
    copied, two that grow."""
    n, m, layers = case.ranks, case.nbytes, case.layers
    most = PASSES * layers * (n - 1) * case.piece_bytes
    bucket = n * case.piece_bytes
    return Limits(
        most,
        most,
        needs=tuple(PASSES * layers * nbytes for nbytes in shard_bytes(case)),
        total=PASSES * layers * (n - 1) * m,
        held={"during backward": layers * case.piece_bytes + 4 * bucket},
    )


HOOK = OnRanks(
    "reduce-scatter in the hook",
    "08",
    "def my_reduce_in_backward(buckets): return finish",
    "`buckets` is a list of lists of parameters, in the order in which backward makes "
    "their gradients. Register hooks (register_post_accumulate_grad_hook), so that as soon "
    "as all of a bucket's gradients are made, they are laid end to end, filled up with "
    "zeros until n divides the row, and reduce-scattered; and whole gradients are freed. "
    "Return a function finish(), which is called after backward and returns this rank's "
    "shard of each bucket's mean gradient: a list, in the order of buckets. Backward and "
    f"finish() come {PASSES} times.",
    22,
    cases=CASES,
    play=_play_hook,
    expected=_hook_expected,
    limits=_hook_limits,
    by_hand=False,
    memory=True,
    slips=_hook_slips,
    hints={
        "during backward": "the shards of all buckets, and whole gradients of two or "
        "three. Is each .grad set to None when its bucket goes?"
    },
)
