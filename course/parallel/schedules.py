"""Pipeline schedules as data: for each rank, in which order it works.

p ranks, m micro-batches, v chunks of the model on each rank, so p * v stages. Nothing
here runs: `parallel.pipeline` executes a schedule, `parallel.schedule_time` lays it out
in time, `parallel.schedule_check` finds what is wrong with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from course.costs.pipeline import check_counts

FORWARD, BACKWARD = "F", "B"
INPUT_GRADIENT, WEIGHT_GRADIENT = "I", "W"  # the two halves of a backward, split


class Action(NamedTuple):
    """One piece of work: what, in which stage of the model, on which micro-batch."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}@{self.stage}"


@dataclass(frozen=True)
class Schedule:
    """What each rank does, in order.

    orders: one tuple of compute actions for each rank
    owner:  for each stage, the rank that holds it
    """

    name: str
    micro_batches: int
    owner: tuple[int, ...]
    orders: tuple[tuple[Action, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.orders)

    @property
    def stages(self) -> int:
        return len(self.owner)

    @property
    def chunks(self) -> int:
        """Stages on each rank."""
        return self.stages // self.ranks


def check_sizes(ranks: int, micro_batches: int, chunks: int = 1, groups=False) -> None:
    """Raises ValueError for a count below 1, and in groups where p does not divide m."""
    check_counts(ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    if groups and micro_batches % ranks:
        raise ValueError(
            f"micro_batches must be a multiple of ranks, not {micro_batches} of {ranks}"
        )


# --- One stage on each rank --------------------------------------------------------------


def naive(ranks: int, micro_batches: int) -> Schedule:
    """One micro-batch at a time through the whole model, there and back: no pipelining."""
    check_sizes(ranks, micro_batches)
    orders = [
        [Action(kind, r, i) for i in range(micro_batches) for kind in (FORWARD, BACKWARD)]
        for r in range(ranks)
    ]
    return Schedule("Naive", micro_batches, tuple(range(ranks)), tuple(map(tuple, orders)))


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards.

    Huang et al. 2019, arXiv 1811.06965, section 2.3.
    """
    check_sizes(ranks, micro_batches)
    orders = [
        [Action(kind, r, i) for kind in (FORWARD, BACKWARD) for i in range(micro_batches)]
        for r in range(ranks)
    ]
    return Schedule("GPipe", micro_batches, tuple(range(ranks)), tuple(map(tuple, orders)))


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """1F1B: as few forwards as fill the pipeline, then a backward after each forward.

    Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1.
    """
    check_sizes(ranks, micro_batches)
    orders = []
    for r in range(ranks):
        ahead = min(ranks - r - 1, micro_batches)
        order = [Action(FORWARD, r, i) for i in range(ahead)]
        for i in range(micro_batches):
            if ahead + i < micro_batches:
                order.append(Action(FORWARD, r, ahead + i))
            order.append(Action(BACKWARD, r, i))
        orders.append(tuple(order))
    return Schedule("1F1B", micro_batches, tuple(range(ranks)), tuple(orders))


# --- Several chunks on each rank: stage s is on rank s % ranks --------------------------


def looped_bfs(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """Breadth first: all micro-batches through a chunk before the next chunk begins.

    Lamy-Poirier 2023, arXiv 2211.05953. With one chunk it is GPipe.
    """
    check_sizes(ranks, micro_batches, chunks)
    orders = []
    for r in range(ranks):
        stages = range(r, ranks * chunks, ranks)
        there = [Action(FORWARD, s, i) for s in stages for i in range(micro_batches)]
        back = [Action(BACKWARD, s, i) for s in stages[::-1] for i in range(micro_batches)]
        orders.append(tuple(there + back))
    return Schedule("Looped BFS", micro_batches, _looped(ranks, chunks), tuple(orders))


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B: micro-batches in groups of p, each group through chunk after chunk.

    Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2, in the order of Megatron-LM:
    a rank runs 2(p - r - 1) + (v - 1)p forwards ahead. m must be a multiple of p.
    """
    check_sizes(ranks, micro_batches, chunks, groups=True)
    orders = []
    for r in range(ranks):
        there, back = _grouped(r, ranks, micro_batches, chunks, BACKWARD)
        ahead = min(2 * (ranks - r - 1) + (chunks - 1) * ranks, len(there))
        order = there[:ahead]
        for at, action in enumerate(back):
            order += [*there[ahead + at : ahead + at + 1], action]
        orders.append(tuple(order))
    return Schedule(
        "Interleaved 1F1B", micro_batches, _looped(ranks, chunks), tuple(orders)
    )


def _looped(ranks: int, chunks: int) -> tuple[int, ...]:
    return tuple(range(ranks)) * chunks


def _grouped(
    rank: int, ranks: int, micro_batches: int, chunks: int, kind: str
) -> tuple[list[Action], list[Action]]:
    """Forwards of a rank, in groups of p micro-batches, and the backwards in `kind`."""
    stages = range(rank, ranks * chunks, ranks)
    groups = [
        range(i, min(i + ranks, micro_batches)) for i in range(0, micro_batches, ranks)
    ]
    there = [Action(FORWARD, s, i) for group in groups for s in stages for i in group]
    back = [Action(kind, s, i) for group in groups for s in stages[::-1] for i in group]
    return there, back


# --- Backward split into input gradient and weight gradient ------------------------------


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """1F1B with the backward split: weight gradients fill the wait at the end.

    Rank r puts off its weight gradients by r micro-batches, so that each rank holds p.
    Qi et al. 2023, arXiv 2401.10241, section 2.1.
    """
    check_sizes(ranks, micro_batches)
    return _split("ZB-H1", ranks, micro_batches, 1, lambda r: (ranks - 1 - r, r))


def zb_h2(ranks: int, micro_batches: int) -> Schedule:
    """Twice as many forwards ahead: no rank idles between its first and last action.

    Rank r puts off its weight gradients by 2r micro-batches, so that each rank holds
    2p - 1. Qi et al. 2023, arXiv 2401.10241, section 2.2.
    """
    check_sizes(ranks, micro_batches)
    return _split("ZB-H2", ranks, micro_batches, 1, lambda r: (2 * (ranks - 1 - r), 2 * r))


def interleaved_zero_bubble(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """ZB-H1 in interleaved chunks, as torch.distributed.pipelining has it.

    m must be a multiple of p. With one chunk it is ZB-H1.
    """
    check_sizes(ranks, micro_batches, chunks, groups=True)
    counts = lambda r: ((chunks - 1) * ranks + ranks - 1 - r, r)
    return _split("Interleaved ZB", ranks, micro_batches, chunks, counts)


def _split(
    name: str,
    ranks: int,
    micro_batches: int,
    chunks: int,
    counts: Callable[[int], tuple[int, int]],
) -> Schedule:
    """counts: of a rank, forwards ahead, and input gradients ahead of weight gradients."""
    orders = []
    for r in range(ranks):
        ahead, late = counts(r)
        there, back = _grouped(r, ranks, micro_batches, chunks, INPUT_GRADIENT)
        weights = [Action(WEIGHT_GRADIENT, s, i) for _, s, i in back]
        order = there[:ahead]
        for at, action in enumerate(back):
            order += [*there[ahead + at : ahead + at + 1], action]
            if at >= late:
                order.append(weights[at - late])
        orders.append((*order, *weights[max(len(back) - late, 0) :]))
    return Schedule(name, micro_batches, _looped(ranks, chunks), tuple(orders))


def zb_v(ranks: int, micro_batches: int) -> Schedule:
    """Two chunks on each rank, first and last half of a V: stages r and 2p - 1 - r.

    Without a bubble where forward and both gradients take equally long, and no rank holds
    more than 2p chunks. Qi et al. 2024, arXiv 2405.15362 (V-ZB there). Where
    m < 2p - 1 it is the schedule of 2p - 1 micro-batches without those that are missing.
    """
    check_sizes(ranks, micro_batches)
    turn = [*range(ranks), *reversed(range(ranks))]
    orders = [_v_order(r, ranks, micro_batches) for r in range(ranks)]
    return Schedule("ZB-V", micro_batches, tuple(turn), tuple(orders))


def _v_order(rank: int, ranks: int, micro_batches: int) -> tuple[Action, ...]:
    """0 is the half on the way down the V, 1 the half on the way up."""
    left, rounds = ranks - rank, max(micro_batches, 2 * ranks - 1) - ranks
    phases = [
        ("F0", 2 * left - 1),  # until the first micro-batch is back on the way up
        ("F1 F0", rank),
        ("F1 I1 W1", left),
        ("F0 I0 W0 F1 I1 W1", rounds - left + 1),
        ("I0 W0 F1 I1 W1", left - 1),  # no more micro-batches come
        ("I0 I1", rank),
        ("I0 W0", left),
        ("W1", rank),
        ("W0", rank),
    ]
    stages = {"0": rank, "1": 2 * ranks - 1 - rank}
    order, next_one = [], Counter()
    for works, times in phases:
        works = [(work[0], stages[work[1]]) for work in works.split()]
        for kind, stage in works * times:
            order.append(Action(kind, stage, next_one[kind, stage]))
            next_one[kind, stage] += 1
    return tuple(action for action in order if action.micro_batch < micro_batches)


# --- By name -----------------------------------------------------------------------------

Builder = Callable[[int, int, int], Schedule]  # ranks, micro_batches, chunks


def _fixed(builder: Callable[[int, int], Schedule], own: int = 1) -> Builder:
    """A builder that takes a third argument and accepts one value of it."""

    def build(ranks: int, micro_batches: int, chunks: int = own) -> Schedule:
        if chunks != own:
            raise ValueError(f"chunks must be {own} for {builder.__name__}, not {chunks}")
        return builder(ranks, micro_batches)

    build.chunks = own
    return build


SCHEDULES: dict[str, Builder] = {
    "Naive": _fixed(naive),
    "GPipe": _fixed(gpipe),
    "1F1B": _fixed(one_f_one_b),
    "Interleaved 1F1B": interleaved,
    "Looped BFS": looped_bfs,
    "ZB-H1": _fixed(zb_h1),
    "ZB-H2": _fixed(zb_h2),
    "Interleaved ZB": interleaved_zero_bubble,
    "ZB-V": _fixed(zb_v, 2),
}


def chunks_of(name: str, wanted: int) -> int:
    """Stages on each rank in the schedule of that name: wanted, where it has a choice."""
    if name not in SCHEDULES:
        raise ValueError(f"name must be one of {', '.join(SCHEDULES)}, not {name}")
    return getattr(SCHEDULES[name], "chunks", wanted)


def build(name: str, ranks: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule of that name. chunks counts only where the schedule has a choice."""
    chunks = chunks_of(name, chunks)
    return SCHEDULES[name](ranks, micro_batches, chunks)
