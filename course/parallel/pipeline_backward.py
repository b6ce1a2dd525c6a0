"""A backward in two halves: first the gradient of the input, later those of the weights.

The neighbour waits for the gradient of a stage's input; nobody waits for those of its
weights. So a zero-bubble schedule does the first at once and fills idle time with the
second (Qi et al. 2023, arXiv 2401.10241, section 2).

    x [rows, k] @ w.T [k, n]  ->  y [rows, n]
    first half   x.grad = y.grad @ w          one matmul
    second half  w.grad = y.grad.T @ x        one matmul, put by until it is called for

Each matmul is done once: the halves together cost what a whole backward costs. The price
is memory: x and y.grad of each linear layer live until the second half.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import torch
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

_here = threading.local()  # .kept: what a forward on this thread puts work by in


class PutBy:
    """Work that a backward leaves for later."""

    def __init__(self):
        self._work: list[Callable[[], None]] = []

    def add(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    @torch.no_grad()
    def run(self) -> None:
        """Do it all, in the order in which it came; what each used is freed after it."""
        while self._work:
            self._work.pop(0)()


@contextlib.contextmanager
def in_halves(kept: PutBy | None):
    """A forward in here has a backward whose weight gradients go into `kept`.

    Those of torch.nn.functional.linear do, which nn.Linear calls, where the weight is a
    leaf: nearly all the work of a transformer's weights. Gradients of all else (norms,
    embeddings, what torch's own nn.MultiheadAttention does inside) come in the first
    half. None: an ordinary backward. Activation checkpointing inside is not supported.
    """
    if kept is None:
        yield
        return
    before, _here.kept = put_by_here(), kept
    try:
        with _LinearInHalves():
            yield
    finally:
        _here.kept = before


def put_by_here() -> PutBy | None:
    """Where a forward that runs now should leave work of its backward, if anywhere.

    To be asked for in forward and kept: backward may run on another thread.
    """
    return getattr(_here, "kept", None)


class _LinearInHalves(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is linear and _can_wait(*args, **kwargs):
            return _Linear.apply(*_in_order(*args, **kwargs))
        return function(*args, **kwargs)


def _in_order(input, weight, bias=None):
    return input, weight, bias


def _can_wait(input, weight, bias=None) -> bool:
    return weight.is_leaf and weight.requires_grad and torch.is_grad_enabled()


class _Linear(torch.autograd.Function):
    """`torch.nn.functional.linear` that puts its weight gradient by."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.kept = put_by_here()
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx, y_grad):
        x, weight = ctx.saved_tensors
        rows = _rows(x.detach())  # not the graph that made them
        needs_x, _, needs_bias = ctx.needs_input_grad
        ctx.kept.add(lambda: add_gradient(weight, _rows(y_grad).T @ rows))
        bias_grad = _rows(y_grad).sum(0) if needs_bias else None
        return y_grad @ weight if needs_x else None, None, bias_grad


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """All dims but the last as one: [rows, features]."""
    return tensor.reshape(-1, tensor.shape[-1])


def add_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add to a parameter's gradient, as backward does."""
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
