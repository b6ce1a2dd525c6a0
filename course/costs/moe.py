"""Routing of a mixture of experts in numbers: loads, capacity, drops, balance. No torch.

    T  tokens routed together    E  experts    k  experts that a token visits

A copy is a token on its way to one expert: T tokens make T k copies. A load is the number
of copies that an expert gets. Fedus et al. 2021, "Switch Transformers" (arXiv 2101.03961),
section 2.2, for k = 1; Lepikhin et al. 2020, "GShard" (arXiv 2006.16668), section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

ALPHA = 1e-2  # of the balance loss: Switch, section 2.2


def check_routing(top_k: int, experts: int) -> None:
    if experts < 1:
        raise ValueError(f"experts must be 1 or more, not {experts}")
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k must be from 1 to experts ({experts}), not {top_k}")


def _check_tokens(tokens: float) -> None:
    if tokens < 0:
        raise ValueError(f"tokens must be 0 or more, not {tokens}")


# --- Capacity ----------------------------------------------------------------------------


def capacity(tokens: int, top_k: int, experts: int, factor: float = 1.0) -> int:
    """Copies that one expert takes: T k / E times the factor, rounded up.

    Switch, equation 3, has k = 1. tokens: those that one router call sees. Where each rank
    counts for itself, as in Switch and GShard (its groups), that is the rank's own T.
    """
    check_routing(top_k, experts)
    _check_tokens(tokens)
    if factor <= 0:
        raise ValueError(f"factor must be positive, not {factor}")
    exact = Fraction(str(factor)) * tokens * top_k / experts  # 1.1 is 11/10, not more
    return math.ceil(exact)


def dropped(loads: Sequence[float], slots: float) -> float:
    """Copies that find no slot: what each load has beyond the capacity, summed."""
    return float(np.maximum(np.asarray(loads, float) - slots, 0).sum())


def dropped_share(loads: Sequence[float], slots: float) -> float:
    """The same as a share of all copies, exact for these loads; 0 where there are none."""
    total = float(np.sum(loads))
    return dropped(loads, slots) / total if total else 0.0


def expected_dropped_share(tokens: int, visits: Sequence[float], slots: int) -> float:
    """Mean dropped share where each token is routed by itself, with these visits.

    visits: chance that a token visits each expert, they add up to k (see `visits_of`)

    An expert's load is then binomial with T draws, whatever the others get, so the mean
    excess of each can be added: exact, not a simulation. Even a perfectly balanced router
    drops at a factor of 1, since loads scatter by about sqrt(T k / E).
    """
    _check_tokens(tokens)
    chances = np.asarray(visits, float)
    if not tokens or not chances.sum():
        return 0.0
    values, counts = np.unique(chances.round(15), return_counts=True)
    excess = sum(
        n * _mean_excess(tokens, float(p), slots)
        for p, n in zip(values, counts, strict=True)
    )
    return float(excess / (tokens * chances.sum()))


def _mean_excess(tokens: int, chance: float, slots: int) -> float:
    """E[max(0, X - slots)] for X binomial(tokens, chance)."""
    if chance >= 1 - 1e-12 or chance <= 0:
        return max(0.0, tokens * (chance > 0.5) - slots)
    spread = math.sqrt(tokens * chance * (1 - chance))
    top = min(tokens, math.ceil(tokens * chance + 12 * spread + 40))
    x = np.arange(max(slots + 1, 0), top + 1)
    return float(((x - slots) * _binomial(tokens, chance, x)).sum())


def _binomial(tokens: int, chance: float, x: np.ndarray) -> np.ndarray:
    """Chance of exactly x of so many, for 0 < chance < 1."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, tokens + 1)))])
    ways = logs[tokens] - logs[x] - logs[tokens - x]
    return np.exp(ways + x * math.log(chance) + (tokens - x) * math.log1p(-chance))


# --- Skew --------------------------------------------------------------------------------


def popularity(experts: int, skew: float = 0.0) -> np.ndarray:
    """Share of first choices of each expert, the hottest first: 1 / (i + 1)^skew, scaled.

    Zipf's law, a model of unbalanced routers and not a measurement. skew 0: all equal.
    """
    check_routing(1, experts)
    if skew < 0:
        raise ValueError(f"skew must be 0 or more, not {skew}")
    weights = (np.arange(experts) + 1.0) ** -skew
    return weights / weights.sum()


def visits_of(shares: Sequence[float], top_k: int = 1) -> np.ndarray:
    """Chance that a token visits each expert; adds up to top_k.

    The k visits are drawn one after another by these shares, an expert only once: what
    top-k of log(share) + Gumbel noise does. So no expert gets more than every token.

    Expert i is among the first k of E exponential clocks with these rates, so its chance
    is the integral over t of share_i exp(-share_i t) P(at most k - 1 others rang before t):
    worked out by the trapezoid rule over log t, which here is exact to about 12 digits.
    """
    rates = np.asarray(shares, float)
    check_routing(top_k, len(rates))
    if (rates <= 0).any():
        raise ValueError("shares must be positive")
    rates = rates / rates.sum()
    if top_k == 1:
        return rates
    if top_k == len(rates):
        return np.ones_like(rates)
    step = 0.25
    t = np.exp(np.arange(-30, math.log(50 / rates.min()), step))
    rang = -np.expm1(-np.outer(rates, t))
    densities = rates[:, None] * t * (1 - rang) * _few_others(rang, top_k)
    return densities.sum(axis=1) * step


def _few_others(rang: np.ndarray, top_k: int) -> np.ndarray:
    """For each expert: the chance that fewer than k of the others rang. (E, times)."""
    before, after = _counts(rang, top_k), _counts(rang[::-1], top_k)[::-1]
    pairs = zip(before[:-1], after[1:], strict=True)
    return np.array([(b * a.cumsum(axis=0)[::-1]).sum(axis=0) for b, a in pairs])


def _counts(rang: np.ndarray, top_k: int) -> list[np.ndarray]:
    """Chances of 0 .. k - 1 rings among the first 0, 1, ... E experts, (k, times) each."""
    counts = [np.zeros((top_k, rang.shape[1]))]
    counts[0][0] = 1
    for chance in rang:
        longer = counts[-1] * (1 - chance)
        longer[1:] += counts[-1][:-1] * chance
        counts.append(longer)
    return counts


def loads_of(tokens: float, top_k: int, experts: int, *, skew: float = 0.0) -> np.ndarray:
    """Mean load of each expert under that skew, the hottest first; adds up to T k."""
    _check_tokens(tokens)
    return tokens * visits_of(popularity(experts, skew), top_k)


def skewed_dropped_share(
    tokens: int, top_k: int, experts: int, *, factor: float = 1.0, skew: float = 0.0
) -> float:
    """Mean dropped share at a capacity factor, where popularity follows that skew."""
    visits = visits_of(popularity(experts, skew), top_k)
    return expected_dropped_share(tokens, visits, capacity(tokens, top_k, experts, factor))


# --- Balance -----------------------------------------------------------------------------


def imbalance(loads: Sequence[float]) -> float:
    """Largest load over the mean load: 1 is balanced, E is a collapse onto one expert."""
    mean = float(np.mean(loads))
    if mean <= 0:
        raise ValueError("loads must have a positive sum")
    return float(np.max(loads)) / mean


def effective_experts(loads: Sequence[float]) -> float:
    """exp of the entropy of the load shares: E when balanced, 1 after a collapse."""
    total = float(np.sum(loads))
    if total <= 0:
        raise ValueError("loads must have a positive sum")
    shares = np.asarray(loads, float)[np.asarray(loads, float) > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def balance_loss(
    fractions: Sequence[float], probabilities: Sequence[float], alpha: float = ALPHA
) -> float:
    """alpha E sum f_i P_i: Switch, equations 4 to 6. alpha where both are uniform.

    fractions:     share of copies that went to each expert, f: from counts, no gradient
    probabilities: mean of the router's softmax for each expert, P: carries the gradient
    """
    if len(fractions) != len(probabilities):
        raise ValueError(
            f"probabilities must be as many as fractions ({len(fractions)}),"
            f" not {len(probabilities)}"
        )
    return alpha * len(fractions) * float(np.dot(fractions, probabilities))


# --- Experts on ranks --------------------------------------------------------------------


def rank_loads(
    loads: Sequence[float], ranks: int, homes: Sequence[int] | None = None
) -> np.ndarray:
    """Load of each rank. homes: the rank of each expert; None: E/n neighbours on each."""
    if ranks < 1:
        raise ValueError(f"ranks must be 1 or more, not {ranks}")
    if homes is None:
        homes = in_order(len(loads), ranks)
    return np.bincount(homes, weights=np.asarray(loads, float), minlength=ranks)


def in_order(experts: int, ranks: int) -> list[int]:
    """The rank of each expert where rank r holds E/n experts from r E/n on."""
    if ranks < 1 or experts % ranks:
        raise ValueError(f"ranks must divide experts ({experts}), not {ranks}")
    return [e * ranks // experts for e in range(experts)]


def placed(loads: Sequence[float], ranks: int) -> list[int]:
    """The rank of each expert, hot ones apart: the next hottest goes to the emptiest rank.

    Every rank gets E/n experts. A greedy rule (longest first), not always the best.
    """
    room = [len(in_order(len(loads), ranks)) // ranks] * ranks
    sums, homes = [0.0] * ranks, [0] * len(loads)
    for expert in sorted(range(len(loads)), key=lambda e: -loads[e]):
        home = min((r for r in range(ranks) if room[r]), key=lambda r: sums[r])
        homes[expert], room[home] = home, room[home] - 1
        sums[home] += loads[expert]
    return homes


def replicas_of_hottest(loads: Sequence[float], more: int) -> list[int]:
    """Experts of which to make so many more copies, each the hottest per copy then."""
    if more < 0:
        raise ValueError(f"more must be 0 or more, not {more}")
    copies, made = [1] * len(loads), []
    for _ in range(more):
        made.append(max(range(len(loads)), key=lambda e: loads[e] / copies[e]))
        copies[made[-1]] += 1
    return made


def replicated(loads: Sequence[float], more: int) -> np.ndarray:
    """Loads after so many more copies of experts, see `replicas_of_hottest`.

    The first E are the experts' own, the others the replicas' in the order of their
    making; copies of one expert share its load evenly. For training, replicas' gradients
    must be summed besides.
    """
    experts = [*range(len(loads)), *replicas_of_hottest(loads, more)]
    copies = np.bincount(experts)
    return np.array([loads[e] / copies[e] for e in experts])
