"""What all ZeRO stages share: parameters laid end to end, and cut into one shard a rank.

    n   ranks in the group          s   elements of a shard, the same on every rank

Rajbhandari et al. 2020, arXiv 1910.02054, section 5. Costs: `course.costs.zero`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import nn


class Unit:
    """Some parameters as one flat row, of which each rank owns a shard.

    flat   [n * s]  the parameters end to end, then zeros; the parameters are views of it
    shard  [s]      this rank's piece, the only one that its optimizer updates

    parameters: of one dtype, all trained or all frozen
    keep_whole: True (stages 1 and 2): flat stays, and the shard is a view of it.
                False (stage 3): the shard is a copy, and flat is empty until `gather`
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, keep_whole: bool = True, group=None
    ):
        self.parameters, self.group = list(parameters), group
        self.ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        self.shapes = [p.shape for p in self.parameters]
        self.numel = sum(p.numel() for p in self.parameters)
        self.shard_numel = -(-self.numel // self.ranks)  # rounded up
        first = self.parameters[0]
        self.flat = first.detach().new_zeros(self.ranks * self.shard_numel)
        for parameter, view in zip(self.parameters, self.views(self.flat), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        mine = self.flat.narrow(0, rank * self.shard_numel, self.shard_numel)
        self.shard = nn.Parameter(mine if keep_whole else mine.clone(), first.requires_grad)
        self._nothing = first.detach().new_empty(0)
        self._gathering = self._reducing = None  # what is on its way
        self.is_whole = True
        if not keep_whole:
            self.release()

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The pieces of a row [n * s], each in the shape of its parameter."""
        pieces = flat[: self.numel].split([shape.numel() for shape in self.shapes])
        return [piece.view(s) for piece, s in zip(pieces, self.shapes, strict=True)]

    # --- Parameters ----------------------------------------------------------------------

    def gather(self) -> None:
        """Start to collect all shards in flat. Nothing may read it before `wait`."""
        if not self.is_whole:
            self.flat.untyped_storage().resize_(self.flat.nbytes)
            self.is_whole = True
            self.collect()

    def collect(self) -> None:
        """Start the all-gather of the shards, each to its own place in flat."""
        self._gathering = dist.all_gather_into_tensor(
            self.flat, self.shard.detach(), group=self.group, async_op=True
        )

    def wait(self) -> None:
        """Wait for what `gather` started; then the parameters are there to be used."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None
            for parameter, view in zip(self.parameters, self.views(self.flat), strict=True):
                parameter.data = view

    def release(self) -> None:
        """Free the whole parameters; the shard stays.

        The storage is emptied, not replaced: what autograd has saved are views of it, and
        they are right again after the next `gather`. The parameters themselves become
        empty tensors, so that nobody reads freed memory.
        """
        self.wait()
        for parameter in self.parameters:
            parameter.data = self._nothing
        self.flat.untyped_storage().resize_(0)
        self.is_whole = False

    # --- Gradients -----------------------------------------------------------------------

    def has_gradients(self) -> bool:
        return any(p.grad is not None for p in self.parameters)

    def pack(self) -> torch.Tensor:
        """The gradients as one row [n * s]; each is freed once it is copied.

        A parameter that got no gradient has zeros.
        """
        whole = self.shard.detach().new_zeros(self.ranks * self.shard_numel)
        for parameter, view in zip(self.parameters, self.views(whole), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
                parameter.grad = None
        return whole

    def reduce(self) -> None:
        """Start the reduce-scatter: of the whole gradient, our shard's sum comes back."""
        whole = self.pack()
        mine = whole.new_empty(self.shard_numel)
        work = dist.reduce_scatter_tensor(mine, whole, group=self.group, async_op=True)
        self._reducing = work, whole, mine

    def finish_reduce(self) -> None:
        """Wait for what `reduce` started, and add the mean to the shard's gradient."""
        if self._reducing is None:
            return
        work, _, mine = self._reducing
        work.wait()
        self._reducing = None  # the whole gradient is freed here
        mine /= self.ranks
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad.add_(mine)


# --- Which parameters go together --------------------------------------------------------


def buckets(parameters: Sequence[nn.Parameter], nbytes: float) -> list[list[nn.Parameter]]:
    """Neighbours joined until they have so many bytes; the last parameters come first.

    Backward makes gradients in about that order, so the first bucket is soon full.
    """
    found: list[list[nn.Parameter]] = []
    for parameter in reversed(parameters):
        last = found[-1] if found else None
        if not last or last[0].dtype != parameter.dtype or sum_bytes(last) >= nbytes:
            found.append([])
        found[-1].append(parameter)
    return found


def sum_bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


def alike(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters sorted into those of one dtype, trained or frozen."""
    key = lambda p: (str(p.dtype), p.requires_grad)
    return [list(same) for _, same in groupby(sorted(parameters, key=key), key=key)]


def owned(model: nn.Module, blocks: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """The parameters of the root, then those of each block.

    The root has what is in no block, and what more than one block uses (tied weights).

    Raises ValueError for a block that is not in the model, or inside another.
    """
    check_blocks(model, blocks)
    users: dict[nn.Parameter, set[int]] = {p: set() for p in model.parameters()}
    inside = {module for block in blocks for module in block.modules()}
    for number, block in enumerate(blocks, start=1):
        for parameter in block.parameters():
            users[parameter].add(number)
    for module in set(model.modules()) - inside:
        for parameter in module.parameters(recurse=False):
            users[parameter].add(0)
    parts: list[list[nn.Parameter]] = [[] for _ in range(1 + len(blocks))]
    for parameter, numbers in users.items():
        parts[min(numbers) if len(numbers) == 1 else 0].append(parameter)
    return parts


def check_blocks(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    known = set(model.modules())
    for i, block in enumerate(blocks):
        if block not in known:
            raise ValueError(f"blocks[{i}] must be a module of the model, not {block!r}")
        if any(block in set(other.modules()) for other in blocks[:i] + blocks[i + 1 :]):
            raise ValueError(
                f"blocks[{i}] must not be inside another block, or be named twice"
            )


# --- All ranks together ------------------------------------------------------------------


@torch.no_grad()
def copy_from_first(model: nn.Module, group=None) -> None:
    """Give every rank the parameters and buffers of the group's first rank."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), group=group, group_src=0)


@torch.no_grad()
def clip(shards: Sequence[nn.Parameter], max_norm: float, group=None) -> torch.Tensor:
    """Scale gradients so that the norm over all shards of all ranks is max_norm at most.

    Returns the norm before, as torch.nn.utils.clip_grad_norm_ does. A rank's own shards
    give it a part of the sum of squares only, so that sum is all-reduced.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be more than 0, not {max_norm}")
    grads = [shard.grad for shard in shards if shard.grad is not None]
    squares = sum(
        (torch.linalg.vector_norm(g) ** 2 for g in grads), shards[0].new_zeros(())
    )
    dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    for grad in grads:
        grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
