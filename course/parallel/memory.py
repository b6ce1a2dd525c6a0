"""Memory saved by doing work again, for one rank: a block, and a loss.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174).
torch has the first as torch.utils.checkpoint. Costs: `course.costs.activations`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable, x: torch.Tensor) -> torch.Tensor:
    """function(x), of which forward keeps x alone: backward calls `function` again.

    x must require a gradient, or nothing that `function` uses gets one either.
    Raises ValueError where it does not.
    """
    if not x.requires_grad:
        raise ValueError("x must require a gradient: recomputed() hangs its backward on it")
    return Recomputed.apply(function, x)


class Recomputed(torch.autograd.Function):
    """Autograd is off in forward, so that nothing inside `function` is kept."""

    @staticmethod
    def forward(ctx, function: Callable, x: torch.Tensor) -> torch.Tensor:
        ctx.function, ctx.random = function, torch.get_rng_state()
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.random)  # dropout draws the same mask again
        with torch.enable_grad():
            y = ctx.function(x)
        torch.set_rng_state(now)
        torch.autograd.backward(y, gradient)  # also adds to .grad of the parameters
        return None, x.grad


def chunked_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunks: int
) -> torch.Tensor:
    """Mean cross-entropy of the logits hidden @ weight.T, a chunk of tokens at a time.

    hidden [tokens, h], weight [vocab, h], targets [tokens]. Logits of one chunk exist at
    once, in forward and again in backward. Raises ValueError for chunks below 1.
    """
    if chunks < 1:
        raise ValueError(f"chunks must be 1 or more, not {chunks}")

    def summed(rows, right):
        return F.cross_entropy(rows @ weight.T, right, reduction="sum")

    pairs = zip(hidden.tensor_split(chunks), targets.tensor_split(chunks), strict=True)
    losses = [checkpoint(summed, *pair, use_reentrant=False) for pair in pairs]
    return sum(losses) / len(targets)
