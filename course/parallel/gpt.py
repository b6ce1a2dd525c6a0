"""A small GPT of any shape, and text that it can learn: what labs train on many ranks.

b  sequences of a batch      s  tokens of a sequence      h  hidden width
a  heads                     d  width of a head           v  vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from course.facts_models import Model

ALPHABET, STRIDES = 32, 7  # of the text to learn


class GptBlock(nn.Module):
    """Attention and feed-forward part of GPT-2, without dropout."""

    def __init__(self, shape: Model):
        super().__init__()
        h, self.heads = shape.hidden, shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, shape.mlp_hidden), nn.Linear(shape.mlp_hidden, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [b, s, h]
        heads = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # [b, a, s, d] each
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm_2(x))))


class SmallGpt(nn.Module):
    """As many parameters as `shape.parameters` says. Output and embedding share a matrix.

    block: makes one, block(shape)
    Raises ValueError for a shape that is not of GPT-2's kind.
    """

    def __init__(self, shape: Model, block: Callable[[Model], nn.Module] = GptBlock):
        super().__init__()
        if not (shape.gpt and shape.tied):
            raise ValueError(f"shape must be one of facts_models.gpt, not {shape.name}")
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.places = nn.Parameter(torch.randn(shape.sequence, shape.hidden) * 0.02)
        self.blocks = nn.ModuleList(block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:  # [b, s] -> [b, s, h]
        return self.tokens(tokens) + self.places[: tokens.shape[1]]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # [b, s] -> [b, s, v]
        x = self.embedded(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def token_batches(shape: Model, batch: int) -> Iterator[torch.Tensor]:
    """Batches [b, s + 1] without end, the same on every rank and in every world.

    Of the tokens only the first 32 are used. A sequence counts up by a stride of its own,
    modulo 32: two tokens tell how it goes on.
    """
    letters = min(ALPHABET, shape.vocab)
    rows, along = torch.arange(batch), torch.arange(shape.sequence + 1)
    number = 0
    while True:
        first, stride = 37 * rows + 101 * number, 1 + (rows + number) % STRIDES
        yield (first[:, None] + stride[:, None] * along) % letters
        number += 1


def next_token_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each token [b, s + 1] but the first, given those before."""
    logits = model(tokens[:, :-1])
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
