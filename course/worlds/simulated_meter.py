"""What a rank's torch operations cost: seconds by a roofline.

A dispatch mode on each rank's thread sees every torch operation. Nothing is reported by
the code that runs, so it cannot be wrong about itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from course.facts import Gpu
from course.worlds.simulated_calls import readers_line

# Operations that only reserve memory or only look at a tensor from another side
_FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "_unsafe_view", "lift_fresh", "set_", "resize_", "_local_scalar_dense",
}  # fmt: skip
_is_free: dict = {}
_MESH_FILES = ("distributed/device_mesh.py", "distributed/_mesh_layout.py")


def is_free(operation) -> bool:
    """Whether an operation moves no byte: views, and what only reserves memory."""
    known = _is_free.get(operation)
    if known is None:
        returns = operation._schema.returns
        view = bool(returns) and all(
            r.alias_info is not None and not r.alias_info.is_write for r in returns
        )
        known = view or operation._overloadpacket.__name__ in _FREE
        _is_free[operation] = known
    return known


def tensors_in(values) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of an operation, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def roofline_seconds(operation, args, kwargs, out, gpu: Gpu) -> float:
    """The longer of the operation's arithmetic and its memory traffic.

    FLOPs: torch.utils.flop_counter's formulas, at the GPU's peak for the dtype times
    its matmul_efficiency. Bytes: every input read once, every output written once.
    """
    tensors = [*tensors_in(args), *tensors_in(kwargs.values()), *tensors_in((out,))]
    moved = sum(t.numel() * t.element_size() for t in tensors)
    count = flop_registry.get(operation._overloadpacket)
    flops_s = 0.0
    if count is not None:
        flops = count(*args, **kwargs, out_val=out)
        width = tensors[0].element_size()
        flops_s = flops / (gpu.flops_per_s(width) * gpu.matmul_efficiency)
    return max(flops_s, moved / gpu.memory_bytes_per_s)


def _makes_a_mesh(frame) -> bool:
    """Whether torch's DeviceMesh calls an operation, straight or under a device."""
    if frame.f_code.co_filename == _device.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename.endswith(_MESH_FILES)


class RankMeter(TorchDispatchMode):
    """Sees what one rank does. `memory` is a RankMemory or None, `gpu` None where free."""

    def __init__(self, simulation, rank: int, gpu: Gpu | None, memory, fake):
        super().__init__()
        self.simulation, self.rank = simulation, rank
        self.gpu, self.memory, self.fake = gpu, memory, fake

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap the method below in three more frames, for compilers' sake
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.simulation.clock.progress += 1
        if operation.namespace == "prim":  # "on which device?": no work
            return operation(*args, **kwargs)
        if _makes_a_mesh(sys._getframe(1)):
            # A mesh lives on the host, and its numbers must be read: let them be real
            with torch._C._DisableTorchDispatch():
                return operation(*args, **kwargs)
        out = operation(*args, **kwargs)
        if self.memory is not None:
            self.memory.see(out)  # a result has its memory from the operation's start
        if operation.namespace in ("c10d", "_c10d_functional", "_dtensor"):
            if self.fake:
                self.fake.collective(operation, args, out)
        elif self.gpu is not None and not is_free(operation):
            self._charge(operation, args, kwargs, out)
        return out

    def _charge(self, operation, args, kwargs, out) -> None:
        seconds = roofline_seconds(operation, args, kwargs, out, self.gpu)
        if seconds:
            name = operation._overloadpacket.__name__
            if self.rank in self.simulation.stepping:
                name += " optimizer"
            elif torch._C._current_graph_task_id() != -1:
                name += " backward"
            self.simulation.spend(self.rank, seconds, name, readers_line(sys._getframe(3)))
