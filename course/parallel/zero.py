"""ZeRO by hand, for one rank: what each rank need not keep, it does not keep.

    Zero1   optimizer state in shards
    Zero2   gradients too: reduced and freed bucket by bucket, while backward runs
    Zero3   parameters too: each block's are gathered before use and released after it

All take the place of the optimizer, and step() clears gradients:

    zero = Zero2(model, lr=1e-3)
    for x, y in batches:                    # this rank's own
        loss(model(x), y).backward()
        zero.step()

The gradient is the mean over ranks. Every rank runs the same model; the first rank's
parameters and buffers are copied to all. A row of parameters is updated if any of them
has a gradient: those without then count as having zeros (torch would leave them alone).

Rajbhandari et al. 2020, arXiv 1910.02054, section 5. Costs: `course.costs.zero`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from course.facts import MIB
from course.parallel.zero_units import Unit, alike, buckets, clip, copy_from_first, owned

BUCKET_BYTES = 25 * MIB  # as torch's DistributedDataParallel


class Sharded:
    """Units, and AdamW on this rank's shard of each. The stages say when to do what.

    adamw: what torch.optim.AdamW takes. It works element by element, so updating a
           shard needs nothing of the others
    """

    def __init__(self, units: list[Unit], group, adamw: dict):
        self.units, self.group = units, group
        self.shards = [unit.shard for unit in units]
        self.optimizer = torch.optim.AdamW(self.shards, **adamw)
        self._last: Unit | None = None  # the one whose reduce-scatter is on its way
        self._sync = True

    def reduce(self, unit: Unit) -> None:
        """Start a unit's reduce-scatter, once the one before has ended.

        So there are never more than two whole gradients of a unit: one that is sent and
        one that grows.
        """
        if self._last is not None:
            self._last.finish_reduce()
        unit.reduce()
        self._last = unit

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward inside adds up whole gradients: for all micro-batches but the last."""
        self._sync = False
        try:
            yield
        finally:
            self._sync = True

    def update(self, max_norm: float | None = None) -> torch.Tensor | None:
        """Reduce what is not yet reduced, clip, and update the shards."""
        for unit in self.units:
            if unit.has_gradients():
                self.reduce(unit)
        if self._last is not None:
            self._last.finish_reduce()
        norm = None if max_norm is None else clip(self.shards, max_norm, self.group)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


class Zero1(Sharded):
    """Stage 1: each rank keeps optimizer state for 1/n of the parameters only.

    bucket_bytes: so much is reduced and gathered at once
    adamw:        lr and so on, for torch.optim.AdamW

    A step sends 2P elements: reduce-scatter of gradients, all-gather of parameters.
    Micro-batches: call backward for each, then step. Nothing is sent before step.
    """

    def __init__(
        self, model: nn.Module, *, bucket_bytes: float = BUCKET_BYTES, group=None, **adamw
    ):
        copy_from_first(model, group)
        trained = [p for p in model.parameters() if p.requires_grad]
        units = [Unit(some, group=group) for some in buckets(trained, bucket_bytes)]
        super().__init__(units, group, adamw)

    def step(self, max_norm: float | None = None) -> torch.Tensor | None:
        """Update the model, and clear its gradients.

        max_norm: clip gradients to this global norm first. Returns the norm before
        """
        norm = self.update(max_norm)
        for unit in self.units:
            unit.collect()
        for unit in self.units:
            unit.wait()
        return norm


class Zero2(Zero1):
    """Stage 2: stage 1, and of the gradients too each rank keeps 1/n only.

    A bucket is reduced as soon as backward has made its last gradient, and freed at once:
    whole gradients are there for a bucket or two, never for the model.

    Micro-batches: each backward reduces (P more), unless it runs `with zero.no_sync():`,
    which keeps whole gradients and so gives up what this stage saves.
    """

    def __init__(
        self, model: nn.Module, *, bucket_bytes: float = BUCKET_BYTES, group=None, **adamw
    ):
        super().__init__(model, bucket_bytes=bucket_bytes, group=group, **adamw)
        for unit in self.units:
            self.reduce_when_complete(unit)

    def reduce_when_complete(self, unit: Unit) -> None:
        """Reduce the unit in backward, as soon as all its parameters have gradients."""
        arrived = set()

        def arrive(parameter: nn.Parameter) -> None:
            if self._sync:
                arrived.add(parameter)
            if len(arrived) == len(unit.parameters):
                arrived.clear()
                self.reduce(unit)

        for parameter in unit.parameters:
            parameter.register_post_accumulate_grad_hook(arrive)


class Zero3(Sharded):
    """Stage 3: of the parameters too each rank keeps 1/n only. FSDP is this.

    blocks: modules of the model in the order in which they run, none inside another.
            A block's parameters are gathered before its forward, and again before its
            backward, and freed after each; the next block's are gathered meanwhile.
            All other parameters, and those that several blocks share, are the root's:
            gathered from the start of forward to the end of backward
    prefetch: False gathers a block only when it is its turn

    A step sends 3P elements: two all-gathers and a reduce-scatter (2P for the root). With
    m micro-batches, all but the last in `no_sync`, it is 2Pm + P.
    Outside forward and backward parameters are empty: `gathered` shows them.
    """

    def __init__(
        self, model: nn.Module, blocks: Sequence[nn.Module], *, prefetch: bool = True,
        group=None, **adamw,
    ):  # fmt: skip
        blocks = list(blocks)
        copy_from_first(model, group)
        self.parts = [
            [Unit(same, keep_whole=False, group=group) for same in alike(parameters)]
            for parameters in owned(model, blocks)
        ]  # the root's units, then those of each block
        super().__init__([unit for part in self.parts for unit in part], group, adamw)
        self.prefetch = prefetch
        self._in_backward = False
        for k, module in enumerate([model, *blocks]):
            self._watch(k, module)

    def _watch(self, k: int, module: nn.Module) -> None:
        """Let part k know when its module runs, forward and backward."""

        def before(_, args, kwargs):
            self._before_forward(k)
            inputs = trained_tensors((args, kwargs))
            if k > 0 and inputs and not self._in_backward:
                # the gradient of a block's input is the last thing that it makes
                register_multi_grad_hook(inputs, lambda _: self._done(k))

        def after(_, args, output):
            for tensor in trained_tensors(output):
                if tensor.grad_fn is not None:
                    # after the hooks of the tensor itself: the block behind is done
                    tensor.grad_fn.register_prehook(lambda _: self._before_backward(k))
            if not self._in_backward and (k > 0 or not torch.is_grad_enabled()):
                self._release(k)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    def _before_forward(self, k: int) -> None:
        ahead = 0 if self._in_backward else k + 1  # a checkpoint runs forward in backward
        self._need(k, ahead if k > 0 else 0)

    def _before_backward(self, k: int) -> None:
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        self._need(k, k - 1)

    def _done(self, k: int) -> None:
        """Part k has done its backward: free its parameters, then reduce its gradients."""
        self._release(k)
        for unit in self.parts[k]:
            if self._sync and unit.has_gradients():
                self.reduce(unit)

    def _after_backward(self) -> None:
        """The root, and blocks whose input needs no gradient, are done at the end only."""
        self._in_backward = False
        for k in reversed(range(len(self.parts))):
            self._done(k)

    def _need(self, k: int, ahead: int) -> None:
        """Gather part k, start on the part ahead (0: none), and wait for k."""
        parts = [k, ahead] if self.prefetch and 0 < ahead < len(self.parts) else [k]
        for part in parts:
            for unit in self.parts[part]:
                unit.gather()
        for unit in self.parts[k]:
            unit.wait()

    def _release(self, k: int) -> None:
        for unit in self.parts[k]:
            unit.release()

    def release(self) -> None:
        """Free all whole parameters."""
        for unit in self.units:
            unit.release()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Inside, the model's parameters are whole: to look at, to save. All ranks."""
        for k in range(len(self.parts)):
            self._need(k, 0)
        try:
            yield
        finally:
            self.release()

    def step(self, max_norm: float | None = None) -> torch.Tensor | None:
        """Update the shards, and clear gradients. Forward gathers what is new.

        max_norm: clip gradients to this global norm first. Returns the norm before
        """
        self.release()  # whole parameters would be those of before the step
        return self.update(max_norm)


def trained_tensors(values) -> list[torch.Tensor]:
    """The tensors that need a gradient, in what a module takes or returns."""
    if isinstance(values, torch.Tensor):
        return [values] if values.requires_grad else []
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in trained_tensors(value)]
    return []
