"""Which tensors a group takes, and how it cuts them into one piece per rank."""

from __future__ import annotations

import torch

MANY = 256  # pieces: above, they are cut when asked for


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """gloo and NCCL both refuse a tensor with gaps, or in another order than its rows'."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name}: the tensor must be contiguous; this one of shape "
            f"{list(tensor.shape)} has strides {list(tensor.stride())}. "
            "Use x.contiguous(), and receive into a tensor of its own"
        )


def check_dense(name: str, tensor: torch.Tensor) -> None:
    """In any order, but without gaps: with them gloo would sum what lies between, too."""
    if not tensor.is_contiguous() and torch._debug_has_internal_overlap(tensor) != 0:
        check_contiguous(name, tensor)


def check_list(name: str, tensors: list, n: int, like: torch.Tensor | None = None) -> None:
    """One tensor for each of n ranks, each with as many elements as `like`."""
    if len(tensors) != n:
        raise ValueError(
            f"{name} must hold a tensor for each of the {n} ranks, not {len(tensors)}"
        )
    for i, tensor in enumerate(tensors):
        if like is not None and tensor.numel() != like.numel():
            raise ValueError(
                f"{name}[{i}] must have the shape {list(like.shape)} of this rank's "
                f"tensor, not {list(tensor.shape)}"
            )


class Pieces:
    """torch.chunk(tensor, n, dim), padded with empty pieces to n, cut when asked for.

    A mirrored rank of 16,384 looks at two of its pieces; cutting all took minutes.
    """

    def __init__(self, tensor: torch.Tensor, n: int, dim: int = 0):
        self._tensor, self._n, self._dim = tensor, n, dim
        self._size = -(-tensor.shape[dim] // n)  # rounded up, as torch.chunk does

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self._n:
            raise IndexError(index)
        start = index * self._size
        left = self._tensor.shape[self._dim] - start
        if left <= 0 and index > 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._size, left))


def equal_parts(name: str, whole: torch.Tensor, n: int, part: torch.Tensor):
    """`whole` as n flat pieces, each a view with as many elements as `part`."""
    if whole.numel() != n * part.numel():
        raise ValueError(
            f"{name} must have {n} times the elements of this rank's part, "
            f"{n * part.numel()}, not {whole.numel()}"
        )
    check_contiguous(name, whole)
    flat = whole.detach().view(-1)
    if n > MANY:
        return Pieces(flat, n)
    return list(flat.chunk(n)) if flat.numel() else [flat] * n


def row_parts(tensor: torch.Tensor, splits, n: int, name: str) -> list[torch.Tensor]:
    """The tensor cut along dim 0 as all_to_all_single does."""
    if not splits:
        if tensor.shape[0] % n:
            raise ValueError(
                f"{name} must divide by the {n} ranks in dim 0, not {list(tensor.shape)}"
            )
        splits = [tensor.shape[0] // n] * n
    if len(splits) != n or sum(splits) != tensor.shape[0]:
        raise ValueError(
            f"{name}_split_sizes must be {n} numbers with the sum {tensor.shape[0]}, "
            f"not {list(splits)}"
        )
    return list(tensor.detach().split(list(splits)))
