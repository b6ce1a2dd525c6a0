"""ZeRO and FSDP: what each stage shards, what it sends, how finely it gathers. No torch.

    P  parameters      N  data-parallel ranks      m  micro-batches of a step

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models" (arXiv 1910.02054). Stage 1, 2, 3: P_os, P_os+g, P_os+g+p there. FSDP is stage 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course.costs.collectives import cost
from course.costs.recipes import BF16_ADAM, Recipe, state_bytes
from course.facts import Link

STAGES = (0, 1, 2, 3)
OPTIMIZER = ("master weights", "optimizer moments")
# the stage from which on a component is divided by the ranks
SHARDED_FROM = dict.fromkeys(OPTIMIZER, 1) | {"gradients": 2, "weights": 3}


def _check_stage(stage: int) -> None:
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {STAGES}, not {stage}")


def _check_ranks(ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"ranks must be 1 or more, not {ranks}")


# --- Memory ------------------------------------------------------------------------------


def staged(states: dict[str, float], stage: int, ranks: int) -> dict[str, float]:
    """Model states of one rank by component, from those of the whole model.

    Stage 1 divides what only the optimizer reads, 2 the gradients too, 3 the weights too:
    ZeRO paper section 5. Only stage 3 divides everything.
    """
    _check_stage(stage)
    _check_ranks(ranks)
    return {
        name: nbytes / (ranks if stage >= SHARDED_FROM[name] else 1)
        for name, nbytes in states.items()
    }


def state_bytes_per_rank(recipe: Recipe, parameters: int, ranks: int, stage: int) -> float:
    """Bytes of model states on one rank: 16P, 4P + 12P/N, 2P + 14P/N, 16P/N for 2+2+12."""
    return sum(staged(state_bytes(recipe, parameters), stage, ranks).values())


def shard_numel(numel: int, ranks: int) -> int:
    """Elements of one rank's shard, padding included: all shards are equally large.

    FSDP2 cuts each parameter along its first dimension, so there numel counts its rows.
    """
    _check_ranks(ranks)
    return -(-numel // ranks)


def hpz_bytes(recipe: Recipe, parameters: int, gpus_per_node: int) -> float:
    """Bytes of hpZ's second copy of the weights, sharded over the GPUs of a node.

    ZeRO++ (Wang et al. 2023, arXiv 2306.10209, section 3.2). It comes on top of stage 3's
    shards, so hpZ does not keep the whole of ZeRO-3's saving.
    """
    _check_ranks(gpus_per_node)
    return parameters * recipe.weights / gpus_per_node


# --- Communication -----------------------------------------------------------------------


@dataclass(frozen=True)
class Transfer:
    """One collective of a step, over a model's parameters.

    name:     what it is for, "gather for forward"
    ranks:    of its group
    elements: M of one call in elements, as costs/collectives.py counts it
    times:    calls a step
    itemsize: bytes of an element
    inside:   True where the group is one node
    """

    name: str
    collective: str
    ranks: int
    elements: float
    times: int
    itemsize: float
    inside: bool = False

    @property
    def volume(self) -> float:
        """Elements that a rank sends a step, as papers count: (N - 1) / N taken as 1."""
        weight = 2 if self.collective == "all_reduce" else 1
        return weight * self.times * self.elements if self.ranks > 1 else 0.0

    @property
    def bytes_sent(self) -> float:
        """Bytes that a rank sends a step, with a ring: exact."""
        nbytes = self.elements * self.itemsize
        return self.times * cost(self.collective, "ring", self.ranks, nbytes).bytes_sent


# how long gathered weights stay: FSDP2's reshard_after_forward=True, then False, then
# set_reshard_after_backward(False) for all but the last micro-batch
KEEPS = ("layer", "pass", "step")
REDUCES = ("last", "each")


def step_transfers(
    stage: int,
    parameters: float,
    ranks: int,
    *,
    recipe: Recipe,
    micro_batches: int = 1,
    keep: str = "layer",
    reduce: str = "last",
    replicas: int = 1,
    hpz_ranks: int = 1,
) -> list[Transfer]:
    """The collectives of one optimizer step.

    ranks:     that share one set of shards; with replicas > 1, of one replica
    keep:      stage 3, how long gathered weights stay: "layer" (freed after each use),
               "pass" (from forward to backward), "step" (all micro-batches)
    reduce:    "last": gradients are added up whole and reduced once a step; "each":
               after every micro-batch, which stage 2 and 3 need to hold shards only
    replicas:  HSDP, FSDP2 on a two-axis mesh: shards inside a group, all-reduce of the
               shards between groups
    hpz_ranks: ZeRO++ hpZ: GPUs of a node that share a second copy for backward

    In elements: 2P, 2P, 2P, 3P for the stages (ZeRO paper section 7); with m micro-batches
    stage 3 sends 2Pm + P, with keep="step" 2P.
    """
    _check(stage, ranks, micro_batches, keep, reduce, replicas, hpz_ranks)
    gather = _gathers(parameters, ranks, recipe)
    reductions = micro_batches if reduce == "each" else 1
    reduced = _reductions(stage, parameters, ranks, recipe.gradients, reductions, replicas)
    if stage == 0:
        return reduced
    if stage < 3:
        return [*reduced, gather("gather of new weights", ranks, 1)]
    forwards = 1 if keep == "step" else micro_batches
    parts = [gather("gather for forward", ranks, forwards)]
    if keep == "layer":
        near = hpz_ranks if hpz_ranks > 1 else ranks
        parts.append(gather("gather for backward", near, micro_batches))
    return parts + reduced


def _gathers(parameters: float, ranks: int, recipe: Recipe):
    """(name, ranks of the group, times) -> the gather of all weights."""
    wide = recipe.gathered_weights or recipe.weights
    return lambda name, n, times: Transfer(
        name, "all_gather", n, parameters, times, wide, inside=n < ranks
    )


def _reductions(stage, parameters, ranks, itemsize, times, replicas) -> list[Transfer]:
    """Gradients: all-reduced in plain data parallel, else scattered, then to replicas."""
    part = lambda name, collective, n, elements: Transfer(
        name, collective, n, elements, times, itemsize
    )
    if stage == 0:
        return [part("all-reduce of gradients", "all_reduce", ranks, parameters)]
    parts = [part("reduce-scatter of gradients", "reduce_scatter", ranks, parameters)]
    if replicas > 1:
        shard = parameters / ranks
        parts.append(part("all-reduce between replicas", "all_reduce", replicas, shard))
    return parts


def _check(stage, ranks, micro_batches, keep, reduce, replicas, hpz_ranks) -> None:
    _check_stage(stage)
    _check_ranks(ranks)
    if micro_batches < 1:
        raise ValueError(f"micro_batches must be 1 or more, not {micro_batches}")
    if keep not in KEEPS:
        raise ValueError(f"keep must be one of {KEEPS}, not {keep!r}")
    if reduce not in REDUCES:
        raise ValueError(f"reduce must be one of {REDUCES}, not {reduce!r}")
    if replicas < 1 or (replicas > 1 and stage == 0):
        raise ValueError(f"replicas must be 1 or more, 1 for stage 0, not {replicas}")
    if hpz_ranks < 1 or ranks % hpz_ranks:
        raise ValueError(f"hpz_ranks must divide ranks ({ranks}), not {hpz_ranks}")


def step_volume(stage: int, ranks: int, **options) -> float:
    """Elements that a rank sends a step, in units of P, (N - 1) / N taken as 1."""
    transfers = step_transfers(stage, 1.0, ranks, recipe=BF16_ADAM, **options)
    return sum(t.volume for t in transfers)


def step_bytes(transfers: Sequence[Transfer]) -> float:
    """Bytes that a rank sends a step."""
    return sum(t.bytes_sent for t in transfers)


# --- Granularity -------------------------------------------------------------------------


@dataclass(frozen=True)
class Granularity:
    """What wrapping a model in so many units means.

    units:      parameters of each, in running order
    peak_bytes: most gathered weights that a rank holds at once
    gathers:    all-gathers of one forward and backward
    """

    units: tuple[float, ...]
    peak_bytes: float
    gathers: int


def grouped(layers: Sequence[float], per_unit: int) -> tuple[float, ...]:
    """Neighbouring units joined, so many to one; the last may be smaller."""
    if per_unit < 1:
        raise ValueError(f"per_unit must be 1 or more, not {per_unit}")
    return tuple(sum(layers[i : i + per_unit]) for i in range(0, len(layers), per_unit))


def granularity(
    units: Sequence[float], itemsize: float, *, prefetch: int = 1, root: float = 0
) -> Granularity:
    """Peak of gathered weights, and gathers of a step, for units gathered one by one.

    units:    parameters of each `fully_shard` group but the root, in running order
    prefetch: units gathered ahead of the one at work: 1 is FSDP2's default in backward
    root:     parameters of the root group. FSDP2 keeps it after forward (its default for
              reshard_after_forward), so it is gathered once and is always there

    A unit is gathered for forward and again for backward; the last one, too.
    """
    if not units:
        raise ValueError("units must name one unit or more")
    if prefetch < 0:
        raise ValueError(f"prefetch must be 0 or more, not {prefetch}")
    windows = (sum(units[i : i + prefetch + 1]) for i in range(len(units)))
    gathers = 2 * len(units) + (1 if root else 0)
    return Granularity(tuple(units), (root + max(windows)) * itemsize, gathers)


def gather_seconds(
    units: Sequence[float], itemsize: float, ranks: int, link: Link
) -> float:
    """Seconds of one pass's all-gathers, one after another, with a ring."""
    gathers = (cost("all_gather", "ring", ranks, u * itemsize) for u in units)
    return sum(gather.seconds(link) for gather in gathers)
