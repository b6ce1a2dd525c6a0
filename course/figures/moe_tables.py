"""Mixtures in rows of text: dense twins, places for hot experts, gradients to average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course.costs import moe, moe_size
from course.costs.recipes import BF16_ADAM
from course.facts import GB, MIB
from course.facts_models import Model
from course.quantities import write


def twins_table(model: Model, sequence: int) -> str:
    """The mixture, a dense model of equal work and one of equal size, a row each.

    Model states of BF16_ADAM, 16 bytes a parameter; FLOPs of forward and backward for one
    token of a sequence of so many.
    """
    size = model.experts.count
    models = {
        model.name: model,
        "dense, equal work": moe_size.dense_twin(model),
        "dense, equal size": moe_size.dense_twin(model, visits=size),
    }
    return "\n".join(_twin(name, one, sequence) for name, one in models.items())


def _twin(name: str, model: Model, sequence: int) -> str:
    flops = moe_size.training_flops_per_token(model, sequence=sequence)
    states = BF16_ADAM.bytes_per_parameter * model.parameters
    return (
        f"{name:<17} {model.parameters / 1e9:4.1f} B parameters, states "
        f"{states / GB:3.0f} GB, {flops / 1e9:3.0f} GFLOPs a token"
    )


def placement_table(loads: Sequence[float], ranks: int, more: int) -> str:
    """Rows of each rank with experts in order, hot ones apart, and `more` replicas."""
    wide = moe.replicated(loads, more=more)
    ways = {
        "in order": (loads, None),
        "hot ones apart": (loads, moe.placed(loads, ranks)),
        f"apart, {more} replicas": (wide, moe.placed(wide, ranks)),
    }
    return "\n".join(_placed(name, ranks, *way) for name, way in ways.items())


def _placed(name: str, ranks: int, loads: Sequence[float], homes) -> str:
    by_rank = moe.rank_loads(loads, ranks, homes)
    rows = [round(float(load)) for load in by_rank]
    largest = moe.imbalance(by_rank)
    return f"{name:<18} rows by rank {rows}, largest {largest:.2f} x the mean"


def gradients_table(model: Model, ranks: int, sizes: Sequence[int]) -> str:
    """GB that a rank sends to average gradients, a row for each size of an EP group."""
    rows = []
    for ep in sizes:
        sent = moe_size.gradient_bytes_sent(model, ranks, ep)
        rows.append(
            f"{ranks} ranks, EP {ep:>2}: a rank sends {sent['experts'] / GB:5.1f} GB of "
            f"experts' gradients, {sent['dense'] / GB:.1f} GB of the others"
        )
    return "\n".join(rows)


def bytes_table(ways: Mapping[str, float]) -> str:
    """A row for each {way: bytes}, in MiB, and as a share of the first."""
    wide, first = max(map(len, ways)), next(iter(ways.values()))
    return "\n".join(
        f"{name:<{wide}}  {write(nbytes / MIB)} MiB, {nbytes / first:.0%}"
        for name, nbytes in ways.items()
    )
