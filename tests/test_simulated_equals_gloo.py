"""The same functions on simulated ranks and on real gloo ranks give the same results."""

from __future__ import annotations

import pytest
import torch

from course import World
from course.worlds import RankError
from tests.rank_functions import (
    asynchronous,
    by_hand,
    coalesced,
    collectives,
    functional,
    functions_of,
    groups,
    layouts,
    messages,
    objects,
    reductions,
)
from tests.sameness import difference

PLAIN = [
    f
    for module in (
        messages,
        collectives,
        layouts,
        objects,
        asynchronous,
        groups,
        coalesced,
        by_hand,
    )
    for f in functions_of(module)
]
JOINED, STACKED = "gloo takes only the joined shape", "as NCCL, both shapes are taken"
# What gloo refuses and the simulated world does: {name: (reason, function that gives the
# same on gloo, how to see its result in the same form)}
GLOO_REFUSES = {
    "all_gather_into_tensor_stacked": (
        f"{JOINED}; {STACKED}",
        collectives.all_gather,
        torch.stack,
    ),
    "all_gather_into_tensor_in_place": (
        f"{JOINED}; {STACKED}",
        collectives.all_gather_into_views_of_one_tensor,
        lambda x: x,
    ),
    "reduce_scatter_tensor_stacked": (
        f"{JOINED}; {STACKED}",
        collectives.reduce_scatter_tensor_joined,
        lambda x: x,
    ),
    "reduce_scatter_tensor_in_place": (
        f"{JOINED}; {STACKED}",
        collectives.reduce_scatter_listed,
        lambda x: x,
    ),
    "all_to_all_of_different_sizes": (
        "gloo wants the same shape for all; NCCL does not",
        collectives.all_to_all_of_different_sizes_by_messages,
        lambda x: x,
    ),
}
# What gloo does and the simulated world refuses
SIMULATED_REFUSES = {
    "monitored_barrier": (
        "torch offers it to gloo only, as on NCCL; a missing rank is named by any barrier",
        # 2.13 says so, 2.14 finds no gloo in the group
        "monitored_barrier is only implemented for GLOO|No backend type",
    ),
}


@pytest.fixture(scope="module", params=[1, 2, 3, 4, 5], ids=lambda n: f"ranks{n}")
def gloo(request):
    with World(request.param, on="gloo") as world:
        yield world


@pytest.fixture(scope="module", params=[2, 3], ids=lambda n: f"ranks{n}")
def few(request):
    """Fewer sizes: torch's functional collectives take seconds to import in each rank."""
    with World(request.param, on="gloo") as world:
        yield world


def _name(function) -> str:
    return f"{function.__module__.split('.')[-1]}.{function.__name__}"


def _both(world: World, function, *args):
    return (
        World(world.ranks).run(function, *args).results,
        world.run(function, *args).results,
    )


def _ordinary(function) -> bool:
    return function.__name__ not in {*GLOO_REFUSES, *SIMULATED_REFUSES}


@pytest.mark.parametrize("function", list(filter(_ordinary, PLAIN)), ids=_name)
def test_same_results(gloo, function):
    if function is collectives.all_to_all and torch.__version__ < "2.13":
        pytest.skip("gloo has no all_to_all of lists before torch 2.13")
    simulated, real = _both(gloo, function)
    assert not difference(simulated, real)


@pytest.mark.parametrize("function", functions_of(functional), ids=_name)
def test_functional_collectives(few, function):
    simulated, real = _both(few, function)
    assert not difference(simulated, real)


@pytest.mark.parametrize("name", GLOO_REFUSES)
def test_what_only_gloo_refuses_is_right(few, name):
    _, same, seen = GLOO_REFUSES[name]
    refused = getattr(collectives, name)
    with pytest.raises(RankError):
        few.run(refused)
    simulated = World(few.ranks).run(refused).results
    assert not difference(simulated, [seen(r) for r in few.run(same).results])


@pytest.mark.parametrize("name", SIMULATED_REFUSES)
def test_what_only_the_simulated_world_refuses(name):
    _, message = SIMULATED_REFUSES[name]
    with pytest.raises(RankError, match=message):
        World(2).run(getattr(collectives, name))


def test_tensor_with_gaps_is_refused():
    """gloo sums the elements that lie between, too, and gives wrong numbers."""
    assert World(2).run(layouts.all_reduce_with_gaps_).results == ["refused"] * 2


@pytest.mark.parametrize("collective", ["all_reduce", "reduce", "reduce_scatter"])
def test_operations_and_dtypes(gloo, collective):
    simulated, real = _both(gloo, reductions.table, collective)
    assert not difference(simulated, real)
    refused = sum(result == "refused" for result in real[0].values() if result is not None)
    assert 0 < refused < len(real[0]) / 2


# Sums in another order differ in the last digits: one rounding for each of the n - 1
# additions, of numbers that are larger than the sum where signs differ.
EPSILONS = 4


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_random_floats(gloo, dtype):
    simulated, real = _both(gloo, reductions.random_floats, dtype)
    tolerance = EPSILONS * gloo.ranks * torch.finfo(getattr(torch, dtype)).eps
    assert not difference(simulated, real, tolerance=tolerance)
    if gloo.ranks <= 2:
        assert not difference(simulated, real)


def test_random_generator_of_a_rank(gloo):
    """Each simulated rank has a generator of its own, as a process has."""
    simulated, real = _both(gloo, reductions.random_numbers)
    assert not difference(simulated, real)
