"""What to look at when a mixture does not train well, and runs to try it on. No ranks here.

t   tokens       E   experts       k   experts that each token visits
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from course.costs.moe import capacity, dropped, imbalance
from course.parallel.moe_router import Routing

KINDS = ("collapsed", "hot experts", "even")


@dataclass(frozen=True)
class Signs:
    """largest: the highest load over the mean        dead: experts without a token

    entropy: how undecided the router is, token by token, 1 where all experts look alike
    lost:    share of the copies that found no room
    """

    largest: float
    dead: int
    entropy: float
    lost: float

    def __str__(self) -> str:
        return (
            f"largest load {self.largest:4.1f} x mean, {self.dead:>2} dead, entropy "
            f"{self.entropy:4.0%} of the most, {self.lost:5.1%} dropped"
        )


def signs(routing: Routing, ranks: int, factor: float) -> Signs:
    """Of a batch that lies on `ranks` ranks in equal parts, each counting its capacity.

    Raises ValueError where the tokens do not divide by the ranks.
    """
    t, k = routing.experts.shape
    if ranks < 1 or t % ranks:
        raise ValueError(f"ranks must divide the tokens ({t}), not {ranks}")
    room = capacity(t // ranks, k, routing.expert_count, factor)
    by_rank = routing.experts.view(ranks, -1)
    loads = [part.bincount(minlength=routing.expert_count).tolist() for part in by_rank]
    total = routing.load()
    return Signs(
        largest=imbalance(total.tolist()),
        dead=int((total == 0).sum()),
        entropy=mean_entropy(routing.probabilities) / math.log(routing.expert_count),
        lost=sum(dropped(part, room) for part in loads) / (t * k),
    )


def mean_entropy(probabilities: torch.Tensor) -> float:
    """Mean over tokens of -sum p ln p, from rows [t, E] that sum to 1."""
    return -probabilities.xlogy(probabilities).sum(-1).mean().item()


def logits_of(kind: str, tokens: int = 65536, experts: int = 64) -> torch.Tensor:
    """Logits [tokens, experts] of a router, made up, as they look in three kinds of run.

    "collapsed": two experts are far ahead. "hot experts": tokens know what they want, and
    popularity falls as 1, 1/2, 1/3. "even": every expert looks nearly alike.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {list(KINDS)}, not {kind!r}")
    drawn = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(0))
    likings = -(-drawn.clamp(min=1e-9).log()).log()  # Gumbel: each token has its own
    if kind == "collapsed":
        return likings + 12 * (torch.arange(experts) < 2)
    if kind == "hot experts":
        return 4 * (likings - (1.0 + torch.arange(experts)).log())
    return 0.3 * likings
