"""Python objects as bytes, to and from rank processes.

cloudpickle, so that a function defined in a notebook cell travels whole. Tensors
travel by value, and land on the receiver's device: a tensor on GPU 3 comes back
to the notebook as an ordinary CPU tensor, and one sent out lands on each rank's GPU.
"""

from __future__ import annotations

import inspect
import io
import marshal
import pickle
import sys
from types import CodeType

import cloudpickle

_device = "cpu"


def land_on(device: str) -> None:
    """Where this process wants the tensors that it unpacks."""
    global _device
    _device = device


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj):
        if isinstance(obj, CodeType):  # cloudpickle alone would lose the file's name
            return marshal.loads, (marshal.dumps(obj),)
        torch = sys.modules.get("torch")
        if torch and isinstance(obj, torch.storage.TypedStorage):
            return _typed_storage, (obj._untyped_storage, obj.dtype)
        if torch and isinstance(obj, torch.UntypedStorage):  # one for all its views
            content = torch.tensor([], dtype=torch.uint8, device=obj.device).set_(obj)
            return _storage, (content.cpu().numpy().tobytes(),)
        return super().reducer_override(obj)


def _storage(data: bytes):
    import torch

    if not data:
        return torch.empty(0, dtype=torch.uint8, device=_device).untyped_storage()
    content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return content.to(_device).untyped_storage()


def _typed_storage(storage, dtype):
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def pack(value) -> bytes:
    """Raises whatever pickling raises: TypeError, PicklingError, ..."""
    data = io.BytesIO()
    _Pickler(data, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return data.getvalue()


def unpack(data: bytes):
    return pickle.loads(data)


def pack_work(function, args: tuple) -> bytes:
    """(function, args) as bytes. ValueError names the part that cannot be sent."""
    try:
        return pack((function, args))
    except Exception as error:
        what = _culprit(function, args)
        raise ValueError(f"{what} cannot be sent to the ranks: {error}") from None


def _culprit(function, args) -> str:
    for number, value in enumerate(args, start=1):
        if not _packs(value):
            return f"argument {number} of the function, a {type(value).__name__},"
    name = getattr(function, "__name__", repr(function))
    for used, value in _variables(function).items():
        if not _packs(value):
            return f"{used!r}, a {type(value).__name__} that {name} uses,"
    return name


def _variables(function) -> dict:
    try:
        found = inspect.getclosurevars(function)
    except TypeError:  # a callable object, or a builtin
        return {}
    return {**found.globals, **found.nonlocals}


def _packs(value) -> bool:
    try:
        pack(value)
        return True
    except Exception:
        return False
