"""Answers to the drills on experts, counted copy by copy in plain Python.

Nothing here comes from course.costs. Tokens are dealt out one by one, sets of experts
are listed or counted by recursion, parameters are summed over lists of matrices.
ANSWERS: drill id -> function of the drawn numbers -> answer in base units.
"""

from functools import cache
from itertools import product
from math import prod


def leaving(ranks, top_k):
    """Copies of a token that leave its rank, where all experts are visited equally often.

    `ranks` tokens, the copies of each go to ranks t, t + 1, ...: every rank equally often.
    """
    home = 0
    copies = [(t + i) % ranks for t in range(ranks) for i in range(top_k)]
    return sum(to != home for to in copies) / ranks


def one_exchange(v, width=2):
    return v["tokens"] * leaving(v["ranks"], v["top_k"]) * v["hidden"] * width


def _four(v, there=2):
    """Tokens out, results home, gradients out, gradients home."""
    return sum(one_exchange(v, width) for width in (there, 2, there, 2))


# --- Chances ------------------------------------------------------------------------------


@cache
def places_reached(places, each, draws):
    """Mean number of places hit by drawing so many of places * each experts.

    One expert after another: the next hits a new place with the share of experts there.
    """

    @cache
    def more(left, hit):
        if not left:
            return 0.0
        drawn = draws - left
        fresh = (places - hit) * each / (places * each - drawn)
        stale = 1 - fresh
        return fresh * (1 + more(left - 1, hit + 1)) + stale * more(left - 1, hit)

    return more(draws, 0)


def _to_other_nodes(v):
    """Only `limit` nodes take part; which ones is all the same by symmetry."""
    nodes, each = v["nodes"], v["experts"] // v["nodes"]
    hit = places_reached(v["limit"], each, v["top_k"])
    elsewhere = sum(node != 0 for node in range(nodes)) / nodes
    return v["tokens"] * hit * elsewhere * v["kib"] * 1024


def _balanced_drops(v):
    """An expert's load built up token by token, its chances in a list."""
    tokens, experts = v["tokens"], v["experts"]
    chances = [1.0]
    for _token in range(tokens):
        stays = [c * (1 - 1 / experts) for c in chances] + [0.0]
        grows = [0.0] + [c / experts for c in chances]
        chances = [a + b for a, b in zip(stays, grows, strict=True)]
        while len(chances) > 40 and chances[-1] < 1e-18:
            chances.pop()
    room = 0
    while room * experts < tokens * v["factor"]:
        room += 1
    return experts * sum(c * max(0, x - room) for x, c in enumerate(chances))


# --- Loads --------------------------------------------------------------------------------


def _hottest_rank(v):
    shares = [1 / place for place in range(1, v["experts"] + 1)]
    each = v["experts"] // v["ranks"]
    sums = [sum(shares[r * each : (r + 1) * each]) for r in range(v["ranks"])]
    return max(sums) / (sum(sums) / len(sums))


def _room(v):
    copies = [t * v["top_k"] + i for t in range(v["tokens"]) for i in range(v["top_k"])]
    dealt = [sum(c % v["experts"] == 0 for c in copies)]
    return dealt[0] * v["factor"]


def _loss_multiple(v):
    def loss(shares):
        return (
            v["alpha"]
            * len(shares)
            * sum(f * p for f, p in zip(shares, shares, strict=True))
        )

    crowd = [1 / v["hot"]] * v["hot"] + [0.0] * (v["experts"] - v["hot"])
    return loss(crowd) / loss([1 / v["experts"]] * v["experts"])


# --- Mixtral ------------------------------------------------------------------------------

LAYERS, HIDDEN, INNER, EXPERTS, WORDS, NARROW = 32, 4096, 14336, 8, 32000, 1024


@cache
def mixtral():
    """(parameters outside the experts, parameters of one expert over all layers)."""
    attention = [(HIDDEN, HIDDEN), (HIDDEN, NARROW), (HIDDEN, NARROW), (HIDDEN, HIDDEN)]
    layer = [*attention, (EXPERTS, HIDDEN), (HIDDEN,), (HIDDEN,)]
    outside = [*(layer * LAYERS), (WORDS, HIDDEN), (WORDS, HIDDEN), (HIDDEN,)]
    expert = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)] * LAYERS
    return sum(map(prod, outside)), sum(map(prod, expert))


def held(v):
    """{rank: experts}: EP groups of neighbours, each with all eight experts once."""
    each = EXPERTS // v["ep"]
    return {
        r: [r % v["ep"] * each + i for i in range(each)]
        for r in range(v.get("ranks", v["ep"]))
    }


def _rank_parameters(v):
    outside, expert = mixtral()
    return outside + sum(expert for _ in held(v)[0])


def _rank_states(v):
    """2 + 2 whole on each holder, 12 cut among those that hold the same."""
    outside, expert = mixtral()
    homes = held(v)
    total = 4 * outside + 12 * outside / len(homes)
    for e in homes[0]:
        holders = [r for r in homes if e in homes[r]]
        total += 4 * expert + 12 * expert / len(holders)
    return total


def _expert_gradients(v):
    """Reduce-scatter, then all-gather, among those that hold the same: pieces sent."""
    homes = held(v)
    same = [r for r in homes if homes[r] == homes[0]]
    pieces = sum(1 for _half, other in product(range(2), same) if other != same[0])
    return pieces / len(same) * 2 * sum(mixtral()[1] for _ in homes[0])


# --- The rest -----------------------------------------------------------------------------


def _exchange_over_work(v):
    """One copy: h numbers out, h home, three products of a row with a matrix."""
    hidden = 96
    bytes_moved = sum(2 * hidden for _way in ("out", "home"))
    flops = sum(2 * prod(m) for m in [(hidden, v["width"])] * 2 + [(v["width"], hidden)])
    return (bytes_moved / v["link"].bytes_per_s) / (flops / v["gpu"].bf16_flops_per_s)


def _cut(v):
    """Every pair with the sender in the first half and the receiver in the second."""
    half = v["ranks"] // 2
    pairs = sum(i < half <= j for i, j in product(range(v["ranks"]), repeat=2))
    return pairs * v["mib"] * 2**20 / v["ranks"] / (v["gbs"] * 1e9)


def _messages_across(v):
    """Rank 0 of node 0 and all ranks of its own number elsewhere."""
    ranks = product(range(v["nodes"]), range(v["gpus"]))
    return sum(node != 0 and number == 0 for node, number in ranks)


def _tp_over_ep(v):
    """Ring all-reduce of all tokens: 2(n - 1) pieces of 1/n. EP: out and home."""
    ranks = v["ranks"]
    tp = sum(ranks / ranks for _step in range(2 * (ranks - 1)))
    return tp / (2 * leaving(ranks, v["top_k"]))


ANSWERS = {
    "E01c": _rank_parameters,
    "E02b": _exchange_over_work,
    "E03b": _cut,
    "E04b": _messages_across,
    "E04c": _to_other_nodes,
    "E05a": one_exchange,
    "E05b": _four,
    "E05d": lambda v: _four(v, there=1),
    "E07b": _hottest_rank,
    "E08b": _rank_states,
    "E09b": _expert_gradients,
    "E10b": _tp_over_ep,
    "E11a": lambda v: places_reached(v["ranks"], v["experts"] // v["ranks"], v["top_k"]),
    "E12a": _room,
    "E12c": _balanced_drops,
    "E12d": _loss_multiple,
}
