"""Tokens that have chosen their experts, for the exercises of chapter 11."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from course.checks.exercise import Case
from course.checks.inputs import tensor_of
from course.parallel.moe_balance import drop
from course.parallel.moe_router import Routing, routing


@dataclass(frozen=True)
class Tokens:
    """Tokens of one rank. factor: how much room, where there is a limit."""

    tokens: int
    experts: int
    top_k: int
    factor: float | None = None
    hidden: int = 3
    seed: int = 0

    def describe(self) -> str:
        many = f"{self.tokens} token{'s' * (self.tokens > 1)}, {self.experts} experts"
        room = "" if self.factor is None else f", capacity factor {self.factor:g}"
        return f"{many}, top_k {self.top_k}{room}"

    def numbers(self, *shape: int, index: int = 0) -> torch.Tensor:
        """Small numbers with a fraction, the same at every call."""
        random = torch.Generator().manual_seed(100 * self.seed + index)
        return torch.randn(*shape, generator=random)

    def logits(self) -> torch.Tensor:
        """[t, E]: experts with low numbers are liked more, so that they overflow."""
        liked = torch.arange(self.experts).flip(0) / 2
        return self.numbers(self.tokens, self.experts) + liked

    def routing(self) -> Routing:
        """Weights are the probabilities as they are."""
        logits = self.logits()
        scores = logits.softmax(-1)
        weights, experts = scores.topk(self.top_k)
        return routing(experts, weights, scores, logits)

    def cut(self, room: int) -> Routing:
        return drop(self.routing(), room)


@dataclass(frozen=True)
class Spread(Case):
    """Tokens of several ranks, with `local` experts on each. shape: [tokens, hidden].

    uneven: rank r has r % 3 tokens more
    """

    local: int = 2
    top_k: int = 2
    uneven: bool = False

    @property
    def experts(self) -> int:
        return self.ranks * self.local

    def describe(self) -> str:
        who = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        few, wide = self.shape
        tokens = f"{few} to {few + 2}" if self.uneven else str(few)
        what = f"{tokens} tokens of {wide} elements, {self.experts} experts"
        return f"{who}, {what}, top_k {self.top_k}"

    def x(self, rank: int) -> torch.Tensor:
        """[t, h] of a rank."""
        more = rank % 3 if self.uneven else 0
        return tensor_of(self, rank, shape=(self.shape[0] + more, self.shape[1]))

    def chosen(self, rank: int) -> torch.Tensor:
        """[t, k] different experts of each token; low numbers are liked more."""
        t = self.x(rank).shape[0]
        liked = torch.arange(self.experts).flip(0) * 20
        scores = tensor_of(self, rank, 1, (t, self.experts)) + liked
        return scores.topk(self.top_k).indices

    def copies(self) -> list[tuple[int, int, int, torch.Tensor]]:
        """(expert, source rank, token, row) of every copy, sorted."""
        found = [
            (int(expert), rank, token, self.x(rank)[token])
            for rank in range(self.ranks)
            for token, row in enumerate(self.chosen(rank))
            for expert in row
        ]
        return sorted(found, key=lambda copy: copy[:3])

    def home(self, expert: int) -> int:
        return expert // self.local
