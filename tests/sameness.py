"""Where two results differ: nested lists of tensors, compared to the last bit or nearly."""

from __future__ import annotations

import torch


def difference(a, b, *, tolerance: float = 0, path: str = "result") -> str:
    """ "" where a and b are the same, else the first place where they are not.

    tolerance: of floating-point tensors, relative and absolute; 0 means to the last bit
    """
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return "" if _same_tensor(a, b, tolerance) else f"{path}: {a} and {b}"
    if type(a) is not type(b):
        return f"{path}: {a!r} and {b!r}"
    if isinstance(a, dict):
        return difference(list(a.items()), list(b.items()), tolerance=tolerance, path=path)
    if not isinstance(a, list | tuple):
        return "" if a == b else f"{path}: {a!r} and {b!r}"
    if len(a) != len(b):
        return f"{path}: {len(a)} and {len(b)} things"
    found = (
        difference(x, y, tolerance=tolerance, path=f"{path}[{i}]")
        for i, (x, y) in enumerate(zip(a, b, strict=True))
    )
    return next(filter(None, found), "")


def _same_tensor(a, b, tolerance: float) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if tolerance and a.is_floating_point():
        return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    return torch.equal(a, b)
