"""A mixture-of-experts layer, spread over ranks by expert, and the same in one process.

    t   tokens of this rank    E   experts    k   that each token visits
    h   hidden                 f   inner width of an expert
    n   ranks of the expert-parallel group; each holds e = E / n experts

    moe = MoE(h, f, E, k, group=inside, replicas=across)
    x = x + moe(x)                       # dropped tokens go by on the residual
    (loss + switch_loss(moe.routing)).backward()
    reduce_gradients(model)

GShard, arXiv 2006.16668; Switch Transformer, arXiv 2101.03961. Costs: `course.costs.moe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu

from course.costs.moe import capacity, check_routing
from course.parallel.moe_balance import drop, updated_bias
from course.parallel.moe_exchange import (
    all_to_all,
    announce,
    combine,
    dispatch,
    permute,
    two_level_all_to_all,
    unpermute,
)
from course.parallel.moe_pairs import combine_pairs, dispatch_pairs
from course.parallel.moe_router import ROUTERS, Router, Routing, fresh


class Experts(nn.Module):
    """Some of the experts: two matrices each, GELU between them.

    up    [e, f, h]
    down  [e, h, f]

    which: the experts' numbers. Each has weights of its own seed, so that an expert is
           the same on whichever rank it is
    replicas: the ranks that hold the same experts, where they are spread over ranks
    """

    replicas: Replicas | None = None

    def __init__(self, hidden: int, ffn: int, which: Sequence[int], *, seed: int = 0):
        super().__init__()
        ups = [fresh(ffn, hidden, seed=(seed, "up", i)) for i in which]
        downs = [fresh(hidden, ffn, seed=(seed, "down", i)) for i in which]
        self.up = nn.Parameter(torch.stack(ups))
        self.down = nn.Parameter(torch.stack(downs))

    def one(self, rows: torch.Tensor, expert: int) -> torch.Tensor:
        """[any, h] -> [any, h] through one expert, numbered from 0 here."""
        return gelu(rows @ self.up[expert].t()) @ self.down[expert].t()

    def forward(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """[any, h] for each expert -> the same through each, one after the other."""
        return [self.one(part, i) for i, part in enumerate(rows)]


class MoE(nn.Module):
    """The layer for one rank of `group`, with its share of the experts.

    hidden, ffn:     h and f
    experts, top_k:  E and k. E must be a multiple of the ranks in the group
    capacity_factor: None drops nothing. Else each rank gives each expert room for
                     ceil(t k / E * factor) of its own t tokens, as GShard's groups do
    router:          "softmax", "sigmoid", "noisy", or a Router
    group:           the ranks among which the experts are divided (None: all)
    replicas:        the ranks that hold the same experts as this one, with data parallelism
                     beside expert parallelism (None: no other does)
    levels:          (inside, across), groups that together make up `group`, filled node
                     by node: exchange tokens in two steps
    pairs:           exchange tokens with a send for each expert of each rank, with no
                     copy, in place of one all-to-all
    seed:            of the first weights: the same seed gives what `DenseMoE` has

    forward: tokens [..., h] -> [..., h]. `routing` is that of the last forward.
    """

    def __init__(
        self, hidden: int, ffn: int, experts: int, top_k: int, *,
        capacity_factor: float | None = None, router: str | Router = "softmax",
        group=None, replicas=None, levels: tuple | None = None,
        pairs: bool = False, seed: int = 0,
    ):  # fmt: skip
        super().__init__()
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        check_layer(experts, top_k, capacity_factor)
        if experts % ranks:
            raise ValueError(
                f"experts must be a multiple of the group's ranks ({ranks}), not {experts}"
            )
        self.capacity_factor, self.group = capacity_factor, group
        self.router = router_of(router, hidden, experts, top_k, seed)
        mine = range(experts)[rank * experts // ranks :][: experts // ranks]
        self.experts = Experts(hidden, ffn, mine, seed=seed)
        self.experts.replicas = Replicas(replicas, group)
        self.dispatch, self.combine = ways_over(group, levels, pairs)
        self.routing: Routing | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        routing = self.routing = routed(self.router, tokens, self.capacity_factor)
        planned = announce(routing.kept_load(), self.group)  # on its way meanwhile
        rows, order = permute(tokens, routing)
        how = planned()
        rows = self.dispatch(rows, how)
        rows = self.combine(self.experts(rows), how)
        return unpermute(rows, order, routing).view(x.shape)


class DenseMoE(nn.Module):
    """The same layer in one process, with no exchange and no sorting: the reference.

    forward: tokens [t, h] -> [t, h]. per_rank tells how many tokens each rank would hold,
    the first rank's first: they matter for capacity, which each rank counts for itself.
    `routings` are those of the last forward, one a rank.
    """

    def __init__(
        self, hidden: int, ffn: int, experts: int, top_k: int, *,
        capacity_factor: float | None = None, router: str | Router = "softmax",
        seed: int = 0,
    ):  # fmt: skip
        super().__init__()
        check_layer(experts, top_k, capacity_factor)
        self.capacity_factor = capacity_factor
        self.router = router_of(router, hidden, experts, top_k, seed)
        self.experts = Experts(hidden, ffn, range(experts), seed=seed)
        self.routings: list[Routing] = []

    def forward(
        self, tokens: torch.Tensor, per_rank: Sequence[int] | None = None
    ) -> torch.Tensor:
        parts = tokens.split(list(per_rank or [len(tokens)]))
        self.routings = [routed(self.router, p, self.capacity_factor) for p in parts]
        pairs = zip(parts, self.routings, strict=True)
        return torch.cat([self.through_experts(*pair) for pair in pairs])

    def through_experts(self, tokens: torch.Tensor, routing: Routing) -> torch.Tensor:
        """The sum over all experts, with weight 0 where a token does not go."""
        out = tokens.new_zeros(tokens.shape, dtype=routing.weights.dtype)
        for expert in range(routing.expert_count):
            chosen = (routing.experts == expert) & routing.kept
            weight = (routing.weights * chosen).sum(dim=-1, keepdim=True)
            out = out + weight * self.experts.one(tokens, expert)
        return out.to(tokens.dtype)


def routed(router: Router, tokens: torch.Tensor, factor: float | None) -> Routing:
    """The router's choice, cut to what the experts have room for."""
    routing = router(tokens)
    if factor is None:
        return routing
    t, k = routing.experts.shape
    return drop(routing, capacity(t, k, routing.expert_count, factor))


# --- Gradients and biases over ranks --------------------------------------------------


class Replicas:
    """The ranks of `group` hold the same experts; those of `experts_group` all of them."""

    def __init__(self, group, experts_group):
        self.group = group
        self.ranks = 1 if group is None else dist.get_world_size(group)
        self.experts_ranks = dist.get_world_size(experts_group)

    def __deepcopy__(self, memo):
        return self  # a process group cannot be copied


def reduce_gradients(model: nn.Module, group=None, *, mean: bool = True) -> None:
    """Add up gradients over ranks, in place: each over those that hold the parameter.

    Experts: over their replicas only. Everything else: over all ranks of `group`.
    mean: divide both by the ranks of `group`, so that gradients are those of the mean of
          the ranks' losses. An expert's gradient has come from all the tokens that were
          sent to it, so that it is a sum over ranks already: dividing it by the number of
          replicas would leave it too large. False: those of the sum of the losses

    A parameter without a gradient counts as having zeros. Raises ValueError where a layer's
    expert-parallel ranks and replicas do not make up the group.
    """
    ranks = dist.get_world_size(group)
    spread = replicas_of(model, ranks)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter not in spread:
            dist.all_reduce(parameter.grad, group=group)
        elif spread[parameter].ranks > 1:
            dist.all_reduce(parameter.grad, group=spread[parameter].group)
        if mean:
            parameter.grad /= ranks


def replicas_of(model: nn.Module, ranks: int) -> dict[nn.Parameter, Replicas]:
    """Who holds each parameter of experts, of those that are spread over ranks."""
    spread = {}
    for module in model.modules():
        if isinstance(module, Experts) and module.replicas is not None:
            check_replicas(module.replicas, ranks)
            spread |= dict.fromkeys(module.parameters(), module.replicas)
    return spread


def total_load(routing: Routing, group=None) -> torch.Tensor:
    """[E] token copies of all ranks that chose each expert."""
    load = routing.load()
    dist.all_reduce(load, group=group)
    return load


def move_bias(moe: MoE, speed: float = 1e-3, group=None) -> None:
    """After a step: move the sigmoid router's bias by the load of all ranks, in place."""
    load = total_load(moe.routing, group)
    moe.router.bias.copy_(updated_bias(moe.router.bias, load, speed))


# --- What is asked for ----------------------------------------------------------------


def router_of(router, hidden: int, experts: int, top_k: int, seed: int) -> Router:
    if not isinstance(router, str):
        made_for = router.weight.shape[0], router.top_k
        if made_for != (experts, top_k):
            raise ValueError(
                f"router must be for {experts} experts and top_k {top_k}, "
                f"not {made_for[0]} and {made_for[1]}"
            )
        return router
    if router not in ROUTERS:
        raise ValueError(f"router must be one of {list(ROUTERS)}, not {router!r}")
    return ROUTERS[router](hidden, experts, top_k, seed=seed)


def ways_over(group, levels: tuple | None, pairs: bool) -> tuple:
    """(dispatch, combine): flat, in two levels, or by pairs."""
    if pairs and levels is not None:
        raise ValueError("pairs must be False where levels are given: choose one way")
    if pairs:
        return partial(dispatch_pairs, group=group), partial(combine_pairs, group=group)
    exchange = partial(all_to_all, group=group)
    if levels is not None:
        inside, across = levels
        check_levels(group, inside, across)
        exchange = partial(two_level_all_to_all, inside=inside, across=across)
    return partial(dispatch, exchange=exchange), partial(combine, exchange=exchange)


def check_levels(group, inside, across) -> None:
    ranks = dist.get_world_size(group)
    nodes, g = dist.get_world_size(across), dist.get_world_size(inside)
    if nodes * g != ranks:
        raise ValueError(
            f"levels must make up the group ({ranks} ranks), not {nodes} nodes of {g}"
        )


def check_layer(experts: int, top_k: int, capacity_factor: float | None) -> None:
    check_routing(top_k, experts)
    if capacity_factor is not None and not capacity_factor > 0:
        raise ValueError(f"capacity_factor must be more than 0, not {capacity_factor}")


def check_replicas(held: Replicas, ranks: int) -> None:
    if held.experts_ranks * held.ranks != ranks:
        raise ValueError(
            f"replicas must be given so that experts' ranks ({held.experts_ranks}) "
            f"times replicas are the group's {ranks} ranks, not {held.ranks}"
        )
