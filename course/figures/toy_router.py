"""A router so small that it is trained again at every move of a slider, in numpy.

Token t likes expert e as much as g[t, e] - skew log(e + 1) + bias[e]. The g are fixed
Gumbel numbers, so that without a bias expert e is a token's first choice with Zipf's
chance, as in `course.costs.moe.visits_of`. Only the bias learns: it goes down
    weight * (Switch's balance loss, without its alpha) + PULL / 2 * sum of bias^2
where the second term stands for the task, which would rather keep its favourites. What is
real: the loss, its gradient, top-k, queues. What is not: that one number an expert is a
router.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from course.parallel import moe_balance

PULL = 0.02
STEPS = 40
BATCH = 256


@lru_cache(maxsize=64)
def _numbers(tokens: int, experts: int, kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    draw = rng.gumbel if kind == "gumbel" else rng.standard_normal
    return draw(size=(tokens, experts))


def preferences(tokens: int, experts: int, skew: float, seed: int = 0) -> np.ndarray:
    """Logits before any training, (tokens, experts); expert 0 is the most liked."""
    liked = np.log(np.arange(experts) + 1.0)
    return _numbers(tokens, experts, "gumbel", seed) - skew * liked


def choices(
    logits: np.ndarray, top_k: int, noise: float = 0.0, seed: int = 1
) -> np.ndarray:
    """The k experts of each token, the best first, (tokens, k).

    noise: standard deviation of what is added to the logits before choosing
    """
    noisy = logits + noise * _numbers(*logits.shape, "normal", seed)
    return np.argsort(-noisy, axis=1, kind="stable")[:, :top_k]


@lru_cache(maxsize=256)
def trained_bias(skew: float, experts: int, top_k: int, weight: float) -> np.ndarray:
    """The bias after STEPS steps on a batch of its own, (experts,); zeros for weight 0.

    The step is smaller where the loss weighs more, and the last third is averaged: the
    loads jump, they do not slide.
    """
    bias = np.zeros(experts)
    if not weight:
        return bias
    liked, tail = preferences(BATCH, experts, skew, seed=2), []
    rate = 2 / (weight + PULL)
    for step in range(STEPS):
        slope = weight * _balance_slope(liked + bias, top_k) + PULL * bias
        bias = bias - rate * slope
        if step >= 2 * STEPS // 3:
            tail.append(bias)
    return np.mean(tail, axis=0)


def _balance_slope(logits: np.ndarray, top_k: int) -> np.ndarray:
    """Gradient of E sum f_e P_e with respect to a bias on each logit; f is a constant."""
    tokens, experts = logits.shape
    grown = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = grown / grown.sum(axis=1, keepdims=True)
    best = np.argpartition(-logits, top_k - 1, axis=1)[:, :top_k]
    f = loads(best, experts) / (tokens * top_k)
    return experts * (p * (f - p @ f[:, None])).mean(axis=0)


def loads(chosen: np.ndarray, experts: int) -> np.ndarray:
    """Copies of each expert, (experts,)."""
    return np.bincount(chosen.ravel(), minlength=experts)


def places(chosen: np.ndarray) -> np.ndarray:
    """Place of each copy in the queue of its expert, (tokens, k): the package's own."""
    return moe_balance.places(torch.from_numpy(chosen)).numpy()
