"""One model cut over ranks, trained by any schedule: by our executor and by torch's.

    serial              every rank trains the whole model: what pipelines must equal
    1F1B, ZB-V, ...     `course.parallel.pipeline`, the schedule from `schedules`
    torch 1F1B, ...     torch.distributed.pipelining, its own class of that name

The GPT is that of the other labs, its blocks dealt out evenly. Output and embedding share
a matrix, which the first and the last stage both have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.nn.functional import cross_entropy

from course.facts_models import Model
from course.parallel.gpt import GptBlock, SmallGpt, token_batches
from course.parallel.messages import exchange
from course.parallel.pipeline import Pipeline
from course.parallel.pipeline_messages import message_of
from course.parallel.schedules import SCHEDULES, Schedule, build, chunks_of
from course.parallel.torch_schedules import CLASSES, LOOPS, torch_schedule

TORCH = "torch "  # how names of torch's begin
WAYS = ("serial", *SCHEDULES, *(TORCH + name for name in CLASSES))

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # inputs, targets -> loss


class GptStage(nn.Module):
    """Some blocks of a SmallGpt. The first stage also embeds, the last one has the head."""

    def __init__(self, model: SmallGpt, blocks: list[GptBlock], first: bool, last: bool):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.tokens, self.places = (model.tokens, model.places) if first else (None, None)
        self.norm, self.head = (model.norm, model.head) if last else (None, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # tokens [b, s], or [b, s, h]
        if self.tokens is not None:
            x = self.tokens(x) + self.places[: x.shape[1]]  # [b, s, h]
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))  # [b, s, v]


def cut_gpt(model: SmallGpt, stages: int) -> list[GptStage]:
    """The model in stages, whose blocks differ by one at most; earlier ones have more.

    Raises ValueError where there are more stages than blocks.
    """
    blocks = list(model.blocks)
    if not 1 <= stages <= len(blocks):
        raise ValueError(f"stages must be 1 to {len(blocks)}, the blocks, not {stages}")
    each, more = divmod(len(blocks), stages)
    cuts = [s * each + min(s, more) for s in range(stages + 1)]
    return [
        GptStage(model, blocks[cuts[s] : cuts[s + 1]], s == 0, s == stages - 1)
        for s in range(stages)
    ]


def schedule_of(way: str, ranks: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """What a way does. chunks counts only where the schedule has a choice.

    Raises ValueError for a way that has no schedule, and for what it cannot do.
    """
    name = way.removeprefix(TORCH)
    if way not in WAYS or name == "serial":
        raise ValueError(f"way must be one of {list(WAYS[1:])}, not {way!r}")
    if way == name:
        return build(name, ranks, micro_batches, chunks)
    return torch_schedule(name, ranks, micro_batches, chunks_of(name, chunks))


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits [b, s, v] and tokens [b, s]."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


# --- A step, by whom one likes -----------------------------------------------------------


def step_of(
    way: str,
    stages: Mapping[int, nn.Module],
    schedule: Schedule,
    loss: Callable,
    *,
    like: torch.Tensor,
    tied: nn.Parameter | None = None,
) -> Step:
    """What does a step's forwards and backwards on this rank, and gives all the loss.

    stages, loss, like, tied: as for `Pipeline`
    """
    if way.startswith(TORCH):
        plan = _torchs(way.removeprefix(TORCH), stages, schedule, loss)
        return lambda inputs, targets: _torch_step(
            plan, stages, schedule, inputs, targets, tied
        )
    pipeline = Pipeline(stages, schedule, loss, like=like, tied=tied)
    return lambda inputs, targets: pipeline.step(inputs, targets, share_loss=True)


def _torchs(name: str, stages: Mapping[int, nn.Module], schedule: Schedule, loss):
    """torch's schedule over this rank's stages, with the loss divided by m here.

    torch would divide gradients, those of each stage when the stage is done: what two
    stages of a rank share would be divided twice.
    """
    m = schedule.micro_batches
    part = lambda output, targets: loss(output, targets) / m
    device = torch.get_default_device()
    parts = [
        pipelining.PipelineStage(module, s, schedule.stages, device)
        for s, module in stages.items()
    ]
    kind = getattr(pipelining.schedules, CLASSES[name])
    given = parts[0] if name in LOOPS else parts
    return kind(given, m, loss_fn=part, scale_grads=False)


def _torch_step(plan, stages, schedule: Schedule, inputs, targets, tied) -> torch.Tensor:
    last = schedule.stages - 1
    losses: list[torch.Tensor] = []
    mine = (inputs,) if 0 in stages else ()
    plan.step(*mine, **({"target": targets, "losses": losses} if last in stages else {}))
    add_up_tied(tied, schedule)
    loss = torch.stack(losses).sum().detach() if losses else torch.zeros(())
    dist.broadcast(loss, schedule.owner[last])
    return loss


def add_up_tied(tied: nn.Parameter | None, schedule: Schedule) -> None:
    """What torch's pipelines leave to you: first and last rank add up their gradients."""
    first, last = schedule.owner[0], schedule.owner[-1]
    if tied is None or first == last:
        return
    other = torch.empty_like(tied)
    peer = last if dist.get_rank() == first else first
    exchange(tied.grad, peer, other, peer)
    tied.grad += other


# --- The GPT -----------------------------------------------------------------------------


def begin_pipeline(
    way: str, shape: Model, batch: int, micro_batches: int, chunks: int = 2
) -> Callable[[], torch.Tensor]:
    """Build this rank's part of the GPT; what is returned does a step, and gives its loss.

    batch: sequences of a step, all micro-batches together
    Raises ValueError for an unknown way, and for what its schedule cannot do.
    """
    torch.manual_seed(0)
    model = SmallGpt(shape)
    if way == "serial":
        return _training(model, _serial(model), shape, batch)
    schedule = schedule_of(way, dist.get_world_size(), micro_batches, chunks)
    me, last = dist.get_rank(), schedule.stages - 1
    parts = enumerate(cut_gpt(model, schedule.stages))
    mine = {s: stage for s, stage in parts if schedule.owner[s] == me}
    tied = model.head.weight if {0, last} & set(mine) else None
    like = torch.empty(batch // micro_batches, shape.sequence, shape.hidden)
    work = step_of(way, mine, schedule, token_loss, like=like, tied=tied)
    return _training(nn.ModuleList(mine.values()), work, shape, batch)


def _serial(model: SmallGpt) -> Step:
    def work(inputs, targets):
        loss = token_loss(model(inputs), targets)
        loss.backward()
        return loss.detach()

    return work


def _training(mine: nn.Module, work: Step, shape: Model, batch: int):
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-3)
    batches = token_batches(shape, batch)

    def step() -> torch.Tensor:
        tokens = next(batches)
        loss = work(tokens[:, :-1], tokens[:, 1:])
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def train_pipeline(
    way: str, shape: Model, batch: int, micro_batches: int, steps: int
) -> list[float]:
    """The loss of each step, which every rank has."""
    step = begin_pipeline(way, shape, batch, micro_batches)
    return [step().item() for _ in range(steps)]


def bytes_sent(schedule: Schedule, rank: int, shape: Model, batch: int) -> int:
    """What a rank sends in a step, float32: activations, gradients, and the tied matrix.

    Each message has b s h elements, b being the rows of a micro-batch. Not counted: the
    loss, and the shapes that torch's first step exchanges.
    """
    rows = batch // schedule.micro_batches
    messages = sum(message_of(a, schedule.owner) is not None for a in schedule.orders[rank])
    ends = {schedule.owner[0], schedule.owner[-1]}
    tied = shape.vocab * shape.hidden if rank in ends and len(ends) == 2 else 0
    return 4 * (messages * rows * shape.sequence * shape.hidden + tied)
