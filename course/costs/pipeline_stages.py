"""What the stages of a pipeline hold, send and weigh, and where to cut. No torch.

p ranks, m micro-batches, v chunks on each rank; b sequences of s tokens in a micro-batch,
h hidden size. Narayanan et al. 2021, arXiv 2104.04473; what else is said at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from course.costs.pipeline import check_counts
from course.facts_models import Model

# --- Held --------------------------------------------------------------------------------


def in_flight(
    schedule: str, ranks: int, micro_batches: int, rank: int, chunks: int = 1
) -> int:
    """Micro-batches whose activations of one chunk a rank holds at once, at most.

    Divide by chunks for micro-batches of all that the rank owns. A split backward holds
    them until the weight gradient is done. 1F1B, interleaved: Narayanan section 2.2.
    ZB-H1: p, ZB-H2: 2p - 1, Qi et al. 2023 (arXiv 2401.10241) Table 2. ZB-V: p pairs of
    chunks, Qi et al. 2024 (arXiv 2405.15362).
    """
    if schedule not in IN_FLIGHT:
        raise ValueError(
            f"schedule must be one of {', '.join(IN_FLIGHT)}, not {schedule!r}"
        )
    check_counts(ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    if not 0 <= rank < ranks:
        raise ValueError(f"rank must be from 0 to {ranks - 1}, not {rank}")
    held, own_chunks = IN_FLIGHT[schedule](ranks, rank, micro_batches, chunks)
    return min(held, own_chunks * micro_batches)


# for each schedule: how many it would hold of endless micro-batches, and chunks on a rank
IN_FLIGHT: dict[str, Callable[[int, int, int, int], tuple[int, int]]] = {
    "Naive": lambda p, r, m, v: (1, 1),
    "GPipe": lambda p, r, m, v: (m, 1),
    "1F1B": lambda p, r, m, v: (p - r, 1),
    "Interleaved 1F1B": lambda p, r, m, v: (2 * (p - r - 1) + (v - 1) * p + 1, v),
    "Looped BFS": lambda p, r, m, v: (v * m, v),
    "ZB-H1": lambda p, r, m, v: (p, 1),
    "ZB-H2": lambda p, r, m, v: (2 * p - 1, 1),
    "Interleaved ZB": lambda p, r, m, v: (v * p, v),
    "ZB-V": lambda p, r, m, v: (min(2 * p, m + 1 + r), 2),
}

# --- Sent --------------------------------------------------------------------------------


def message_bytes(micro_batch: int, sequence: int, hidden: int, itemsize: int = 2) -> int:
    """One message: b s h numbers, forward as backward. Narayanan section 3.2."""
    check_counts(
        micro_batch=micro_batch, sequence=sequence, hidden=hidden, itemsize=itemsize
    )
    return micro_batch * sequence * hidden * itemsize


def crossings(ranks: int, chunks: int = 1, v_shape: bool = False) -> int:
    """Boundaries between stages on different ranks: p - 1, interleaved pv - 1, V 2(p - 1).

    In a loop the last rank hands on to the first, in a V the last rank to itself.
    """
    check_counts(ranks=ranks, chunks=chunks)
    if ranks == 1:
        return 0
    return 2 * (ranks - 1) if v_shape else ranks * chunks - 1


def step_bytes(crossings: int, micro_batches: int, nbytes: int) -> int:
    """Of all ranks in a step: each micro-batch crosses each boundary there and back."""
    return 2 * crossings * micro_batches * nbytes


# --- Stages that are not equal -----------------------------------------------------------


def gpipe_step_s(
    forwards_s: Sequence[float], backwards_s: Sequence[float], micro_batches: int
) -> float:
    """A step of GPipe over unequal stages: sum + (m - 1) max, forward and then backward.

    [derived] Every stage but the slowest only fills and drains.
    """
    check_counts(micro_batches=micro_batches)
    return sum(
        sum(seconds) + (micro_batches - 1) * max(seconds)
        for seconds in (forwards_s, backwards_s)
    )


def least_step_s(stages_s: Sequence[float], micro_batches: int) -> float:
    """No schedule of whole backwards is faster: stages_s is forward and backward of each.

    [derived] A stage has m micro-batches to do, after the first has come through the
    stages before it, and the last has to go back through them. 1F1B lies between this
    and gpipe_step_s.
    """
    check_counts(micro_batches=micro_batches)
    before = accumulate(stages_s, initial=0.0)
    pairs = zip(before, stages_s, strict=False)
    return max(ahead + micro_batches * own for ahead, own in pairs)


def imbalance(stages: Sequence[float]) -> float:
    """The heaviest stage over the average: how much slower a long step gets. 1 is even."""
    return max(stages) * len(stages) / sum(stages)


def unit_flops(model: Model, sequence: int) -> tuple[float, ...]:
    """FLOPs forward, for one token: of the embedding, of each layer, of the head.

    Two for each number in a matrix, and 4sh for attention's two products over the whole
    sequence: 24h^2 + 4sh in GPT's block, 2hV in the head (Narayanan, appendix). To look
    up an embedding takes none. A backward is twice as much.
    """
    check_counts(sequence=sequence)
    if model.latent is not None:
        raise ValueError(f"model must be without latent attention, not {model.name}")
    layers = (
        2 * _matrix_numbers(model, layer) + 4 * sequence * model.hidden
        for layer in range(model.layers)
    )
    return (0.0, *map(float, layers), 2.0 * model.hidden * model.vocab)


def _matrix_numbers(model: Model, layer: int) -> int:
    """Numbers in the matrices of a layer that one token goes through."""
    joint = 2 * model.hidden + 2 * model.kv_heads * model.head_dim
    biases = joint + model.mlp_hidden + model.hidden if model.gpt else 0
    vectors = 2 * model.norm_parameters + biases
    return model.layer_parameters(layer, active=True) - vectors


# --- Where to cut ------------------------------------------------------------------------


def best_cuts(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Which units go into each stage, so that the heaviest stage is as light as can be.

    costs: of each unit, in running order; embedding and head are units too
    Each stage has one unit at least. Of equally good cuts, the one with the smallest sum
    of squares: the most even. Exact, by dynamic programming, O(units^2 stages).
    """
    check_counts(stages=stages)
    if len(costs) < stages:
        raise ValueError(f"stages must be at most the {len(costs)} units, not {stages}")
    if min(costs) < 0:
        raise ValueError(f"costs must be 0 or more, not {min(costs)}")
    upto = [0.0, *accumulate(costs)]
    heaviest, _ = _best(upto, stages, max, lambda cost: cost)
    limit = heaviest * (1 + 1e-12)  # sums of floats differ in their last digit
    even = lambda cost: cost * cost if cost <= limit else float("inf")
    _, ends = _best(upto, stages, lambda a, b: a + b, even)
    return tuple(range(a, b) for a, b in pairwise(ends))


def _best(
    upto: list[float],
    stages: int,
    join: Callable[[float, float], float],
    price: Callable[[float], float],
) -> tuple[float, tuple[int, ...]]:
    """Least joined price of cutting all units into so many stages, and the cuts.

    upto: summed costs of the first k units, for each k
    """
    units = len(upto) - 1
    best = {0: (0.0, (0,))}  # the first k units in the stages so far
    for stage in range(1, stages + 1):
        best = {
            k: min(
                (join(value, price(upto[k] - upto[j])), (*ends, k))
                for j, (value, ends) in best.items()
                if j < k
            )
            for k in range(stage, units - stages + stage + 1)
        }
    return best[units]
