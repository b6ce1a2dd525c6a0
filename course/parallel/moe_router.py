"""Routers: which experts each token goes to, and how much each counts. No ranks here.

    t   tokens       E   experts       k   experts that each token visits       h   hidden

Every router is a function of the logits [t, E], and a module that makes them. Logits and
all that follows are in float32 or wider, whatever the tokens are in: Switch, section 2.4.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import linear, softplus

from course.costs.moe import check_routing


@dataclass(frozen=True)
class Routing:
    """What a router has decided.

    experts        [t, k]  the experts of each token, the best first
    weights        [t, k]  how much the output of each counts; the gate learns by these
    probabilities  [t, E]  what the router thinks of all experts, rows that sum to 1
    logits         [t, E]  what that was made from
    kept           [t, k]  bool: False where an expert had no room, see `drop`
    """

    experts: torch.Tensor
    weights: torch.Tensor
    probabilities: torch.Tensor
    logits: torch.Tensor
    kept: torch.Tensor

    @property
    def tokens(self) -> int:
        return self.experts.shape[0]

    @property
    def top_k(self) -> int:
        return self.experts.shape[1]

    @property
    def expert_count(self) -> int:
        return self.logits.shape[1]

    def load(self) -> torch.Tensor:
        """[E] token copies that chose each expert, before any are dropped."""
        return torch.bincount(self.experts.flatten(), minlength=self.expert_count)

    def kept_load(self) -> torch.Tensor:
        """[E] token copies that each expert works on."""
        return torch.bincount(self.experts[self.kept], minlength=self.expert_count)

    @property
    def dropped(self) -> int:
        """Token copies that go nowhere."""
        return int((~self.kept).sum())


def routing(experts, weights, probabilities, logits) -> Routing:
    """A routing of which nothing is dropped yet."""
    kept = torch.ones_like(experts, dtype=torch.bool)
    return Routing(experts, weights, probabilities, logits, kept)


# --- From logits to a routing ---------------------------------------------------------


def softmax_top_k(
    logits: torch.Tensor, k: int, *, renormalise: bool | None = None
) -> Routing:
    """The k most likely experts, weighted by their probability.

    renormalise: let the k weights sum to 1, as in GShard and Mixtral. None: only where k
                 is more than 1, since one weight of 1 would leave the gate no gradient
                 (Switch weights its one expert by the probability itself)
    """
    check_routing(k, logits.shape[-1])
    probabilities = logits.softmax(dim=-1)
    weights, experts = probabilities.topk(k, dim=-1)
    if renormalise or (renormalise is None and k > 1):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return routing(experts, weights, probabilities, logits)


def sigmoid_top_k(
    logits: torch.Tensor, k: int, bias: torch.Tensor, *, scale: float = 1.0,
    nodes: int = 1, most_nodes: int = 1,
) -> Routing:  # fmt: skip
    """Each expert is scored by itself; the bias has a say in who is chosen, no more.

    bias:  [E] added to the scores for the choice, not to the weights. See `updated_bias`
    scale: what the k weights sum to
    nodes, most_nodes: experts lie on so many nodes, and a token goes to so many at most

    DeepSeek-V3, arXiv 2412.19437, equations 13 to 16; there scale is 2.5.
    """
    check_routing(k, logits.shape[-1])
    scores = logits.sigmoid()
    check_nodes(logits.shape[-1], k, nodes, most_nodes)
    wanted = limit_nodes(scores + bias, nodes, most_nodes, max(1, k // most_nodes))
    experts = wanted.topk(k, dim=-1).indices
    chosen = scores.gather(-1, experts)
    weights = scale * chosen / chosen.sum(dim=-1, keepdim=True)
    return routing(experts, weights, scores / scores.sum(dim=-1, keepdim=True), logits)


def noisy_top_k(
    logits: torch.Tensor, k: int, spread: torch.Tensor, noise: torch.Tensor
) -> Routing:
    """Noise is added before the choice, so that experts near the top are tried too.

    spread: [t, E] what softplus turns into the standard deviation of the noise; learned
    noise:  [t, E] numbers from the standard normal distribution

    Softmax is over the k chosen, the others count as minus infinity. Shazeer et al. 2017,
    arXiv 1701.06538, equations 3 to 5.
    """
    check_routing(k, logits.shape[-1])
    noisy = logits + noise * softplus(spread)
    return softmax_top_k(noisy, k, renormalise=True)


def limit_nodes(scores: torch.Tensor, nodes: int, most: int, best: int = 2) -> torch.Tensor:
    """Scores [t, E] with minus infinity outside the `most` best nodes of each token.

    Experts are laid out node by node. A node is as good as the sum of its `best` highest
    scores. So a token's copies leave for no more than `most` nodes, whatever k is.
    DeepSeek-V3, section 2.1.2: 8 nodes, at most 4, best = k / most = 2.
    """
    tokens, experts = scores.shape
    check_nodes(experts, 1, nodes, most)
    by_node = scores.view(tokens, nodes, experts // nodes)
    value = by_node.topk(min(best, by_node.shape[-1]), dim=-1).values.sum(dim=-1)
    chosen = torch.zeros_like(value, dtype=torch.bool)
    chosen.scatter_(1, value.topk(most, dim=-1).indices, True)
    return by_node.masked_fill(~chosen[..., None], float("-inf")).flatten(1)


# --- Modules --------------------------------------------------------------------------


class Router(nn.Module):
    """A gate, and a way to choose by it. forward: tokens [t, h] -> Routing.

    weight  [E, h]  the gate; with the same seed the same on every rank
    """

    def __init__(self, hidden: int, experts: int, top_k: int, *, seed: int = 0):
        super().__init__()
        check_routing(top_k, experts)
        self.top_k, self.seed = top_k, seed
        self.weight = nn.Parameter(fresh(experts, hidden, seed=(seed, "gate")))

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(tokens.dtype, torch.float32)
        return linear(tokens.to(wide), self.weight.to(wide))

    def forward(self, tokens: torch.Tensor) -> Routing:
        raise NotImplementedError


class SoftmaxRouter(Router):
    """`softmax_top_k` of a gate."""

    def __init__(
        self, hidden: int, experts: int, top_k: int, *, renormalise=None, seed: int = 0
    ):
        super().__init__(hidden, experts, top_k, seed=seed)
        self.renormalise = renormalise

    def forward(self, tokens: torch.Tensor) -> Routing:
        return softmax_top_k(self.logits(tokens), self.top_k, renormalise=self.renormalise)


class SigmoidRouter(Router):
    """`sigmoid_top_k` of a gate. The bias is a buffer: no gradient reaches it."""

    def __init__(
        self, hidden: int, experts: int, top_k: int, *, scale: float = 1.0,
        nodes: int = 1, most_nodes: int = 1, seed: int = 0,
    ):  # fmt: skip
        super().__init__(hidden, experts, top_k, seed=seed)
        check_nodes(experts, top_k, nodes, most_nodes)
        self.how = {"scale": scale, "nodes": nodes, "most_nodes": most_nodes}
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, tokens: torch.Tensor) -> Routing:
        return sigmoid_top_k(self.logits(tokens), self.top_k, self.bias, **self.how)


class NoisyRouter(Router):
    """`noisy_top_k` of two gates while training, without the noise in eval().

    spread  [E, h]  the gate of the noise, zero at first
    """

    def __init__(self, hidden: int, experts: int, top_k: int, *, seed: int = 0):
        super().__init__(hidden, experts, top_k, seed=seed)
        self.spread = nn.Parameter(torch.zeros(experts, hidden))

    def noise(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(logits)

    def forward(self, tokens: torch.Tensor) -> Routing:
        logits = self.logits(tokens)
        spread = linear(tokens.to(logits.dtype), self.spread.to(logits.dtype))
        noise = self.noise(logits) if self.training else torch.zeros_like(logits)
        return noisy_top_k(logits, self.top_k, spread, noise)


class InTurnRouter(SoftmaxRouter):
    """Token t goes to experts t, t + 1, ..., counted round: loads as even as they can be.

    For measurements only: the gate is there, and learns nothing.
    """

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        t = torch.arange(len(tokens), device=tokens.device)[:, None]
        e = torch.arange(len(self.weight), device=tokens.device)
        return 0 * super().logits(tokens) - (e - t) % len(e)


ROUTERS = {"softmax": SoftmaxRouter, "sigmoid": SigmoidRouter, "noisy": NoisyRouter}


def fresh(rows: int, columns: int, *, seed) -> torch.Tensor:
    """First weights [rows, columns], uniform up to 1 / sqrt(columns) as nn.Linear's.

    Drawn on the CPU, so that a seed means the same numbers in every world.
    """
    numbers = torch.Generator().manual_seed(zlib.crc32(repr(seed).encode()))
    drawn = torch.rand(rows, columns, generator=numbers, device="cpu")
    return ((2 * drawn - 1) / columns**0.5).to(torch.get_default_device())


def check_nodes(experts: int, top_k: int, nodes: int, most_nodes: int) -> None:
    if nodes < 1 or experts % nodes:
        raise ValueError(f"nodes must divide the experts ({experts}), not {nodes}")
    least = -(-top_k * nodes // experts)  # nodes that have k experts together
    if not least <= most_nodes <= nodes:
        raise ValueError(
            f"most_nodes must be from {least} to nodes ({nodes}), not {most_nodes}"
        )
