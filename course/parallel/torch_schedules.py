"""The schedules of torch.distributed.pipelining, as ours: to check, draw and compare.

torch needs no processes to say in which order it works, only stages that know their
place. Its many-chunk classes write the order down (`pipeline_order`). ScheduleGPipe and
Schedule1F1B are loops: they run here over a stage that notes what it is told to do.

Equal to ours, action for action: GPipe, 1F1B, and where p divides m interleaved 1F1B and
interleaved zero bubble; ZB-V. Different: LoopedBFS goes through the micro-batches of the
way back from the last to the first, ours from the first to the last, which takes as long.
And torch accepts an m for its interleaved schedules that p does not divide, in rounds of
m // (m // p) micro-batches; ours, as Megatron-LM, does not.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.distributed.pipelining import schedules as torch_schedules

from course.costs.pipeline import check_counts
from course.parallel.schedules import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)

# our names, and the classes of torch
CLASSES = {
    "GPipe": "ScheduleGPipe",
    "1F1B": "Schedule1F1B",
    "Interleaved 1F1B": "ScheduleInterleaved1F1B",
    "Looped BFS": "ScheduleLoopedBFS",
    "Interleaved ZB": "ScheduleInterleavedZeroBubble",
    "ZB-V": "ScheduleZBVZeroBubble",
}
LOOPS = ("GPipe", "1F1B")  # one stage on each rank
KINDS = {
    "FORWARD": FORWARD,
    "FULL_BACKWARD": BACKWARD,
    "BACKWARD_INPUT": INPUT_GRADIENT,
    "BACKWARD_WEIGHT": WEIGHT_GRADIENT,
}


def torch_schedule(name: str, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """What torch does under our name for it.

    chunks: 1 for GPipe and 1F1B, 2 for ZB-V, 2 or more for the others. Raises ValueError,
    ours or torch's, where torch has no such schedule.
    """
    if name not in CLASSES:
        raise ValueError(f"name must be one of {', '.join(CLASSES)}, not {name}")
    check_counts(ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    if name in LOOPS and chunks != 1:
        raise ValueError(f"chunks must be 1 for {name}, not {chunks}")
    kind = getattr(torch_schedules, CLASSES[name])
    if name in LOOPS:
        orders = [_observed(kind, rank, ranks, micro_batches) for rank in range(ranks)]
    else:
        orders = _written(kind, ranks, micro_batches, chunks)
    owner = {action.stage: rank for rank, order in enumerate(orders) for action in order}
    owner = tuple(owner[stage] for stage in sorted(owner))
    return Schedule(f"torch {name}", micro_batches, owner, tuple(orders))


def _stage(stage: int, stages: int, rank: int, ranks: int) -> SimpleNamespace:
    """As much of torch's PipelineStage as a schedule asks before it runs."""
    return SimpleNamespace(
        stage_index=stage,
        num_stages=stages,
        group_rank=rank,
        group_size=ranks,
        is_first=stage == 0,
        is_last=stage == stages - 1,
        has_backward=True,
        submod=torch.nn.Identity(),
    )


def _written(kind, ranks: int, micro_batches: int, chunks: int) -> list[tuple[Action, ...]]:
    """The orders of all ranks: every rank of torch works all of them out."""
    stages = [_stage(s * ranks, ranks * chunks, 0, ranks) for s in range(chunks)]
    schedule = kind(stages, micro_batches, loss_fn=_loss)
    return [_ours(schedule.pipeline_order[rank]) for rank in range(ranks)]


def _ours(actions) -> tuple[Action, ...]:
    return tuple(
        Action(
            KINDS[action.computation_type.name], action.stage_index, action.microbatch_index
        )
        for action in actions
        if action is not None and action.computation_type.name in KINDS
    )


def _observed(kind, rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    """The order of one rank: the loop runs, on a stage that computes and sends nothing."""
    seen = []
    stage = _stage(rank, ranks, rank, ranks)
    for name in (
        "get_fwd_recv_ops",
        "get_fwd_send_ops",
        "get_bwd_recv_ops",
        "get_bwd_send_ops",
    ):
        setattr(stage, name, lambda micro_batch: [])
    stage.forward_one_chunk = lambda i, *_, **__: seen.append(Action(FORWARD, rank, i))
    stage.backward_one_chunk = lambda i, **_: seen.append(Action(BACKWARD, rank, i))
    stage.perform_reduce_grad = lambda scale: None
    schedule = kind(stage, micro_batches, loss_fn=_loss)
    schedule._initialize_stage = lambda *_: None  # it would ask the neighbours for shapes
    targets = [torch.zeros(())] * micro_batches
    schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches, targets)
    return tuple(seen)


def _loss(output, target) -> torch.Tensor:
    return torch.zeros(())


def differences(one: Schedule, other: Schedule) -> list[str]:
    """Where two schedules part, a sentence for each rank; none where they are the same."""
    if one.owner != other.owner or one.micro_batches != other.micro_batches:
        return [f"{one.name} and {other.name} have other stages or micro-batches."]
    found = []
    for rank, orders in enumerate(zip(one.orders, other.orders, strict=True)):
        length = max(map(len, orders))
        padded = [
            [*map(str, order), *["nothing"] * (length - len(order))] for order in orders
        ]
        apart = (
            at for at, pair in enumerate(zip(*padded, strict=True)) if len(set(pair)) > 1
        )
        at = next(apart, None)
        if at is not None:
            a, b = (order[at] for order in padded)
            found.append(f"Rank {rank}, action {at}: {one.name} {a}, {other.name} {b}.")
    return found
