"""Live tensor bytes of a rank, and what they are for. Of a real rank: `live_memory`.

Bytes are those of storages, each counted once however many tensors view it. Kinds are
told apart where torch allows: parameters and buffers by module registration, gradients
and optimizer state by the optimizer's hooks, activations as what forward makes.
"""

from __future__ import annotations

import contextlib
import weakref
from unittest import mock

import torch
from torch.nn.modules import module
from torch.optim import optimizer

from course.worlds.simulated_meter import tensors_in
from course.worlds.simulated_torch import simulation_here

KINDS = (
    "parameters", "gathered parameters", "buffers", "gradients", "optimizer state",
    "communication", "activations",
)  # fmt: skip
# What may still turn out to be something better known
_GUESSES = (None, "activations", "communication")


class RankMemory:
    """Live tensor bytes of one rank: a log of storages that came, grew, shrank and went.

    What a storage was for is often known only later (a gradient when the optimizer reads
    it), so the log keeps the storage, and kinds are looked up when the run is over.
    """

    def __init__(self, now):
        self._now = now  # the rank's virtual time
        self.live_bytes = self.peak_bytes = 0
        self._peak_at = 0  # index in the log
        self.log: list[tuple[float, int, int]] = []  # (time, storage, change in bytes)
        self.kinds: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self._refs: dict[int, tuple] = {}  # id of the storage object: (weakref, number)
        self._number = 0
        self.in_step = False

    def see(self, out) -> None:
        """Note the storages of an operation's outputs, unless they are known."""
        for tensor in tensors_in((out,)):
            self.note(tensor)

    def note(self, tensor: torch.Tensor, kind: str | None = None) -> None:
        """Know the tensor's storage; with `kind`, also what it is for."""
        inner = getattr(tensor, "_local_tensor", tensor)
        storage = inner.untyped_storage()
        known = self._refs.get(id(storage))
        if known is None:
            known = self._begin(storage)
        if kind and self.kinds.get(known[1]) in _GUESSES:
            self.kinds[known[1]] = kind

    def note_all(self, tensors, kind: str) -> None:
        for tensor in tensors_in(tensors):
            self.note(tensor, kind)

    def _begin(self, storage) -> tuple:
        number = self._number = self._number + 1
        key = id(storage)
        known = self._refs[key] = weakref.ref(storage, lambda _: self._end(key)), number
        self._sizes[number] = 0
        backward = torch._C._current_graph_task_id() != -1
        if torch.is_grad_enabled() and not backward and not self.in_step:
            self.kinds[number] = "activations"  # unless it turns out to be a parameter
        self._change(number, storage.nbytes())
        return known

    def _end(self, key: int) -> None:
        _, number = self._refs.pop(key)
        self._change(number, 0)
        del self._sizes[number]

    def resized(self, storage) -> None:
        """The storage was given a new size in place, as FSDP does to free parameters."""
        known = self._refs.get(id(storage)) or self._begin(storage)
        self.kinds[known[1]] = "gathered parameters"
        self._change(known[1], storage.nbytes())

    def _change(self, number: int, size: int) -> None:
        change = size - self._sizes[number]
        if change == 0:
            return
        self._sizes[number] = size
        self.live_bytes += change
        self.log.append((self._now(), number, change))
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self._peak_at = self.live_bytes, len(self.log)

    def peak_kinds(self) -> dict[str, int]:
        """What the bytes at the peak were for. "other": what no kind is known for."""
        totals: dict[str, int] = {}
        for _, number, change in self.log[: self._peak_at]:
            kind = self.kinds.get(number, "other")
            totals[kind] = totals.get(kind, 0) + change
        order = [*KINDS, "other"]
        return {kind: totals[kind] for kind in order if totals.get(kind)}

    def curve(self) -> list[tuple[float, int]]:
        """(seconds, live bytes) after each change, one point for each moment.

        In the order in which it happened: what a side stream does carries that stream's
        time, which may be behind, and then counts as now.
        """
        points: dict[float, int] = {}
        live, now_s = 0, 0.0
        for time_s, _, change in self.log:
            live += change
            now_s = max(now_s, time_s)
            points[now_s] = live
        return list(points.items())


# --- torch tells what is what -------------------------------------------------------


# Of a real rank, which has a process of its own
_of_this_process: list[RankMemory] = []


def memory_here() -> RankMemory | None:
    """The memory of the calling thread's rank, where it is metered."""
    here = simulation_here()
    if here is None:
        return _of_this_process[-1] if _of_this_process else None
    return here[0].memories.get(here[1])


@contextlib.contextmanager
def counted_here(memory: RankMemory):
    """Inside, this process is one rank, and that is its memory."""
    _of_this_process.append(memory)
    try:
        with torch_tells():
            yield
    finally:
        _of_this_process.remove(memory)


def _registered(kind: str):
    def hook(_module, _name, tensor):
        memory = memory_here()
        if memory is not None and tensor is not None:
            memory.note(tensor, kind)

    return hook


def _before_step(stepping, args, kwargs):
    here = simulation_here()
    if here is not None:
        here[0].stepping.add(here[1])
    memory = memory_here()
    if memory is None:
        return
    for group in stepping.param_groups:
        for parameter in group["params"]:
            memory.note(parameter, "parameters")
            if parameter.grad is not None:
                memory.note(parameter.grad, "gradients")
    memory.in_step = True


def _after_step(stepping, args, kwargs):
    here = simulation_here()
    if here is not None:
        here[0].stepping.discard(here[1])
    memory = memory_here()
    if memory is None:
        return
    memory.in_step = False
    for state in stepping.state.values():
        for tensor in tensors_in(state.values()):
            memory.note(tensor, "optimizer state")


def _noted_grad() -> property:
    """Tensor.grad, as torch has it; what it shows to Python is known for a gradient."""
    plain = torch._C.TensorBase.grad

    def shown(tensor):
        grad = plain.__get__(tensor)
        memory = None if grad is None else memory_here()
        if memory is not None:
            memory.note(grad, "gradients")
        return grad

    return property(shown, plain.__set__, plain.__delete__)


@contextlib.contextmanager
def torch_tells():
    """For the time of a run: torch's hooks and resizes reach the ranks' memories."""
    resize = torch.UntypedStorage.resize_

    def resize_(storage, *size):
        out = resize(storage, *size)
        memory = memory_here()
        if memory is not None:
            memory.resized(storage)
        return out

    hooks = (
        module.register_module_parameter_registration_hook(_registered("parameters")),
        module.register_module_buffer_registration_hook(_registered("buffers")),
        optimizer.register_optimizer_step_pre_hook(_before_step),
        optimizer.register_optimizer_step_post_hook(_after_step),
    )
    try:
        with (
            mock.patch.object(torch.UntypedStorage, "resize_", resize_),
            mock.patch.object(torch.Tensor, "grad", _noted_grad()),
        ):
            yield
    finally:
        for hook in hooks:
            hook.remove()
