"""Every operation over every dtype, and random floats."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.rank_functions.values import empty, me, mine, size

OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int32,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def table(collective: str) -> dict:
    """{(op, dtype): result or "refused"} of a collective."""
    act = {"all_reduce": _all_reduce, "reduce": _reduce, "reduce_scatter": _scattered}
    return {
        (op, str(dtype)): _tried(act[collective], getattr(dist.ReduceOp, op), dtype)
        for op in OPS
        for dtype in DTYPES
    }


def _tried(act, op, dtype):
    try:
        return act(op, dtype)
    except (RuntimeError, ValueError, TypeError):
        return "refused"


def _all_reduce(op, dtype):
    x = mine(5, dtype=dtype)
    dist.all_reduce(x, op)
    return x


def _reduce(op, dtype):
    x = mine(5, dtype=dtype)
    dist.reduce(x, size() - 1, op)
    return x if me() == size() - 1 else None


def _scattered(op, dtype):
    x = empty(5, dtype=dtype)
    dist.reduce_scatter_tensor(x, mine(5 * size(), dtype=dtype), op)
    return x


def random_floats(dtype: str):
    """A sum of random numbers, whose last digit depends on the order of adding."""
    torch.manual_seed(me())
    x = torch.randn(1000).to(getattr(torch, dtype))
    dist.all_reduce(x)
    return x


def random_numbers() -> list:
    """What the generator gives a rank: before a seed of its own, and after."""
    torch.manual_seed(me())
    first = torch.randn(3)
    dist.barrier()
    second = torch.randn(3)
    dist.all_reduce(torch.ones(1))
    third = (
        torch.nn.Linear(2, 2).weight.detach(),
        torch.nn.functional.dropout(torch.ones(9)),
    )
    return [first, second, third, torch.randint(0, 9, (4,)), torch.initial_seed()]
