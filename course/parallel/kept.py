"""What autograd keeps for backward, counted on one rank, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.autograd.graph import saved_tensors_hooks


def kept_by(function, weights=()) -> dict:
    """The storages that forward, function(), keeps: {address: storage}, in that order.

    A storage counts once, however many tensors look at it; those of `weights` not at all.
    """
    known = {w.untyped_storage().data_ptr() for w in weights}
    kept = {}

    def pack(tensor):  # autograd calls it with each tensor that it is about to keep
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return kept


def kept_bytes(function: Callable, weights: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of `kept_by`."""
    return sum(storage.nbytes() for storage in kept_by(function, weights).values())
