"""torch's pipeline schedules pass our validator, and are ours where they are the same."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.distributed.pipelining.schedules import Schedule1F1B

from course.parallel import torch_schedules
from course.parallel.schedule_check import problems, require_valid
from course.parallel.schedule_time import Times, lay_out
from course.parallel.schedules import FORWARD, Schedule, build, gpipe
from course.parallel.torch_schedules import CLASSES, LOOPS, differences, torch_schedule

IN_GROUPS = ("Interleaved 1F1B", "Interleaved ZB")
CHUNKS = dict.fromkeys(LOOPS, (1,)) | {"ZB-V": (2,)}
SIZES = [(1, 1), (1, 3), (2, 4), (3, 3), (3, 7), (4, 2), (4, 12), (5, 10)]


def sizes(name: str) -> list[tuple[int, int, int]]:
    """Ranks, micro-batches, chunks that both torch and we take."""
    together = [(p, m, v) for (p, m), v in product(SIZES, CHUNKS.get(name, (2, 3)))]
    if name == "1F1B":  # torch refuses fewer micro-batches than ranks
        return [size for size in together if size[1] >= size[0]]
    return [size for size in together if name not in IN_GROUPS or size[1] % size[0] == 0]


every_size = pytest.mark.parametrize(
    "name, size", [(name, size) for name in CLASSES for size in sizes(name)]
)


@every_size
def test_valid_and_the_same_as_ours(name, size):
    theirs = require_valid(torch_schedule(name, *size))
    ours = build(name, *size)
    if name != "Looped BFS":
        assert differences(ours, theirs) == []
        assert ours.orders == theirs.orders


@pytest.mark.parametrize("p, m, v", sizes("Looped BFS"))
def test_looped_bfs_differs_in_the_way_back_only(p, m, v):
    ours, theirs = build("Looped BFS", p, m, v), torch_schedule("Looped BFS", p, m, v)
    back = lambda a: (
        a if a.kind == FORWARD else a._replace(micro_batch=m - 1 - a.micro_batch)
    )
    assert theirs.orders == tuple(tuple(map(back, order)) for order in ours.orders)
    assert lay_out(ours, Times()).makespan_s == lay_out(theirs, Times()).makespan_s


def test_differences_name_rank_and_action():
    ours, theirs = build("Looped BFS", 1, 2, 2), torch_schedule("Looped BFS", 1, 2, 2)
    assert differences(ours, theirs) == [
        "Rank 0, action 4: Looped BFS B0@1, torch Looped BFS B1@1."
    ]
    assert "other stages or micro-batches" in differences(ours, gpipe(1, 2))[0]


def test_differences_tell_what_one_does_not_do():
    shorter = Schedule("shorter", 1, (0,), ((),))
    assert differences(gpipe(1, 1), shorter) == [
        "Rank 0, action 0: GPipe F0@0, shorter nothing."
    ]


@pytest.mark.parametrize("name", IN_GROUPS)
@pytest.mark.parametrize("p, m", [(4, 10), (4, 3)])
def test_torch_takes_micro_batches_that_the_ranks_do_not_divide(name, p, m):
    assert require_valid(torch_schedule(name, p, m, 2)).micro_batches == m
    with pytest.raises(ValueError, match="multiple of ranks"):
        build(name, p, m, 2)


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="seen in torch 2.13")
def test_the_order_that_torch_writes_down_for_1f1b_is_not_what_it_does():
    """On the last rank torch 2.13's `pipeline_order` begins with micro-batch 1."""
    written = Schedule1F1B(torch_schedules._stage(0, 3, 0, 3), 4).pipeline_order
    orders = tuple(torch_schedules._ours(written[rank]) for rank in range(3))
    found = problems(Schedule("written", 4, (0, 1, 2), orders))
    assert found == ["Rank 2, action 6: F4@2 is of micro-batch 4, but there are 4."]


def test_refusals():
    with pytest.raises(ValueError, match="name must be one of GPipe"):
        torch_schedule("Naive", 2, 2)
    with pytest.raises(ValueError, match="chunks must be 1 for GPipe, not 2"):
        torch_schedule("GPipe", 2, 2, 2)
    with pytest.raises(ValueError, match="ranks must be 1 or more, not 0"):
        torch_schedule("GPipe", 0, 2)
