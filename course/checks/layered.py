"""A model of equal layers, for the exercises of chapter 08: its weights, shards, inputs.

n ranks. A row of P elements is cut into n shards of s = ceil(P / n) elements, the last
ones filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from course.checks.exercise import Case
from course.checks.inputs import tensor_of


@dataclass(frozen=True)
class Layered(Case):
    """A case with a model: `layers` linear layers, width to width, with biases."""

    width: int = 7
    layers: int = 8

    @property
    def elements(self) -> int:
        """Of one layer."""
        return self.width * (self.width + 1)

    @property
    def padding(self) -> int:
        return -self.elements % self.ranks

    def describe(self) -> str:
        who = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        what = f"{self.layers} layer{'s' * (self.layers > 1)} of {self.elements} elements"
        return f"{who}, {what}"


CASES = (
    Layered(4), Layered(1, width=3, layers=2), Layered(2, width=6), Layered(3, width=4),
    Layered(4, width=1, layers=3), Layered(5, width=5), Layered(8, width=5, layers=6),
)  # fmt: skip
PASSES = 2


def rows_of(case: Layered) -> list[torch.Tensor]:
    """Weights and bias of each layer, end to end, the same on all ranks."""
    shape = (case.elements,)
    return [tensor_of(case, 0, k, shape) / 50 - 1 for k in range(case.layers)]


def x_of(case: Layered, rank: int, number: int) -> torch.Tensor:
    return tensor_of(case, rank, 100 + number, (1, case.width)) / 50 - 1


def pieces_of(case: Layered, row: torch.Tensor) -> list[torch.Tensor]:
    """The shards [s] of a row, one for each rank."""
    return list(pad(row, (0, case.padding)).chunk(case.ranks))


def shard_bytes(case: Layered) -> list[int]:
    """What each rank must receive to have its shard of a layer: zeros need not travel."""
    s, last = case.piece_bytes, case.nbytes
    alone = case.ranks == 1
    return [0 if alone else max(0, min(s, last - r * s)) for r in range(case.ranks)]


def by_rank(case: Layered, rows: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Shards of all rows, for each rank."""
    return [
        list(mine) for mine in zip(*(pieces_of(case, row) for row in rows), strict=True)
    ]
