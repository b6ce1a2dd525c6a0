"""Answers to the exercises of chapter 11 and of lab 06, to be shown under their checks.

t tokens of a rank, E experts, k choices a token, n ranks, h hidden.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.functional import one_hot

from course.costs.moe import capacity, imbalance

# --- Chapter 11 -----------------------------------------------------------------------


def capacity_mask(experts: torch.Tensor, expert_count: int, factor: float) -> torch.Tensor:
    """A copy's place is the number of earlier copies for its expert."""
    t, k = experts.shape
    queue = experts.t().flatten()  # first choices of all tokens, then second ones
    served = one_hot(queue, expert_count).cumsum(0)  # copies for each expert, up to here
    place = served.gather(1, queue[:, None]) - 1
    return place.view(k, t).t() < capacity(t, k, expert_count, factor)


def dispatch(x: torch.Tensor, experts: torch.Tensor, expert_count: int) -> torch.Tensor:
    """Sort copies by expert, tell counts, send rows, sort what came by expert."""
    ranks, k = dist.get_world_size(), experts.shape[1]
    local = expert_count // ranks
    order = experts.flatten().argsort(stable=True)  # copy c is of token c // k
    mine = experts.flatten().bincount(minlength=expert_count).view(ranks, local)
    theirs = torch.empty_like(mine)  # [from rank, for which of my experts]
    dist.all_to_all_single(theirs, mine)
    sends, receives = mine.sum(1).tolist(), theirs.sum(1).tolist()
    rows = x.new_empty(sum(receives), x.shape[1])
    dist.all_to_all_single(rows, x[order // k], receives, sends)
    for_expert = torch.arange(local).repeat(ranks).repeat_interleave(theirs.flatten())
    return rows[for_expert.argsort(stable=True)]


def unpermute(
    x: torch.Tensor, rows: torch.Tensor, order: torch.Tensor, probabilities: torch.Tensor
) -> torch.Tensor:
    """Each row, times the weight of its copy, is added to its token."""
    k = probabilities.shape[1]
    weights = probabilities / probabilities.sum(-1, keepdim=True)
    weight = weights.flatten()[order]  # of each row
    return x.index_add(0, order // k, rows * weight[:, None])


def gate_gradient(
    logits: torch.Tensor,
    experts: torch.Tensor,
    outputs: torch.Tensor,
    gradient: torch.Tensor,
) -> torch.Tensor:
    """dy/dw is the expert's output; then the softmax over the chosen logits."""
    weights = logits.gather(1, experts).softmax(-1)
    each = (outputs * gradient[:, None]).sum(-1)  # [t, k], of the weights
    chosen = weights * (each - (weights * each).sum(-1, keepdim=True))
    return torch.zeros_like(logits).scatter(1, experts, chosen)


# --- Lab 06 ---------------------------------------------------------------------------


def traffic_matrix(
    routes: list[list[list[int]]], experts: int, row_bytes: int
) -> list[list[int]]:
    """A row for each copy whose expert lives on another rank."""
    ranks = len(routes)
    matrix = [[0] * ranks for _ in routes]
    for source, tokens in enumerate(routes):
        for expert in [expert for token in tokens for expert in token]:
            home = expert // (experts // ranks)
            if home != source:
                matrix[source][home] += row_bytes
    return matrix


def which_trouble(
    loads: list[list[int]], entropy: list[float], dropped: list[float]
) -> str:
    """The last step says whether loads are even; the first, whether that is new."""
    first, last = imbalance(loads[0]), imbalance(loads[-1])  # largest load over the mean
    if last > 1.5:
        grew = last > 1.2 * first and entropy[-1] < 0.9 * entropy[0]
        return "router" if grew else "balance"
    return "capacity" if dropped[-1] > 0.05 else "none"
