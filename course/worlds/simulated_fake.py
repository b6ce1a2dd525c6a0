"""Models that do not fit: fake tensors have a shape, a dtype and a size, and no values.

torch's FakeTensorMode runs the operations. torch's functional collectives (DTensor uses
them) never reach a process group under it, so they are given to ours from here.
"""

from __future__ import annotations

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
from torch.distributed import distributed_c10d as c10d
from torch.utils._pytree import tree_map

from course.worlds.simulated_calls import Call

_READS_VALUES = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
)


class _Converter(FakeTensorConverter):
    """torch's, which keeps a weak reference to every tensor that an operation made.

    Nobody looks for such a tensor again, and Module.bfloat16() or .to(dtype) refuses to
    change a weight that something refers to. Tensors made from real ones stay known:
    the same real tensor is the same fake one.
    """

    def set_tensor_memo(self, t, v) -> None:
        """Of an operation's result: not kept."""


def fake_mode() -> FakeTensorMode:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.fake_tensor_converter = _Converter()
    return mode


def as_fake(mode: FakeTensorMode, values):
    """The same with every tensor fake."""
    return tree_map(
        lambda v: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v, values
    )


def fake_rule(error: BaseException) -> str:
    """Which rule of fake tensors a program broke, or ''."""
    if isinstance(error, _READS_VALUES):
        return (
            'with tensors="fake" there are shapes and no values. Leave out .item(), print '
            'and branches on values, or run with tensors="real"'
        )
    if "data is not allocated yet" in str(error):
        return (
            'with tensors="fake" native code finds no memory to read. '
            "DistributedDataParallel "
            "is native code: use fully_shard or a hand-written one, or run with "
            'tensors="real"'
        )
    return ""


class FakeCollectives:
    """Functional collectives on fake tensors, one per rank."""

    def __init__(self):
        self._works: dict[int, object] = {}  # by id of the output's storage

    def collective(self, operation, args, out) -> None:
        name = operation._overloadpacket.__name__
        if name == "wait_tensor":
            work = self._works.pop(id(args[0].untyped_storage()), None)
            if work is not None:
                work.wait()
            return
        post = getattr(self, "_" + name.rstrip("_"), None)
        if post is None:
            raise NotImplementedError(
                f'{name} is not supported with tensors="fake": use tensors="real"'
            )
        self._works[id(out.untyped_storage())] = post(args, out)  # until it is waited for

    def _all_reduce(self, args, out):
        tensor, op, group = args
        size = out.numel() * out.element_size()
        return _group(group)._post(
            "all_reduce", [tensor], [out], tensor, [out], nbytes=size, op=op.lower()
        )

    def _broadcast(self, args, out):
        tensor, root, group = args
        size = out.numel() * out.element_size()
        return _group(group)._post(
            "broadcast", [tensor], [out], tensor, [out], nbytes=size, root=root
        )

    def _all_gather_into_tensor(self, args, out):
        tensor, _, group = args
        size = out.numel() * out.element_size()
        return _group(group)._post("all_gather", [tensor], [], tensor, [out], nbytes=size)

    def _reduce_scatter_tensor(self, args, out):
        tensor, op, _, group = args
        size = tensor.numel() * tensor.element_size()
        return _group(group)._post(
            "reduce_scatter", [tensor], [out], out, [out], nbytes=size, op=op.lower()
        )

    def _all_to_all_single(self, args, out):
        tensor, out_splits, in_splits, group = args
        group = _group(group)
        row = tensor.numel() // max(1, tensor.shape[0])
        return _all_to_all(
            group, tensor, out, [s * row for s in in_splits], [s * row for s in out_splits]
        )

    def _shard_dim_alltoall(self, args, out):
        tensor, _, _, group = args
        group = _group(group)
        parts = [tensor.numel() // group.size()] * group.size()
        return _all_to_all(group, tensor, out, parts, parts)


def _all_to_all(group, tensor, out, sent: list[int], received: list[int]):
    call = Call("all_to_all", group, [tensor], [out], tensor)
    call.splits = sent, received
    call.nbytes = tensor.numel() * tensor.element_size()
    group.simulation.collective(call)
    return group._work(call, [out])


def _group(name: str):
    return c10d._resolve_process_group(name)
