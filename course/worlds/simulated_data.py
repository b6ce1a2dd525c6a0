"""What each collective does to the tensors of all ranks, once all have called it.

Every function takes `calls`, one `Call` per group rank, and writes the outputs in place.
Sums go in rank order, in the tensors' own dtype.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

_COMBINE = {
    "sum": lambda total, x: total.add_(x),
    "avg": lambda total, x: total.add_(x),
    "product": lambda total, x: total.mul_(x),
    "min": lambda total, x: torch.minimum(total, x, out=total),
    "max": lambda total, x: torch.maximum(total, x, out=total),
    "band": lambda total, x: total.bitwise_and_(x),
    "bor": lambda total, x: total.bitwise_or_(x),
    "bxor": lambda total, x: total.bitwise_xor_(x),
}
_NAMES = {getattr(dist.ReduceOp, name.upper()): name for name in _COMBINE}


def op_name(op, dtype: torch.dtype) -> str:
    """The name of a torch ReduceOp, "sum" and so on.

    Raises ValueError where gloo has no such operation for the dtype.
    """
    name = next((name for known, name in _NAMES.items() if op == known), None)
    if name is None:
        raise ValueError(
            f"the simulated world does not know {op}; it knows {', '.join(_COMBINE)}"
        )
    rule = _rule(name, dtype)
    if rule:
        kind = str(dtype).removeprefix("torch.")
        raise ValueError(f"op={name.upper()} works on {rule}, not on {kind}")
    return name


def _rule(name: str, dtype: torch.dtype) -> str:
    """What the operation works on, "" where that includes the dtype."""
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if name in ("band", "bor", "bxor"):
        return "" if whole else "whole numbers and bool"
    if name in ("product", "min", "max"):
        return "real numbers" if dtype.is_complex else ""
    return "numbers with a fraction" if name == "avg" and whole else ""


def _reduced(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        _COMBINE[op](total, tensor)
    return total.div_(len(tensors)) if op == "avg" else total


def copy(destination: torch.Tensor, source: torch.Tensor) -> None:
    """Copy elements in order; the two may differ in shape, not in number of elements."""
    if destination.shape != source.shape:
        source = source.reshape(destination.shape)
    destination.copy_(source)


def all_reduce(calls: list) -> None:
    for i in range(len(calls[0].inputs)):
        total = _reduced([c.inputs[i] for c in calls], calls[0].op)
        for c in calls:
            copy(c.outputs[i], total)


def reduce(calls: list) -> None:
    root = calls[calls[0].root]
    copy(root.outputs[0], _reduced([c.inputs[0] for c in calls], root.op))


def broadcast(calls: list) -> None:
    root = calls[calls[0].root]
    for c in calls:
        if c is not root:
            copy(c.outputs[0], root.inputs[0])


def all_gather(calls: list) -> None:
    """inputs: k tensors; outputs: k lists of one tensor per rank."""
    for c in calls:
        for k, outputs in enumerate(c.outputs):
            for output, source in zip(outputs, calls, strict=True):
                copy(output, source.inputs[k])


def gather(calls: list) -> None:
    for output, source in zip(calls[calls[0].root].outputs, calls, strict=True):
        copy(output, source.inputs[0])


def scatter(calls: list) -> None:
    for piece, c in zip(calls[calls[0].root].inputs, calls, strict=True):
        copy(c.outputs[0], piece)


def reduce_scatter(calls: list) -> None:
    """inputs: k lists of one tensor per rank; outputs: k tensors."""
    for k in range(len(calls[0].outputs)):
        # all sums first: an output may be a view of its rank's input
        totals = [
            _reduced([c.inputs[k][r] for c in calls], calls[0].op)
            for r in range(len(calls))
        ]
        for c, total in zip(calls, totals, strict=True):
            copy(c.outputs[k], total)


def all_to_all(calls: list) -> None:
    for r, c in enumerate(calls):
        for source, output in zip(calls, c.outputs, strict=True):
            copy(output, source.inputs[r])


def barrier(calls: list) -> None:
    pass


MOVES = {
    f.__name__: f
    for f in (
        all_reduce, reduce, broadcast, all_gather, gather, scatter, reduce_scatter,
        all_to_all, barrier,
    )
}  # fmt: skip


# --- The same in a mirrored world, where every rank holds what this one holds -------


def mirrored(call, ranks: int) -> None:
    """Do the collective as if all `ranks` ranks had made the very same call."""
    if call.kind in ("all_to_all", "scatter"):
        for output in call.outputs:
            copy(output, call.inputs[call.group_rank])
    elif call.kind == "reduce_scatter":
        for output, inputs in zip(call.outputs, call.inputs, strict=True):
            copy(output, _times(inputs[call.group_rank], call.op, ranks))
    elif call.kind in ("all_reduce", "reduce"):
        for output, source in zip(call.outputs, call.inputs, strict=True):
            copy(output, _times(source, call.op, ranks))
    elif call.kind in ("all_gather", "gather"):
        lists = call.outputs if call.kind == "all_gather" else [call.outputs]
        for outputs, source in zip(lists, call.inputs, strict=True):
            for output in outputs:
                copy(output, source)


def _times(tensor: torch.Tensor, op: str, ranks: int) -> torch.Tensor:
    if op == "sum":
        return tensor * ranks
    if op == "product":
        return tensor**ranks
    if op == "bxor":
        return tensor if ranks % 2 else torch.zeros_like(tensor)
    return tensor.clone()
