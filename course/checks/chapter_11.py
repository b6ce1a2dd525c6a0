"""Exercises of chapter 11: the capacity mask, dispatch, un-permute, the gate's gradient.

t tokens of a rank, E experts, k choices a token, n ranks.
"""

from __future__ import annotations

import torch
from torch.nn.functional import one_hot

from course.checks.alone import Alone
from course.checks.exercise import ITEM, Limits, OnRanks
from course.checks.moe_answers import gate_gradient, unpermute
from course.checks.routed import Spread, Tokens
from course.costs.moe import capacity
from course.parallel.moe_balance import places
from course.parallel.moe_exchange import permute

# --- Capacity mask --------------------------------------------------------------------


def _given_mask(case: Tokens) -> tuple:
    return case.routing().experts, case.experts, case.factor


def _mask(experts, count: int, factor: float) -> torch.Tensor:
    return places(experts) < capacity(*experts.shape, count, factor)


def _mask_slips(experts, count: int, factor: float) -> dict[str, torch.Tensor]:
    t, k = experts.shape
    room, place = capacity(t, k, count, factor), places(experts)
    any_expert = torch.arange(t * k).view(k, t).t()
    by_token = one_hot(experts.flatten(), count).cumsum(0)
    by_token = by_token.gather(1, experts.reshape(-1, 1)).view(t, k) - 1
    left = torch.bincount(experts.flatten(), minlength=count)[experts] - place
    return {
        "those are the ones to drop": place >= room,
        "that is the room of one expert, filled by copies for any: each expert has its own":
        any_expert < room,
        "that is the room of the whole rank: each expert has its share of it":
        place < t * k * factor,
        "second choices queue behind the first choices of all tokens": by_token < room,
        "t tokens make t k copies: k is missing in the room":
        place < capacity(t, 1, count, factor),
        "one copy more than there is room for: places count from 0": place <= room,
        "the room is rounded up": place < int(t * k / count * factor),
        "the first ones in the queue stay, not the last": left <= room,
    }  # fmt: skip


MASK = Alone(
    "capacity mask",
    "11",
    "def my_mask(experts, expert_count, factor): return kept",
    "`experts` [t, k] has the experts of each token, the best first. Each of the "
    "`expert_count` experts has room for ceil(t k / expert_count * factor) copies of "
    "tokens. First choices of all tokens queue before all second choices, and so on; "
    "among them, tokens in order. Return a bool tensor [t, k]: True where the copy finds "
    "room.",
    10,
    "as GShard and Switch drop, on seven cases",
    cases=(
        Tokens(7, 4, 2, 1.25), Tokens(6, 3, 1, 1), Tokens(8, 4, 2, 1), Tokens(5, 4, 4, 0.5),
        Tokens(9, 2, 1, 1.5), Tokens(1, 8, 2, 1), Tokens(40, 8, 3, 1, seed=1),
    ),
    given=_given_mask,
    expected=_mask,
    slips=_mask_slips,
    axes=("token", "choice"),
)  # fmt: skip

# --- Dispatch order -------------------------------------------------------------------


def _play_dispatch(function, case: Spread, rank: int):
    return function(case.x(rank), case.chosen(rank), case.experts)


def _rows(case: Spread, rank: int, copies: list) -> torch.Tensor:
    """The rows that a rank gets, in the order of the copies."""
    rows = [row for expert, _, _, row in copies if case.home(expert) == rank]
    return torch.stack(rows) if rows else torch.zeros(0, case.shape[1])


def _dispatched(case: Spread) -> list[torch.Tensor]:
    return [_rows(case, rank, case.copies()) for rank in range(case.ranks)]


def _ordered(case: Spread, key) -> list[torch.Tensor]:
    copies = sorted(case.copies(), key=key)
    return [_rows(case, rank, copies) for rank in range(case.ranks)]


def _dispatch_slips(case: Spread) -> dict[str, list]:
    choice = lambda copy: case.chosen(copy[1])[copy[2]].tolist().index(copy[0])
    zeroed = [
        (e, source, token, row * (case.home(e) != source))
        for e, source, token, row in case.copies()
    ]
    return {
        "they lie as they came, rank by rank: sort them by expert":
        _ordered(case, lambda copy: (copy[1], copy[0], copy[2])),
        "they were not sorted by expert before they were sent":
        _ordered(case, lambda copy: (copy[1], copy[2], choice(copy))),
        "the rows of one expert are in token order, whichever choice it was":
        _ordered(case, lambda copy: (copy[0], copy[1], choice(copy), copy[2])),
        "rows that stay on their rank are missing":
        [_rows(case, rank, zeroed) for rank in range(case.ranks)],
    }  # fmt: skip


def _dispatch_limits(case: Spread) -> Limits:
    """Rows once, and at most all counts of all ranks, in 8 bytes each."""
    n, row = case.ranks, case.shape[1] * ITEM
    moved = [(source, case.home(expert)) for expert, source, *_ in case.copies()]
    moved = [pair for pair in moved if pair[0] != pair[1]]
    sent = [row * sum(pair[0] == rank for pair in moved) for rank in range(n)]
    needs = [row * sum(pair[1] == rank for pair in moved) for rank in range(n)]
    counts = (n - 1) * case.experts * 8
    return Limits(
        max(sent) + counts,
        max(needs) + counts,
        tuple(needs),
        total=sum(sent),
        steps=2 * (n - 1),
    )


DISPATCH = OnRanks(
    "dispatch order",
    "11",
    "def my_dispatch(x, experts, expert_count): return rows",
    "This rank has tokens x [t, h], each with k different experts [t, k]. Rank r of n "
    "holds experts r e to (r + 1) e - 1, e = expert_count / n. Send a copy of each token "
    "to each of its experts, and return the rows for this rank's experts: sorted by "
    "expert, those of one expert by the rank that they come from, those of one rank in "
    "token order. Ranks may have different numbers of tokens, so tell each other first "
    "how many will come. Use torch's all_to_all_single.",
    15,
    cases=(
        Spread(4, (6, 3)), Spread(1, (4, 2)), Spread(2, (5, 4)), Spread(2, (3, 2), local=1),
        Spread(3, (0, 2), uneven=True), Spread(4, (2, 3), local=1, top_k=4),
        Spread(8, (1, 1), local=3, top_k=1, uneven=True),
    ),
    play=_play_dispatch,
    expected=_dispatched,
    limits=_dispatch_limits,
    slips=_dispatch_slips,
    by_hand=False,
)  # fmt: skip

# --- Un-permute -----------------------------------------------------------------------


def _room(case: Tokens) -> int:
    return capacity(case.tokens, case.top_k, case.experts, case.factor)


def _given_unpermute(case: Tokens) -> tuple:
    cut = case.cut(_room(case))
    x = case.numbers(case.tokens, case.hidden, index=1)
    _, order = permute(x, cut)
    outputs = case.numbers(len(order), case.hidden, index=2)
    return x, outputs, order, cut.weights


def _added(x, rows, token, weight) -> torch.Tensor:
    """x and its weighted rows, row by row."""
    return x.index_add(0, token, rows * weight[:, None])


def _unpermute_slips(x, rows, order, probabilities) -> dict[str, torch.Tensor]:
    (t, k), n = probabilities.shape, len(order)
    token, here = order // k, torch.zeros(t, dtype=torch.bool)
    here[token] = True
    weights = (probabilities / probabilities.sum(-1, keepdim=True)).flatten()
    kept = torch.zeros(t * k).index_fill(0, order, 1).view(t, k)
    of_kept = probabilities / (probabilities * kept).sum(-1, keepdim=True)
    y, last = _added(x, rows, token, weights[order]), x.clone()
    last[token] = x[token] + rows * weights[order][:, None]
    return {
        "a token without any row keeps x: the residual carries it past the experts":
        y * here[:, None],
        "x is missing: the rows are added to the residual": y - x,
        "the k probabilities of a token are to be divided by their sum":
        _added(x, rows, token, probabilities.flatten()[order]),
        "divide by the sum of all k probabilities, also of copies that were dropped":
        _added(x, rows, token, of_kept.flatten()[order]),
        "copy i is of token i // k, not i % t": _added(x, rows, order % t, weights[order]),
        "rows are in the order of experts: row i is of token order[i] // k, not i // k":
        _added(x, rows, torch.arange(n) // k, weights[order]),
        "the weight of row i is that of copy order[i], not of copy i":
        _added(x, rows, token, weights[:n]),
        "a token with several rows got only one: `y[token] +=` does not add up":
        last,
        "rows count by their weights, not all alike": _added(x, rows, token, torch.ones(n)),
    }  # fmt: skip


UNPERMUTE = Alone(
    "un-permute",
    "11",
    "def my_unpermute(x, rows, order, probabilities): return y",
    "The experts have answered: `rows` [r, h], sorted by expert. Row i is for copy "
    "order[i]; copy c is choice c % k of token c // k. Copies that were dropped have no "
    "row. `probabilities` [t, k] are those of each token's choices: divide them by their "
    "sum over all k choices to get weights. Return y [t, h]: x plus each token's weighted "
    "rows.",
    5,
    "every token, those that lost all their copies too, on six cases",
    cases=(
        Tokens(8, 4, 2, 0.5), Tokens(6, 3, 1, 1), Tokens(6, 4, 2, 4), Tokens(5, 3, 3, 3),
        Tokens(20, 8, 3, 0.5, 5, seed=2), Tokens(9, 2, 1, 0.25),
    ),
    given=_given_unpermute,
    expected=unpermute,
    slips=_unpermute_slips,
    axes=("token", "element"),
)  # fmt: skip

# --- Gradient of the gate ----------------------------------------------------------------


def _given_gate(case: Tokens) -> tuple:
    routing = case.routing()
    outputs = case.numbers(case.tokens, case.top_k, case.hidden, index=1)
    gradient = case.numbers(case.tokens, case.hidden, index=2)
    return routing.logits, routing.experts, outputs, gradient


def _gate_slips(logits, experts, outputs, gradient) -> dict[str, torch.Tensor]:
    right = gate_gradient(logits, experts, outputs, gradient)
    zeros = torch.zeros_like(logits)
    weights = logits.gather(1, experts).softmax(-1)
    each = (outputs * gradient[:, None]).sum(-1)
    p = logits.softmax(-1)
    of_p = zeros.scatter(1, experts, each)
    no_sum = p * (of_p - (p * of_p).sum(-1, keepdim=True))
    k = experts.shape[1]
    places_of = torch.arange(k).expand_as(experts)
    return {
        "the sign is wrong": -right,
        "that is the gradient of the weights: go on through the softmax": of_p,
        "when one weight grows the others shrink: softmax has a second term":
        zeros.scatter(1, experts, weights * each),
        "the weights are divided by their sum: softmax is over the k chosen alone": no_sum,
        "column e is for expert e, not for the choice number e":
        zeros.scatter(1, places_of, right.gather(1, experts)),
        "sum over the h elements of an output, do not average": right / outputs.shape[-1],
    }  # fmt: skip


GATE = Alone(
    "gradient of the gate",
    "11",
    "def my_gate_gradient(logits, experts, outputs, gradient): return gradient_of_logits",
    "Token t's y is the sum over its k experts of weight times outputs[t, j] [h]. The "
    "weights are the softmax of logits [t, E], of which those of the chosen `experts` "
    "[t, k] are taken and divided by their sum. `gradient` [t, h] is the gradient of y. "
    "Return the gradient of the logits [t, E], by hand: which experts are chosen does not "
    "depend on small changes.",
    6,
    "equal to autograd's, on five cases",
    cases=(
        Tokens(5, 4, 2), Tokens(4, 3, 1), Tokens(3, 4, 4), Tokens(16, 8, 3, hidden=7),
        Tokens(1, 2, 2, hidden=1),
    ),
    given=_given_gate,
    expected=gate_gradient,
    slips=_gate_slips,
    axes=("token", "expert"),
)  # fmt: skip

EXERCISES = (MASK, DISPATCH, UNPERMUTE, GATE)
