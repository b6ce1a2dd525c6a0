"""Pipeline parallelism: the bubble, what is held, what crosses the wire. No torch.

    p  ranks     m  micro-batches of a step     v  chunks of the model on each rank
    tf forward, ti input gradient, tw weight gradient, tb = ti + tw: seconds of one
    micro-batch in all chunks of one rank     c  seconds of a message between two ranks

Narayanan et al. 2021, arXiv 2104.04473, section 2.2. Zero bubble: Qi et al. 2023, arXiv
2401.10241. What has no source stated is derived, and held to schedules laid out in time
by the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

# --- The two ratios ----------------------------------------------------------------------


def bubble_of_total(ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """(p-1) / (vm + p-1): idle time / all time of GPipe, 1F1B, and 1F1B interleaved."""
    check_counts(ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    return (ranks - 1) / (chunks * micro_batches + ranks - 1)


def bubble_of_ideal(ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """(p-1) / (vm): idle time / time of work. Narayanan 2021, sections 2.2.1, 2.2.2."""
    check_counts(ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    return (ranks - 1) / (chunks * micro_batches)


def total_from_ideal(of_ideal: float) -> float:
    """The bubble as a share of all time, from its ratio to the time of work."""
    return of_ideal / (1 + of_ideal)


def ideal_from_total(of_total: float) -> float:
    """The bubble's ratio to the time of work, from its share of all time."""
    if not 0 <= of_total < 1:
        raise ValueError(f"of_total must be from 0 to below 1, not {of_total}")
    return of_total / (1 - of_total)


# --- How many micro-batches --------------------------------------------------------------


def micro_batches(global_batch: int, data_parallel: int, micro_batch: int) -> int:
    """m = B / (dp b): all that a global batch of B sequences leaves to fill a pipeline."""
    check_counts(
        global_batch=global_batch, data_parallel=data_parallel, micro_batch=micro_batch
    )
    each = data_parallel * micro_batch
    if global_batch % each:
        raise ValueError(
            f"data_parallel x micro_batch ({each}) must divide global_batch, "
            f"not {global_batch}"
        )
    return global_batch // each


def least_micro_batches(ranks: int, of_total: float, chunks: int = 1) -> int:
    """The smallest m whose bubble is at most of_total: (p-1)(1-x) / (vx), rounded up."""
    check_counts(ranks=ranks, chunks=chunks)
    if not 0 < of_total < 1:
        raise ValueError(f"of_total must be between 0 and 1, not {of_total}")
    exact = (ranks - 1) * (1 - of_total) / (chunks * of_total)
    return max(1, math.ceil(exact * (1 - 1e-12)))


# --- Time of a step ----------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A training step of a pipeline. Seconds are of all chunks of one rank together."""

    ranks: int
    micro_batches: int
    chunks: int = 1
    forward_s: float = 1.0
    input_gradient_s: float = 1.0
    weight_gradient_s: float = 1.0
    message_s: float = 0.0

    def __post_init__(self):
        check_counts(ranks=self.ranks, micro_batches=self.micro_batches, chunks=self.chunks)

    @property
    def work_s(self) -> float:
        """Of one micro-batch on one rank: tf + tb."""
        return self.forward_s + self.input_gradient_s + self.weight_gradient_s

    @property
    def ideal_s(self) -> float:
        """m (tf + tb): no rank ever idles."""
        return self.micro_batches * self.work_s


def bubble_s(schedule: str, step: Step) -> float:
    """Seconds that a step takes longer than its work, until the last rank is done.

    schedule is a name of BUBBLES. Raises ValueError where the formula does not hold for
    the step: then only laying the schedule out in time tells.
    """
    if schedule not in BUBBLES:
        raise ValueError(f"schedule must be one of {', '.join(BUBBLES)}, not {schedule!r}")
    return BUBBLES[schedule](step)


def step_s(schedule: str, step: Step) -> float:
    """Seconds of a step: work and bubble."""
    return step.ideal_s + bubble_s(schedule, step)


def span_bubble_s(schedule: str, step: Step) -> float:
    """The same for the rank that takes longest, each counted from its own first action.

    What counts where ranks need not wait for each other between steps. ZB-H2:
    (p-1)(tf + ti + 2c - 2tw), Qi et al. 2023 Table 2 with c added. ZB-V: 0 where all
    three times are equal. The others: bubble_s.
    """
    if schedule == "ZB-V":
        _rules_of_zb_v(step)
        return 0.0
    if schedule != "ZB-H2":
        return bubble_s(schedule, step)
    _rules_of_zb_h2(step)
    _rule(step.message_s <= step.weight_gradient_s, "message_s <= weight_gradient_s")
    gained = 2 * step.weight_gradient_s
    path = step.forward_s + step.input_gradient_s + 2 * step.message_s
    return (step.ranks - 1) * (path - gained)


def _naive(step: Step) -> float:
    """(p-1) m (tf + tb + 2c)."""
    return (step.ranks - 1) * step.micro_batches * (step.work_s + 2 * step.message_s)


def _gpipe(step: Step) -> float:
    """(p-1)(tf + tb + 2c)."""
    return (step.ranks - 1) * (step.work_s + 2 * step.message_s)


def _one_f_one_b(step: Step) -> float:
    """GPipe's, and 2c more for p - 1 of every p micro-batches.

    A rank holds p micro-batches at most, and each comes back after p (tf + tb) + 2(p-1)c:
    so p of them take that long also when the pipeline is full.
    """
    others = step.micro_batches - 1
    stalls = others - math.ceil(others / step.ranks)
    return _gpipe(step) + 2 * step.message_s * stalls


def _interleaved(step: Step) -> float:
    """(p-1)(tf + tb) / v + 2(pv - 1)c."""
    backward_s = step.input_gradient_s + step.weight_gradient_s
    shortest_s = min(step.forward_s, backward_s) / step.chunks
    _rule(step.micro_batches % step.ranks == 0, "micro_batches a multiple of ranks")
    _rule(
        not step.message_s or (step.chunks > 1 and step.message_s <= shortest_s),
        "message_s at most one chunk's forward or backward, and 2 chunks or more",
    )
    hops = step.ranks * step.chunks - 1 if step.ranks > 1 else 0
    return (step.ranks - 1) * step.work_s / step.chunks + 2 * hops * step.message_s


def _looped_bfs(step: Step) -> float:
    """(p-1)(tf + tb) / v. With m < p, each turn but the last waits for p - m stages."""
    _rule(not step.message_s, "message_s = 0")
    waits = (step.chunks - 1) * max(0, step.ranks - step.micro_batches)
    return (step.ranks - 1 + waits) * step.work_s / step.chunks


def _zb_h1(step: Step) -> float:
    """(p-1)(tf + ti + 4c - tw). With m < p, tw is gained m - 1 times only.

    Qi et al. 2023 Table 2 for c = 0, m >= p.
    """
    _rules_of_split(step)
    far = step.micro_batches >= 2 * step.ranks
    small = 2 * step.message_s <= step.weight_gradient_s
    _rule(
        not step.message_s or (far and small), "2 message_s <= weight_gradient_s, m >= 2p"
    )
    path = step.forward_s + step.input_gradient_s + 4 * step.message_s
    gains = min(step.ranks, step.micro_batches) - 1
    return (step.ranks - 1) * path - gains * step.weight_gradient_s


def _zb_h2(step: Step) -> float:
    """(p-1) max(tf, tf + ti - 2tw): the last rank starts (p-1) tf after the first."""
    _rules_of_zb_h2(step)
    _rule(not step.message_s, "message_s = 0")
    gained = step.input_gradient_s - 2 * step.weight_gradient_s
    return (step.ranks - 1) * (step.forward_s + max(0, gained))


def _interleaved_zb(step: Step) -> float:
    """(p-1)(tf + ti - tw) / v."""
    _rules_of_split(step)
    _rule(step.micro_batches % step.ranks == 0, "micro_batches a multiple of ranks")
    _rule(not step.message_s, "message_s = 0")
    path = step.forward_s + step.input_gradient_s - step.weight_gradient_s
    return (step.ranks - 1) * path / step.chunks


def _zb_v(step: Step) -> float:
    """(p-1) tf / 2: the last rank starts so much later, and no rank idles after that."""
    _rules_of_zb_v(step)
    return (step.ranks - 1) * step.forward_s / 2


def _rules_of_split(step: Step) -> None:
    shortest_s = min(step.forward_s, step.input_gradient_s)
    _rule(
        step.weight_gradient_s <= shortest_s,
        "weight_gradient_s at most forward_s and at most input_gradient_s",
    )


def _rules_of_zb_h2(step: Step) -> None:
    _rules_of_split(step)
    _rule(step.micro_batches >= 2 * step.ranks - 1, "micro_batches at least 2 ranks - 1")


def _rules_of_zb_v(step: Step) -> None:
    equal = step.forward_s == step.input_gradient_s == step.weight_gradient_s
    _rule(equal, "forward_s = input_gradient_s = weight_gradient_s")
    _rule(step.micro_batches >= 2 * step.ranks - 1, "micro_batches at least 2 ranks - 1")
    _rule(not step.message_s, "message_s = 0")


def _rule(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"this bubble has a formula only for {rule}")


BUBBLES: dict[str, Callable[[Step], float]] = {
    "Naive": _naive,
    "GPipe": _gpipe,
    "1F1B": _one_f_one_b,
    "Interleaved 1F1B": _interleaved,
    "Looped BFS": _looped_bfs,
    "ZB-H1": _zb_h1,
    "ZB-H2": _zb_h2,
    "Interleaved ZB": _interleaved_zb,
    "ZB-V": _zb_v,
}


def check_counts(**counts: int) -> None:
    """Raises ValueError for the first that is below 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be 1 or more, not {count}")
