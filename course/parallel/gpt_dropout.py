"""GPT with dropout, of any shape: the block whose activations Korthikanti et al. count.

b  sequences of a micro-batch      s  tokens of a sequence      h  hidden width
a  heads                           d  width of a head           v  vocabulary

arXiv 2205.05198, section 4.1. Costs: `course.costs.activations`. Dropout is
torch.native_dropout, as GPUs run it: its mask has one byte an element. F.dropout on a CPU
keeps a mask as wide as the numbers.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from course.facts_models import Model
from course.parallel.gpt import SmallGpt

DROPPED = 0.1


def drop_some(x: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout(x, DROPPED, True)[0]


def whole_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention written out. q, k, v, result: [b, a, s, d]."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # [b, a, s, s]
    future = torch.full(scores.shape[-2:], -math.inf, dtype=q.dtype).triu(1)
    return drop_some((scores + future).softmax(-1)) @ v


def fused_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by torch's fused kernel, on CPUs without dropout of the scores."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class DropoutLayer(nn.Module):
    """One layer: attention by `core`, feed-forward part, a dropout behind each."""

    def __init__(self, h: int, heads: int, core=fused_scores):
        super().__init__()
        self.heads, self.core = heads, core
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(h, h) for _ in range(4))
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [b, s, h]
        y = self.norms[0](x)
        qkv = [f(y).unflatten(-1, (self.heads, -1)) for f in (self.q, self.k, self.v)]
        y = self.core(*(part.transpose(1, 2) for part in qkv)).transpose(1, 2)
        x = x + drop_some(self.out(y.flatten(2)))
        return x + drop_some(self.down(F.gelu(self.up(self.norms[1](x)))))


class DropoutGpt(SmallGpt):
    """A whole GPT of these layers, with a dropout behind the embedding."""

    def __init__(self, shape: Model):
        super().__init__(shape, lambda shape: DropoutLayer(shape.hidden, shape.heads))

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        return drop_some(super().embedded(tokens))


def adamw_steps(model: nn.Module, tokens: torch.Tensor, steps: int) -> None:
    """Train in the usual loop, to tell each of the tokens [...] itself, and nothing else.

    The logits have no name: a loop that holds them needs a fourth copy.
    """
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(steps):
        F.cross_entropy(model(tokens).flatten(0, -2), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
