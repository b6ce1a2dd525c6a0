"""One small GPT, trained six ways on the same data: what ZeRO has to be equal to.

    alone         every rank trains the whole model on the whole batch: one process
    DDP           torch's DistributedDataParallel
    ZeRO-1 to 3   by hand, `course.parallel.zero`
    fully_shard   torch's FSDP2, on each block and on the model

The batch is cut into equal parts, one for each rank, in all but the first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from course.facts import MIB
from course.facts_models import Model
from course.parallel.gpt import SmallGpt, next_token_loss, token_batches
from course.parallel.zero import Zero1, Zero2, Zero3
from course.parallel.zero_stack import adamw

BUCKET_BYTES = MIB / 4  # of DDP and of stages 1 and 2: a small model has several, too


def _alone(model: SmallGpt, lr: float):
    return model, adamw(model, lr=lr)


def _ddp(model: SmallGpt, lr: float):
    """Gradients live in the buckets: one copy of them, not two."""
    megabytes = BUCKET_BYTES / MIB
    copies = DistributedDataParallel(
        model, bucket_cap_mb=megabytes, gradient_as_bucket_view=True
    )
    return copies, adamw(copies, lr=lr)


def _zero_1(model: SmallGpt, lr: float):
    return model, Zero1(model, lr=lr, bucket_bytes=BUCKET_BYTES).step


def _zero_2(model: SmallGpt, lr: float):
    return model, Zero2(model, lr=lr, bucket_bytes=BUCKET_BYTES).step


def _zero_3(model: SmallGpt, lr: float):
    return model, Zero3(model, model.blocks, lr=lr).step


def _fully_shard(model: SmallGpt, lr: float):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, adamw(model, lr=lr)


# {name: (model, learning rate) -> (what is called with tokens, what ends a step)}
WAYS = {
    "alone": _alone,
    "DDP": _ddp,
    "ZeRO-1": _zero_1,
    "ZeRO-2": _zero_2,
    "ZeRO-3": _zero_3,
    "fully_shard": _fully_shard,
}
STAGE = {"alone": 0, "DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3, "fully_shard": 3}


def begin_training(
    way: str, shape: Model, batch: int, learning_rate: float = 1e-3
) -> Callable[[], torch.Tensor]:
    """Build the model on this rank; what is returned does a step, and gives its loss.

    batch: sequences of all ranks together. The loss is that of this rank's part
    Raises ValueError for an unknown way, or a batch that the ranks do not divide.
    """
    if way not in WAYS:
        raise ValueError(f"way must be one of {list(WAYS)}, not {way!r}")
    ranks, me = dist.get_world_size(), dist.get_rank()
    if batch % ranks:
        raise ValueError(f"the ranks ({ranks}) must divide batch, not {batch}")
    torch.manual_seed(0)
    model, finish = WAYS[way](SmallGpt(shape), learning_rate)
    batches = token_batches(shape, batch)

    def step() -> torch.Tensor:
        tokens = next(batches)
        mine = tokens if way == "alone" else tokens.chunk(ranks)[me]
        loss = next_token_loss(model, mine)
        loss.backward()
        finish()
        return loss.detach()

    return step


def train_gpt(way: str, shape: Model, batch: int, steps: int) -> list[float]:
    """The loss of each step, the mean over all ranks: what one process would see."""
    step = begin_training(way, shape, batch)
    losses = torch.stack([step() for _ in range(steps)])
    dist.all_reduce(losses)
    return (losses / dist.get_world_size()).tolist()
