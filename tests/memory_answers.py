"""Answers to chapter 07's exercises: right ones, and wrong ones by name.

Same shape as in exercise_answers.py: {exercise: answers}, and each wrong one's verdict.
"""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from course.checks.states import held
from course.parallel.memory import chunked_cross_entropy, recomputed

# --- Model states -----------------------------------------------------------------------


def nbytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def in_optimizer(optimizer):
    states = [t for state in optimizer.state.values() for t in state.values()]
    return [t for t in states if isinstance(t, torch.Tensor)]


def of_model(model):
    own = list(model.parameters())
    return nbytes(own), nbytes(p.grad for p in own)


def by_storages(model, optimizer):
    """A second right answer: whatever is reachable, by the address of its storage."""
    seen = {}

    def once(tensors):
        new = [t for t in tensors if t is not None and t.data_ptr() not in seen]
        seen.update({t.data_ptr(): t for t in new})
        return nbytes(new)

    own = list(model.parameters())
    theirs = [p for group in optimizer.param_groups for p in group["params"]]
    first = once(own), once([p.grad for p in own])
    rest = [*theirs, *(p.grad for p in theirs), *in_optimizer(optimizer)]
    return *first, once(rest)


def sixteen_each(model, optimizer):
    count = sum(p.numel() for p in model.parameters())
    return 4 * count, 4 * count, 8 * count


def elements_not_bytes(model, optimizer):
    own = list(model.parameters())
    return sum(p.numel() for p in own), sum(p.grad.numel() for p in own), 0


def trained_only(model, optimizer):
    own = [p for p in model.parameters() if p.requires_grad]
    return nbytes(own), nbytes(p.grad for p in own), held(model, optimizer)[2]


def gradients_as_weights(model, optimizer):
    weights, _ = of_model(model)
    return weights, weights, held(model, optimizer)[2]


def shared_weight_twice(model, optimizer):
    state = model.state_dict().values()
    return nbytes(state), of_model(model)[1], held(model, optimizer)[2]


def states_without_copies(model, optimizer):
    return *of_model(model), nbytes(in_optimizer(optimizer))


def copies_without_gradients(model, optimizer):
    own = {id(p) for p in model.parameters()}
    theirs = [p for group in optimizer.param_groups for p in group["params"]]
    copies = [p for p in theirs if id(p) not in own]
    return *of_model(model), nbytes([*in_optimizer(optimizer), *copies])


def moments_only(model, optimizer):
    return *of_model(model), nbytes(t for t in in_optimizer(optimizer) if t.dim())


def no_gradient_is_an_error(model, optimizer):
    own = list(model.parameters())
    bytes_of_grads = sum(p.grad.nbytes for p in own)
    return nbytes(own), bytes_of_grads, held(model, optimizer)[2]


def one_number(model, optimizer):
    return sum(held(model, optimizer))


# --- Recompute --------------------------------------------------------------------------


class Keeps(torch.autograd.Function):
    """recomputed's class with one thing to be changed at a time."""

    random, seed, parameters, again = True, True, True, 1

    @staticmethod
    def forward(ctx, function, x, way):
        ctx.function, ctx.way, ctx.random = function, way, torch.get_rng_state()
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        if ctx.way.random:
            torch.set_rng_state(ctx.random)
        with torch.enable_grad():
            for _ in range(ctx.way.again):
                y = ctx.function(x)
        gradient = gradient if ctx.way.seed else torch.ones_like(y)
        if not ctx.way.parameters:
            return None, *torch.autograd.grad(y, x, gradient), None
        torch.autograd.backward(y, gradient)
        return None, x.grad, None


def another_mask(function, x):
    way = type("Way", (Keeps,), {"random": False})
    return Keeps.apply(function, x, way)


def ones_for_the_gradient(function, x):
    return Keeps.apply(function, x, type("Way", (Keeps,), {"seed": False}))


def parameters_forgotten(function, x):
    return Keeps.apply(function, x, type("Way", (Keeps,), {"parameters": False}))


def recomputed_twice(function, x):
    return Keeps.apply(function, x, type("Way", (Keeps,), {"again": 2}))


def keeps_everything(function, x):
    return function(x)


def torchs_checkpoint(function, x):
    return checkpoint(function, x, use_reentrant=False)


def without_gradient(function, x):
    with torch.no_grad():
        return function(x)


def nothing(function, x):
    function(x)


class GraphInForward(torch.autograd.Function):
    """Forward with autograd on: everything is kept inside the context after all."""

    @staticmethod
    def forward(ctx, function, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = function(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        torch.autograd.backward(ctx.y, gradient)
        return None, ctx.x.grad


def graph_in_forward(function, x):
    return GraphInForward.apply(function, x)


# --- A loss in chunks -------------------------------------------------------------------


def pieces(hidden, targets, chunks):
    return zip(hidden.tensor_split(chunks), targets.tensor_split(chunks), strict=True)


def all_logits(hidden, weight, targets, chunks):
    return F.cross_entropy(hidden @ weight.T, targets)


def chunks_all_kept(hidden, weight, targets, chunks):
    parts = pieces(hidden, targets, chunks)
    losses = [F.cross_entropy(h @ weight.T, t, reduction="sum") for h, t in parts]
    return sum(losses) / len(targets)


def mean_of_means(hidden, weight, targets, chunks):
    def one(h, t):
        return F.cross_entropy(h @ weight.T, t)

    parts = pieces(hidden, targets, chunks)
    return sum(checkpoint(one, h, t, use_reentrant=False) for h, t in parts) / chunks


def sum_of_losses(hidden, weight, targets, chunks):
    return chunked_cross_entropy(hidden, weight, targets, chunks) * len(targets)


def numbers_added_up(hidden, weight, targets, chunks):
    parts = pieces(hidden, targets, chunks)
    return sum(F.cross_entropy(h @ weight.T, t).item() for h, t in parts)


def weight_cut_off(hidden, weight, targets, chunks):
    return chunked_cross_entropy(hidden, weight.detach(), targets, chunks)


def loss_cut_off(hidden, weight, targets, chunks):
    return chunked_cross_entropy(hidden, weight, targets, chunks).detach()


def first_chunk_only(hidden, weight, targets, chunks):
    return F.cross_entropy(hidden.tensor_split(chunks)[0] @ weight.T, targets)


RIGHT = {
    "model states": [held, by_storages],
    "recompute": [recomputed],
    "loss in chunks": [chunked_cross_entropy],
}

VALUES, SHAPE, MUCH = "wrong values", "wrong shape", "too much memory"

# exercise: [(wrong answer, kind of verdict, words of its text)]
WRONG = {
    "model states": [
        (sixteen_each, VALUES, "case: fp32, AdamW"),
        (elements_not_bytes, VALUES, "numbers, not bytes"),
        (trained_only, VALUES, "frozen weights are there too"),
        (gradients_as_weights, VALUES, "a frozen weight has no gradient"),
        (shared_weight_twice, VALUES, "two layers share exists once"),
        (states_without_copies, VALUES, "the copies that it updates are missing"),
        (copies_without_gradients, VALUES, "the copies have gradients, too"),
        (moments_only, VALUES, "count of steps is a tensor too"),
        (no_gradient_is_an_error, "raised", "case: a frozen layer"),
        (one_number, SHAPE, "should be three whole numbers"),
    ],
    "recompute": [
        (keeps_everything, MUCH, "bytes where 172816 are enough"),
        (graph_in_forward, MUCH, "forward is to keep x"),
        (torchs_checkpoint, "against the rules", "write it yourself"),
        (another_mask, VALUES, "dropout 0.25"),
        (ones_for_the_gradient, VALUES, "first at x.grad, element 0"),
        (parameters_forgotten, SHAPE, "a parameter's .grad has nothing"),
        (recomputed_twice, "too slow", "called 3 times where 2 are enough"),
        (without_gradient, VALUES, "cut off"),
        (nothing, SHAPE, "None was returned"),
    ],
    "loss in chunks": [
        (all_logits, MUCH, "bytes where 126288 are enough"),
        (chunks_all_kept, MUCH, "logits of one chunk at a time"),
        (mean_of_means, VALUES, "50 tokens"),
        (sum_of_losses, VALUES, "first at the loss"),
        (numbers_added_up, SHAPE, "should be a tensor without a dim"),
        (weight_cut_off, SHAPE, "weight.grad has nothing"),
        (loss_cut_off, VALUES, "cut off"),
        (first_chunk_only, "raised", "case: 64 tokens"),
    ],
}
