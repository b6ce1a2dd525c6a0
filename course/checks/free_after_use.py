"""The exercise "free after use": ZeRO-3 with forward and backward in the reader's hands."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from course.checks.exercise import ITEM, Limits, OnRanks
from course.checks.layered import CASES, PASSES, Layered, by_rank, pieces_of, rows_of, x_of
from course.checks.memory import Held, Scale

RATE = 0.1


class _Blocks:
    """What runs a block on its whole weights, and watches what is held meanwhile.

    y = tanh(x W + b), with W and b in one row [n * s] that ends in zeros.
    """

    def __init__(self, case: Layered):
        self.case, self.scale = case, Scale()
        self.held = {"during forward": 0, "during backward": 0}
        self._is_back = False

    def weights(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        width, numel = self.case.width, self.case.elements + self.case.padding
        if len(row) != numel:
            says = f"the block's weights are a row of {numel}, not of {len(row)}"
            raise ValueError(says)
        weight, bias = row[: self.case.elements].split([width**2, width])
        return weight.view(width, width), bias

    def forward(self, whole: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self._came(back=False)
        weight, bias = self.weights(whole)
        return torch.tanh(x @ weight + bias)

    def backward(self, whole: torch.Tensor, x: torch.Tensor, grad_y: torch.Tensor):
        self._came(back=True)
        weight, bias = self.weights(whole)
        grad_z = grad_y * (1 - torch.tanh(x @ weight + bias) ** 2)
        row = torch.cat([(x.T @ grad_z).flatten(), grad_z.sum(0)])
        return grad_z @ weight.T, pad(row, (0, self.case.padding))

    def _came(self, back: bool) -> None:
        if back != self._is_back:
            self.passed(forward=back)
            self._is_back = back

    def passed(self, forward: bool) -> None:
        """A pass has ended."""
        moment = "during forward" if forward else "during backward"
        self.held[moment] = max(self.held[moment], self.scale.most())
        self.scale.mark()


def _alike(grads, shards: list[torch.Tensor]) -> bool:
    """Whether there is a gradient of the right shape for each shard."""
    if not isinstance(grads, list | tuple):
        return False
    shapes = [g.shape for g in grads if isinstance(g, torch.Tensor)]
    return len(grads) == len(shapes) and shapes == [s.shape for s in shards]


def _play_free(function, case: Layered, rank: int):
    shards = [mine.clone() for mine in by_rank(case, rows_of(case))[rank]]
    inputs = [x_of(case, rank, number) for number in range(PASSES)]
    blocks = _Blocks(case)
    for number, x in enumerate(inputs):
        grads = None
        grads = function(shards, blocks.forward, blocks.backward, x)
        blocks.passed(forward=False)
        if not _alike(grads, shards):
            return grads
        if number < PASSES - 1:
            for shard, grad in zip(shards, grads, strict=True):
                shard -= RATE * grad
    return Held(grads, blocks.held)


class _Untold(_Blocks):
    """The same arithmetic in one process, where nothing is metered."""

    def __init__(self, case: Layered):
        self.case = case

    def _came(self, back: bool) -> None:
        pass

    def gradients(self, rows: list[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
        inputs, rows = [], [pad(row, (0, self.case.padding)) for row in rows]
        for row in rows:
            inputs.append(x)
            x = self.forward(row, x)
        grad, found = torch.ones_like(x), []
        for row, x in zip(reversed(rows), reversed(inputs), strict=True):
            grad, of_row = self.backward(row, x, grad)
            found.append(of_row[: self.case.elements])
        return found[::-1]


def _block_gradients(case: Layered, number: int, rows: list[torch.Tensor]) -> list[list]:
    """Of each block, on each rank's own x."""
    blocks = _Untold(case)
    return [blocks.gradients(rows, x_of(case, r, number)) for r in range(case.ranks)]


def _mean(case: Layered, rows: tuple) -> torch.Tensor:
    """Of a block's gradients on all ranks."""
    return sum(rows) / case.ranks


def _own(case: Layered, rows: tuple) -> torch.Tensor:
    """What is scattered unreduced: rank r's own piece r."""
    pieces = [pieces_of(case, row)[rank] for rank, row in enumerate(rows)]
    return torch.cat(pieces)[: case.elements]


def _free_results(
    case: Layered, reduce=_mean, *, stale: bool = False, backwards: bool = False
) -> list:
    """Shards by rank of the last call's gradients; reduce makes one of all ranks'.

    stale: weights are never updated      backwards: gradients in the reverse order
    """
    rows = rows_of(case)
    for number in range(PASSES):
        each = zip(*_block_gradients(case, number, rows), strict=True)
        found = [reduce(case, of_block) for of_block in each][:: -1 if backwards else 1]
        if not stale:
            rows = [row - RATE * grad for row, grad in zip(rows, found, strict=True)]
    return by_rank(case, found)


def _free_slips(case: Layered) -> dict[str, list]:
    return {
        "that is the sum of gradients: divide by n": (
            _free_results(case, lambda _, rows: sum(rows))
        ),
        "that is this rank's own gradient": _free_results(case, _own),
        "those are gradients at the weights of the first call: gather again": (
            _free_results(case, stale=True)
        ),
        "those are the right shards, the last block first": (
            _free_results(case, backwards=True)
        ),
    }


def _free_limits(case: Layered) -> Limits:
    """Forward: two blocks' weights, where the next is there before the last is freed.
    Backward: their gradients too, and all shards of gradients."""
    n, m, layers = case.ranks, case.nbytes, case.layers
    block, shards = n * case.piece_bytes, layers * case.piece_bytes
    passed_on = (layers + 6) * case.width * ITEM  # x of each block, and of one at work
    most = PASSES * 3 * layers * (n - 1) * case.piece_bytes
    once = 0 if n == 1 else PASSES * layers
    return Limits(
        most,
        most,
        needs=(once * m,) * n,  # others' weights, and a gradient for the own shard
        # weights of four blocks, where they fit, might stay from forward to backward
        total=PASSES * max(2 * layers, 3 * layers - 4) * (n - 1) * m,
        held={
            "during forward": 2 * block + passed_on,
            "during backward": 5 * block + shards + passed_on,
        },
    )


FREE = OnRanks(
    "free after use",
    "08",
    "def my_zero3(shards, forward, backward, x): return gradient_shards",
    "shards[k] [s] is this rank's shard of block k's weights. y = forward(whole, x) runs a "
    "block on its whole weights, the n shards end to end; grad_x, grad_whole = "
    "backward(whole, x, grad_y) goes back through it, x being the block's input. Run all "
    "blocks forward from x, then all backward, beginning with ones as the gradient of "
    "the last y. Return this rank's shard of each block's mean gradient, in the order of "
    "blocks. Gather a block's weights before each use, forward and backward, and free "
    f"them after it. You are called {PASSES} times; shards are updated in between.",
    18,
    cases=CASES,
    play=_play_free,
    expected=_free_results,
    limits=_free_limits,
    by_hand=False,
    memory=True,
    slips=_free_slips,
    hints={
        "during forward": "inputs of the blocks, and the weights of two. Are weights freed "
        "after each block?",
        "during backward": "weights and gradients of two blocks, and all shards of "
        "gradients. Is each whole gradient reduced and freed at once?",
    },
)
