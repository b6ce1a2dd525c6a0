"""Two simulated runs are the same to the last digit: results, events, messages."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from course import World, spend
from course.parallel.collectives import ring_all_reduce
from course.worlds import RankError
from tests.rank_functions import mistakes, reductions
from tests.training import build, state, train


def distributed_data_parallel() -> dict:
    model = build()
    train(DDP(model, bucket_cap_mb=0.0005), dist.get_rank(), dist.get_world_size())
    return state(model)


def fully_sharded() -> dict:
    model = build()
    for layer in model[::2]:
        fully_shard(layer)
    fully_shard(model)
    train(model, dist.get_rank(), dist.get_world_size())
    return state(model)


def ring() -> torch.Tensor:
    torch.manual_seed(dist.get_rank())
    x = torch.randn(1001)
    ring_all_reduce(x)
    return x


def race() -> list[float]:
    """The order in which rank 0 hears of the others depends on their clocks only."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank:
        spend(0.1 * (ranks - rank))
        dist.send(torch.tensor([float(rank)]), 0)
        return []
    heard = []
    for _ in range(ranks - 1):
        x = torch.zeros(1)
        dist.recv(x)
        heard.append(x.item())
    return heard


def dropout() -> torch.Tensor:
    torch.manual_seed(dist.get_rank())
    dist.barrier()
    return torch.nn.functional.dropout(torch.ones(32))


FUNCTIONS = (distributed_data_parallel, fully_sharded, ring, race, dropout)


def record(function, ranks: int = 3) -> tuple:
    """All that a run leaves behind, down to the bits of its numbers."""
    run = World(ranks).run(function)
    return (
        digest(run.results),
        run.seconds_per_rank,
        run.events,
        run.messages,
        run.bytes_sent,
        tuple(run.bytes_per_link.items()),
    )


def digest(results) -> str:
    text = hashlib.sha256()

    def add(thing):
        if isinstance(thing, torch.Tensor):
            text.update(thing.contiguous().numpy().tobytes())
        elif isinstance(thing, dict):
            add(list(thing.items()))
        elif isinstance(thing, list | tuple):
            for part in thing:
                add(part)
        else:
            text.update(repr(thing).encode())

    add(results)
    return text.hexdigest()


def name_of(function) -> str:
    return function.__name__


@pytest.mark.parametrize("function", FUNCTIONS, ids=name_of)
def test_two_runs_are_the_same(function):
    assert record(function) == record(function)


@pytest.mark.parametrize("function", [ring, distributed_data_parallel], ids=name_of)
def test_same_after_a_run_that_failed(function):
    before = record(function)
    for mistake in (
        mistakes.raises_while_the_other_waits,
        mistakes.both_send_first,
        mistakes.other_shape,
    ):
        with pytest.raises(RankError):
            World(2).run(mistake)
    assert record(function) == before


def test_order_of_arrival_is_that_of_the_clocks():
    assert World(4).run(race).results[0] == [3.0, 2.0, 1.0]


def test_same_whatever_the_caller_has_drawn():
    """A rank begins as a fresh process does, and leaves the caller's generator alone."""
    torch.manual_seed(5)
    first = torch.rand(2), World(2).run(reductions.random_numbers).results, torch.rand(2)
    torch.manual_seed(5)
    second = torch.rand(2), torch.rand(2)
    assert torch.equal(first[0], second[0]) and torch.equal(first[2], second[1])
    assert digest(first[1]) == digest(World(2).run(reductions.random_numbers).results)


def test_results_do_not_share_memory_with_the_arguments():
    def add_one(x):
        x.add_(1 + dist.get_rank())
        return x

    x = torch.zeros(2)
    run = World(3).run(add_one, x)
    assert [r.tolist() for r in run.results] == [[1, 1], [2, 2], [3, 3]]
    assert x.tolist() == [0, 0]


PRINT = """
from tests.test_simulated_determinism import FUNCTIONS, digest, record
print(digest([record(f) for f in FUNCTIONS]))
"""


def test_same_in_another_process_with_another_hash_seed():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRINT],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [digest([record(f) for f in FUNCTIONS])]
