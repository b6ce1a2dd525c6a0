"""Experts in slots: hot ones apart, or in several places at once. Outputs stay the same.

    E  experts       S  slots, equally many on each rank       k  experts of a token

The router goes on choosing experts; each choice is then given a slot that holds the
expert. Where there are several, copies of tokens take them in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from course.parallel.moe import Experts, MoE, router_of
from course.parallel.moe_balance import places
from course.parallel.moe_router import Routing


class PlacedRouter(nn.Module):
    """A router of experts, whose choices are written as slots.

    slots: the expert in each slot, e.g. from `course.costs.moe_place.slots_apart`
    Raises ValueError where an expert has no slot.
    """

    def __init__(self, router: nn.Module, slots: Sequence[int]):
        super().__init__()
        self.router, self.slots = router, list(slots)
        experts = router.weight.shape[0]
        where = [[s for s, e in enumerate(slots) if e == i] for i in range(experts)]
        if not all(where) or len(slots) != sum(map(len, where)):
            raise ValueError(f"slots must hold each of the {experts} experts, not {slots}")
        self.copies = torch.tensor([len(own) for own in where])
        most = max(map(len, where))
        self.where = torch.tensor([own + own[:1] * (most - len(own)) for own in where])

    @property
    def weight(self) -> torch.Tensor:
        """[E, h] the gate."""
        return self.router.weight

    def forward(self, tokens: torch.Tensor) -> Routing:
        chosen = self.router(tokens)
        turn = places(chosen.experts) % self.copies[chosen.experts]
        share = chosen.probabilities / self.copies
        return replace(
            chosen,
            experts=self.where[chosen.experts, turn],
            probabilities=share[:, self.slots],
            logits=chosen.logits[:, self.slots],
        )


def placed_moe(
    hidden: int, ffn: int, experts: int, top_k: int, slots: Sequence[int], *,
    router: str = "softmax", seed: int = 0, **options,
) -> MoE:  # fmt: skip
    """An `MoE` with first weights as ever, whose experts lie in these slots.

    options: of `MoE`. Its number of experts is that of the slots, E or more. To train
    experts with several slots call `add_up_copies` before `reduce_gradients`.
    """
    moe = MoE(hidden, ffn, len(slots), top_k, seed=seed, **options)
    held = moe.experts.replicas
    moe.router = PlacedRouter(router_of(router, hidden, experts, top_k, seed), slots)
    moe.experts = Experts(hidden, ffn, slots_here(slots, moe.group), seed=seed)
    moe.experts.replicas = held
    return moe


def slots_here(slots: Sequence[int], group=None) -> list[int]:
    """The experts in this rank's slots."""
    each, me = len(slots) // dist.get_world_size(group), dist.get_rank(group)
    return list(slots[me * each : (me + 1) * each])


def add_up_copies(moe: MoE) -> None:
    """Let all slots of one expert have the sum of their gradients, in place.

    Each saw some of the expert's tokens. Without this they would drift apart.
    """
    slots = moe.router.slots
    several = [e for e in sorted(set(slots)) if slots.count(e) > 1]
    mine = slots_here(slots, moe.group)
    here = [(i, several.index(e)) for i, e in enumerate(mine) if e in several]
    for parameter in moe.experts.parameters():
        total = torch.zeros(len(several), *parameter.shape[1:], dtype=parameter.dtype)
        for slot, place in here:
            total[place] += parameter.grad[slot]
        dist.all_reduce(total, group=moe.group)
        for slot, place in here:
            parameter.grad[slot] = total[place]
