"""Balance between experts: room for each, losses, and a bias that needs no loss.

    t   tokens       E   experts       k   experts that each token visits

Pure functions of a `Routing`. How much room an expert has: `course.costs.moe.capacity`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from course.parallel.moe_router import Routing

# --- Capacity -------------------------------------------------------------------------


def places(experts: torch.Tensor) -> torch.Tensor:
    """[t, k] the place of each token copy in the queue of its expert, from 0.

    All first choices come before all second ones, and so on; in each, tokens in order.
    GShard, arXiv 2006.16668, algorithm 1 (for k = 1 it is the order of Switch).
    """
    queue = experts.t().flatten()  # first choices of all tokens, then second ones
    order = queue.argsort(stable=True)
    loads = torch.bincount(queue)
    starts = loads.cumsum(0) - loads
    place = torch.empty_like(queue)
    place[order] = torch.arange(queue.numel(), device=queue.device) - starts[queue[order]]
    return place.view(experts.shape[1], -1).t()


def drop(routing: Routing, room: int) -> Routing:
    """Keep the first `room` token copies of each expert.

    A copy that is dropped adds nothing to the output: the token passes by this expert on
    the residual connection around the layer. Weights of the others stay as they are.
    """
    return replace(routing, kept=places(routing.experts) < room)


# --- Losses ---------------------------------------------------------------------------


def switch_loss(
    routing: Routing, weight: float = 1e-2, *, load: torch.Tensor | None = None
) -> torch.Tensor:
    """weight * E * sum over experts of f * P: `weight` if balanced, up to E times that.

    f     share of the token copies that chose an expert: counted, so it has no gradient
    P     mean probability of the expert: here the gradient is
    load: [E] copies that chose each expert, where more tokens than these are to be
          balanced (those of all ranks); by default those of this routing

    Switch, arXiv 2101.03961, equations 4 to 6, for k = 1.
    """
    chosen = routing.load() if load is None else load
    share = chosen / chosen.sum().clamp(min=1)
    return weight * routing.expert_count * (share * mean_probability(routing)).sum()


def gshard_loss(routing: Routing, weight: float = 1e-2) -> torch.Tensor:
    """weight * mean over experts of f * P, where f counts first choices only.

    Without Switch's factor of E^2. GShard, arXiv 2006.16668, algorithm 1.
    """
    first = torch.bincount(routing.experts[:, 0], minlength=routing.expert_count)
    share = first / max(routing.tokens, 1)
    return weight * (share * mean_probability(routing)).mean()


def z_loss(routing: Routing, weight: float = 1e-3) -> torch.Tensor:
    """weight * mean of logsumexp(logits)^2: keeps logits small, so that exp is exact.

    ST-MoE, Zoph et al. 2022, arXiv 2202.08906.
    """
    size = routing.logits.logsumexp(dim=-1) ** 2
    return weight * size.sum() / max(routing.tokens, 1)


def mean_probability(routing: Routing) -> torch.Tensor:
    """[E] P of the losses; zero where there are no tokens."""
    return routing.probabilities.sum(dim=0) / max(routing.tokens, 1)


# --- Without a loss -------------------------------------------------------------------


def updated_bias(
    bias: torch.Tensor, load: torch.Tensor, speed: float = 1e-3
) -> torch.Tensor:
    """The bias [E] for the next step: `speed` up where an expert got too little, or down.

    load: [E] token copies of each expert in this step, on all ranks

    Auxiliary-loss-free balancing: Wang et al. 2024, arXiv 2408.15664, algorithm 1;
    DeepSeek-V3, section 2.1.2.
    """
    load = load.to(bias.dtype)
    return bias + speed * torch.sign(load.mean() - load)
