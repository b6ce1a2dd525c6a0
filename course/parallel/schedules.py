"""Pipeline schedules as data: for each rank, in which order it works.

p ranks, m micro-batches, v chunks of the model on each rank, so p * v stages. Nothing
here runs: `parallel.pipeline` executes a schedule, `parallel.schedule_time` lays it out
in time, `parallel.schedule_check` finds what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards.

    Huang et al. 2019, arXiv 1811.06965, section 2.3.
    """
    order = [
        [Action(FORWARD, r, i) for i in range(micro_batches)]
        + [Action(BACKWARD, r, i) for i in range(micro_batches)]
        for r in range(ranks)
    ]
    return Schedule("GPipe", micro_batches, tuple(range(ranks)), tuple(map(tuple, order)))


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """1F1B: as few forwards as fill the pipeline, then a backward after each forward.

    Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1.
    """
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
