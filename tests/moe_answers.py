"""Answers to chapter 11's exercises: right ones, and wrong ones by name.

Same shape as in exercise_answers.py: {exercise: answers}, and each wrong one's verdict.
"""

import math

import torch
import torch.distributed as dist

from course.checks import moe_answers as shown
from course.parallel.moe_balance import places
from course.parallel.moe_exchange import announce, dispatch, permute
from course.parallel.moe_router import routing
from tests.exercise_answers import untouched

# --- Capacity mask --------------------------------------------------------------------


def room_for(experts, count, factor):
    return math.ceil(experts.numel() / count * factor)


def walked(experts, count, factor, by_token=False, room=None):
    """Copies one by one, each to the end of its expert's queue."""
    room = room_for(experts, count, factor) if room is None else room
    t, k = experts.shape
    copies = [(i, j) for j in range(k) for i in range(t)]
    filled, kept = [0] * count, torch.zeros(t, k, dtype=torch.bool)
    for i, j in sorted(copies) if by_token else copies:
        kept[i, j] = filled[experts[i, j]] < room
        filled[experts[i, j]] += 1
    return kept


def by_places(experts, count, factor):
    return places(experts) < room_for(experts, count, factor)


def by_one_hot(experts, count, factor):
    """The papers' way: a cumulative sum of one-hot rows."""
    queue = experts.t().reshape(-1)
    place = torch.nn.functional.one_hot(queue, count).cumsum(0)[
        torch.arange(len(queue)), queue
    ]
    return (place <= room_for(experts, count, factor)).view(experts.t().shape).t()


def token_by_token(experts, count, factor):
    return walked(experts, count, factor, by_token=True)


def capacity_per_rank(experts, count, factor):
    """As if the experts of a rank had one room together."""
    return walked(experts, count, factor, room=math.ceil(experts.numel() * factor))


def one_queue_for_the_rank(experts, count, factor):
    t, k = experts.shape
    return torch.arange(t * k).view(k, t).t() < room_for(experts, count, factor)


def rounded_down(experts, count, factor):
    return walked(experts, count, factor, room=int(experts.numel() / count * factor))


def k_forgotten(experts, count, factor):
    return walked(experts, count, factor, room=math.ceil(len(experts) / count * factor))


def factor_forgotten(experts, count, factor):
    return walked(experts, count, 1.0)


def one_too_many(experts, count, factor):
    return walked(experts, count, factor, room=room_for(experts, count, factor) + 1)


def dropped_not_kept(experts, count, factor):
    return ~walked(experts, count, factor)


def last_ones_stay(experts, count, factor):
    return walked(experts.flip(0).flip(1), count, factor).flip(0).flip(1)


def ones_and_zeros(experts, count, factor):
    return walked(experts, count, factor).float()


def tokens_only(experts, count, factor):
    return walked(experts, count, factor).all(-1)


def nothing_dropped(experts, count, factor):
    return torch.ones_like(experts, dtype=torch.bool)


# --- Dispatch order -------------------------------------------------------------------


def routing_of(experts, count):
    zeros = torch.zeros(len(experts), count)
    return routing(experts, torch.ones(experts.shape), zeros, zeros)


def exchange(rows, sends, receives):
    out = rows.new_empty(sum(receives), rows.shape[1])
    dist.all_to_all_single(out, rows.contiguous(), receives, sends)
    return out


def through_the_package(x, experts, count):
    how = routing_of(experts, count)
    rows, _ = permute(x, how)
    return torch.cat(dispatch(rows, announce(how.load())(), exchange))


def sizes_of(counts):
    """All ranks' counts [n, n, e]: rows of each for each expert."""
    n = dist.get_world_size()
    every = torch.empty(n, *counts.shape, dtype=counts.dtype)
    dist.all_gather_into_tensor(every, counts)
    return every.view(n, n, -1)


def with_all_counts(x, experts, count, order=None, home=None):
    """All-gather the counts, then sort what comes by expert."""
    rank, k = dist.get_rank(), experts.shape[1]
    order = experts.flatten().argsort(stable=True) if order is None else order
    counts = sizes_of(torch.bincount(experts.flatten(), minlength=count))
    sends, receives = counts[rank].sum(-1).tolist(), counts[:, rank].sum(-1).tolist()
    rows = exchange(x[order // k], sends, receives)
    return rows, counts[:, rank]


def second_right_answer(x, experts, count):
    rows, incoming = with_all_counts(x, experts, count)
    local = torch.arange(incoming.shape[1]).expand_as(incoming).flatten()
    return rows[local.repeat_interleave(incoming.flatten()).argsort(stable=True)]


def as_they_came(x, experts, count):
    return with_all_counts(x, experts, count)[0]


def not_sorted_by_expert(x, experts, count):
    e = count // dist.get_world_size()
    order = (experts.flatten() // e).argsort(stable=True)
    return with_all_counts(x, experts, count, order)[0]


def first_choices_first(x, experts, count):
    """Sorts the transposed choices, so that tokens are not in order."""
    queue, t = experts.t().flatten(), len(experts)
    order = queue.argsort(stable=True)
    order = order % max(t, 1) * experts.shape[1] + order // max(t, 1)
    rows, incoming = with_all_counts(x, experts, count, order)
    local = torch.arange(incoming.shape[1]).expand_as(incoming).flatten()
    return rows[local.repeat_interleave(incoming.flatten()).argsort(stable=True)]


def choice_as_token(x, experts, count):
    """order % k where order // k is the token."""
    order, k = experts.flatten().argsort(stable=True), experts.shape[1]
    return second_right_answer_of(x[order % k] if len(x) else x[:0], experts, count)


def second_right_answer_of(rows, experts, count):
    counts = sizes_of(torch.bincount(experts.flatten(), minlength=count))
    rank = dist.get_rank()
    sends, receives = counts[rank].sum(-1).tolist(), counts[:, rank].sum(-1).tolist()
    rows, incoming = exchange(rows, sends, receives), counts[:, rank]
    local = torch.arange(incoming.shape[1]).expand_as(incoming).flatten()
    return rows[local.repeat_interleave(incoming.flatten()).argsort(stable=True)]


def own_rows_forgotten(x, experts, count):
    e, rank = count // dist.get_world_size(), dist.get_rank()
    order = experts.flatten().argsort(stable=True)
    rows = x[order // experts.shape[1]].clone()
    rows[experts.flatten()[order] // e == rank] = 0
    return second_right_answer_of(rows, experts, count)


def first_choice_only(x, experts, count):
    return second_right_answer(x, experts[:, :1], count)


def dealt_round(x, experts, count):
    """Expert i on rank i % n, as cards are dealt."""
    n = dist.get_world_size()
    renamed = experts % n * (count // n) + experts // n
    return second_right_answer(x, renamed, count)


def even_pieces(x, experts, count):
    order = experts.flatten().argsort(stable=True)
    rows = x[order // experts.shape[1]]
    out = torch.empty_like(rows)
    dist.all_to_all_single(out, rows)
    return out


def all_tokens_to_everyone(x, experts, count):
    """Every rank gets all tokens of all, and takes what is its own."""
    n, rank, e = dist.get_world_size(), dist.get_rank(), count // dist.get_world_size()
    many = [None] * n
    lengths = torch.empty(n, dtype=torch.long)
    dist.all_gather_into_tensor(lengths, torch.tensor([len(x)]))
    many = [x.new_empty(int(t), x.shape[1]) for t in lengths]
    theirs = [experts.new_empty(int(t), experts.shape[1]) for t in lengths]
    for source in range(n):
        if source == rank:
            many[source], theirs[source] = x.clone(), experts.clone()
        dist.broadcast(many[source], source)
        dist.broadcast(theirs[source], source)
    mine = [
        x_of[(chosen == expert).any(-1)]
        for expert in range(rank * e, rank * e + e)
        for x_of, chosen in zip(many, theirs, strict=True)
    ]
    return torch.cat(mine)


def counts_of_the_wrong_rank(x, experts, count):
    """Expects from others what it sends to them."""
    order = experts.flatten().argsort(stable=True)
    n = dist.get_world_size()
    sends = torch.bincount(experts.flatten(), minlength=count).view(n, -1).sum(-1).tolist()
    return exchange(x[order // experts.shape[1]], sends, sends)


# --- Un-permute -----------------------------------------------------------------------


def weights_of(probabilities):
    return (probabilities / probabilities.sum(-1, keepdim=True)).flatten()


def added(x, rows, order, probabilities):
    weighted = rows * weights_of(probabilities)[order][:, None]
    return x.index_add(0, order // probabilities.shape[1], weighted)


def row_by_row(x, rows, order, probabilities):
    y, k, weights = x.clone(), probabilities.shape[1], weights_of(probabilities)
    for row, copy in zip(rows, order.tolist(), strict=True):
        y[copy // k] += weights[copy] * row
    return y


def dropped_tokens_lost(x, rows, order, probabilities):
    y, here = torch.zeros_like(x), order.unique() // probabilities.shape[1]
    y[here] = added(x, rows, order, probabilities)[here]
    return y


def no_residual(x, rows, order, probabilities):
    return added(torch.zeros_like(x), rows, order, probabilities)


def not_renormalised(x, rows, order, probabilities):
    weighted = rows * probabilities.flatten()[order][:, None]
    return x.index_add(0, order // probabilities.shape[1], weighted)


def renormalised_over_kept(x, rows, order, probabilities):
    kept = torch.zeros(probabilities.numel()).index_fill(0, order, 1)
    return added(x, rows, order, probabilities * kept.view_as(probabilities))


def wrong_index(x, rows, order, probabilities):
    """Rows are sorted by expert: they are not in token order."""
    k, weights = probabilities.shape[1], weights_of(probabilities)
    token = torch.arange(len(rows)) // k
    return x.index_add(0, token, rows * weights[order][:, None])


def wrong_modulus(x, rows, order, probabilities):
    weighted = rows * weights_of(probabilities)[order][:, None]
    return x.index_add(0, order % len(x), weighted)


def weights_in_copy_order(x, rows, order, probabilities):
    k = probabilities.shape[1]
    weighted = rows * weights_of(probabilities)[: len(rows), None]
    return x.index_add(0, order // k, weighted)


def last_row_wins(x, rows, order, probabilities):
    y = x.clone()
    y[order // probabilities.shape[1]] += rows * weights_of(probabilities)[order][:, None]
    return y


def all_alike(x, rows, order, probabilities):
    return x.index_add(0, order // probabilities.shape[1], rows)


def copies_not_tokens(x, rows, order, probabilities):
    return rows.new_zeros(probabilities.numel(), rows.shape[1]).index_copy(0, order, rows)


def order_as_token(x, rows, order, probabilities):
    return x.index_add(0, order, rows)


# --- Gradient of the gate ---------------------------------------------------------------


def by_autograd(logits, experts, outputs, gradient):
    logits = logits.clone().requires_grad_()
    chosen = logits.softmax(-1).gather(1, experts)
    weights = chosen / chosen.sum(-1, keepdim=True)
    y = (weights[..., None] * outputs).sum(1)
    return torch.autograd.grad(y, logits, gradient)[0]


def of_weights(outputs, gradient):
    return torch.einsum("tkh,th->tk", outputs, gradient)


def by_hand(logits, experts, outputs, gradient, second=True):
    w, g = logits.gather(1, experts).softmax(-1), of_weights(outputs, gradient)
    mean = (w * g).sum(-1, keepdim=True) if second else 0
    return torch.zeros_like(logits).scatter(1, experts, w * (g - mean))


def one_term_only(logits, experts, outputs, gradient):
    return by_hand(logits, experts, outputs, gradient, second=False)


def gradient_of_weights(logits, experts, outputs, gradient):
    return torch.zeros_like(logits).scatter(1, experts, of_weights(outputs, gradient))


def softmax_over_all(logits, experts, outputs, gradient):
    """Weights that are not divided by their sum."""
    logits = logits.clone().requires_grad_()
    weights = logits.softmax(-1).gather(1, experts)
    y = (weights[..., None] * outputs).sum(1)
    return torch.autograd.grad(y, logits, gradient)[0]


def downhill(logits, experts, outputs, gradient):
    return -by_hand(logits, experts, outputs, gradient)


def column_of_the_choice(logits, experts, outputs, gradient):
    right = by_hand(logits, experts, outputs, gradient).gather(1, experts)
    return torch.nn.functional.pad(right, (0, logits.shape[1] - experts.shape[1]))


def of_the_chosen_only(logits, experts, outputs, gradient):
    return by_hand(logits, experts, outputs, gradient).gather(1, experts)


def averaged(logits, experts, outputs, gradient):
    return by_hand(logits, experts, outputs, gradient) / outputs.shape[-1]


def through_the_choice(logits, experts, outputs, gradient):
    """All experts' outputs would be needed; only those of the chosen are here."""
    return by_hand(logits, experts, outputs, gradient) + 1e-3


# the last of each is the one that is shown under the check
RIGHT = {
    "capacity mask": [by_places, walked, by_one_hot, shown.capacity_mask],
    "dispatch order": [through_the_package, second_right_answer, shown.dispatch],
    "un-permute": [added, row_by_row, shown.unpermute],
    "gradient of the gate": [by_hand, by_autograd, shown.gate_gradient],
}

VALUES, SHAPE, MUCH = "wrong values", "wrong shape", "too much traffic"

# exercise: [(wrong answer, kind of verdict, words of its text)]
WRONG = {
    "capacity mask": [
        (untouched, SHAPE, "nothing was returned, should be a tensor of shape [7, 2]"),
        (token_by_token, VALUES, "second choices queue behind the first choices of all"),
        (capacity_per_rank, VALUES, "that is the room of the whole rank"),
        (
            one_queue_for_the_rank,
            VALUES,
            "filled by copies for any: each expert has its own",
        ),
        (rounded_down, VALUES, "the room is rounded up"),
        (k_forgotten, VALUES, "k is missing in the room"),
        (
            factor_forgotten,
            VALUES,
            "case: 7 tokens, 4 experts, top_k 2, capacity factor 1.25",
        ),
        (one_too_many, VALUES, "one copy more than there is room for"),
        (dropped_not_kept, VALUES, "those are the ones to drop"),
        (last_ones_stay, VALUES, "the first ones in the queue stay"),
        (ones_and_zeros, SHAPE, "torch.float32 was returned, should be torch.bool"),
        (tokens_only, SHAPE, "[7] was returned, should be [7, 2]"),
        (nothing_dropped, VALUES, "True, should be False"),
    ],
    "dispatch order": [
        (untouched, SHAPE, "rank 0 has nothing, should be a tensor of shape"),
        (as_they_came, VALUES, "rank by rank: sort them by expert"),
        (not_sorted_by_expert, VALUES, "not sorted by expert before they were sent"),
        (first_choices_first, VALUES, "in token order, whichever choice it was"),
        (choice_as_token, VALUES, "first at rank 0, element"),
        (own_rows_forgotten, VALUES, "rows that stay on their rank are missing"),
        (first_choice_only, SHAPE, "rank 0 has"),
        (dealt_round, SHAPE, "rank 0 has"),
        (even_pieces, SHAPE, "rank 0 has"),
        (all_tokens_to_everyone, MUCH, "bytes where"),
        (counts_of_the_wrong_rank, "raised", "the pieces of an all_to_all do not fit"),
    ],
    "un-permute": [
        (untouched, SHAPE, "nothing was returned"),
        (dropped_tokens_lost, VALUES, "a token without any row keeps x"),
        (no_residual, VALUES, "x is missing"),
        (not_renormalised, VALUES, "are to be divided by their sum"),
        (renormalised_over_kept, VALUES, "also of copies that were dropped"),
        (wrong_index, VALUES, "row i is of token order[i] // k, not i // k"),
        (wrong_modulus, VALUES, "copy i is of token i // k, not i % t"),
        (weights_in_copy_order, VALUES, "the weight of row i is that of copy order[i]"),
        (last_row_wins, VALUES, "does not add up"),
        (all_alike, VALUES, "rows count by their weights"),
        (copies_not_tokens, SHAPE, "[16, 3] was returned, should be [8, 3]"),
        (order_as_token, "raised", "raised RuntimeError: index 8 is out of bounds"),
    ],
    "gradient of the gate": [
        (untouched, SHAPE, "nothing was returned"),
        (one_term_only, VALUES, "softmax has a second term"),
        (gradient_of_weights, VALUES, "go on through the softmax"),
        (softmax_over_all, VALUES, "softmax is over the k chosen alone"),
        (downhill, VALUES, "the sign is wrong"),
        (column_of_the_choice, VALUES, "not for the choice number e"),
        (of_the_chosen_only, SHAPE, "[5, 2] was returned, should be [5, 4]"),
        (averaged, VALUES, "do not average"),
        (
            through_the_choice,
            VALUES,
            "right shape, wrong values (first at token 0, expert 0",
        ),
    ],
}
