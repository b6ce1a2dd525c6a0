"""Events and bytes of real runs, as torch's profiler and our markers give them."""

import pytest
import torch

from course import World
from course.costs.collectives import cost
from tests import errands

FLOAT64 = 8


@pytest.fixture(scope="module")
def world():
    with World(4, on="gloo", timeout_s=60) as world:
        yield world


def talk(run, rank, name=None):
    return [
        e
        for e in run.events
        if e.rank == rank and e.lane == "communication" and name in (None, e.name)
    ]


def test_a_ring_of_sends_reports_exactly_its_bytes(world):
    run = world.run(errands.ring_of_sends, 3, 1000, record=True)
    assert run.bytes_sent == run.bytes_received == (3 * 1000 * FLOAT64,) * 4
    for rank in range(4):
        sends, recvs = talk(run, rank, "send"), talk(run, rank, "recv")
        assert [e.peer for e in sends] == [(rank + 1) % 4] * 3
        assert [e.peer for e in recvs] == [(rank - 1) % 4] * 3
        assert {e.bytes for e in sends + recvs} == {1000 * FLOAT64}


def test_a_message_arrives_after_it_was_sent(world):
    """One clock for all ranks: no receive ends before its send began."""
    run = world.run(errands.ring_of_sends, 5, 10_000, record=True)
    for rank in range(4):
        recvs = talk(run, (rank + 1) % 4, "recv")
        for send, recv in zip(talk(run, rank, "send"), recvs, strict=True):
            assert recv.end_s > send.start_s - 1e-4


def test_events_are_sorted_and_inside_the_run(world):
    run = world.run(errands.collectives, record=True)
    keys = [(e.start_s, e.rank) for e in run.events]
    assert keys == sorted(keys)
    assert all(0 <= e.start_s <= e.end_s for e in run.events)
    assert all(e.end_s < run.seconds + 1 for e in run.events)
    assert {e.rank for e in run.events} == {0, 1, 2, 3}


def test_collectives_have_their_names_and_whole_buffers(world):
    run = world.run(errands.collectives, record=True)
    piece, whole = 8 * 4, 4 * 8 * 4
    for rank in range(4):
        assert [(e.name, e.bytes, e.peer) for e in talk(run, rank)] == [
            ("all_reduce", piece, None),
            ("all_gather", whole, None),
            ("reduce_scatter", whole, None),
            ("all_gather", whole, None),
            ("broadcast", piece, 1),
            ("barrier", 0, None),
        ]


def test_bytes_of_a_collective_are_those_of_a_ring(world):
    run = world.run(errands.total, torch.ones(1000), record=True)
    sent = cost("all_reduce", "ring", 4, 4000).bytes_sent
    assert run.bytes_sent == run.bytes_received == (sent,) * 4


def test_a_collective_of_a_part_of_the_world_counts_its_own_ranks(world):
    run = world.run(errands.collective_in_halves, record=True)
    # Two ranks: each sends 2 * (2 - 1) / 2 of 32 bytes, and the first of them 12 more.
    assert run.bytes_sent == (44, 32, 44, 32)
    assert run.bytes_received == (32, 44, 32, 44)
    assert [e.peer for e in talk(run, 2, "send")] == [3], "a rank of the world"


def test_what_cpp_sends_is_seen_too(world):
    run = world.run(errands.train_with_ddp, record=True)
    gradients = talk(run, 3, "all_reduce")
    assert [e.bytes for e in gradients] == [(4 * 4 + 4) * 4]


def test_functional_collectives_are_seen_with_their_group(world):
    run = world.run(errands.functional_in_halves, record=True)
    events = talk(run, 1)
    assert [(e.name, e.bytes) for e in events] == [
        ("all_reduce", 32),
        ("all_gather", 64),
        ("reduce_scatter", 64),
    ]
    # 2 (n-1)/n 32 + (n-1)/n 64 + (n-1)/n 64, n = 2
    assert run.bytes_sent == (32 + 32 + 32,) * 4


def test_computation_is_shown_once_at_its_outermost(world):
    run = world.run(errands.compute, record=True)
    names = [e.name for e in run.events if e.rank == 0 and e.lane == "compute"]
    assert names == ["ones", "ones", "matmul", "sum", "item"]


def test_every_dtype_has_its_bytes():
    sizes = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1}
    sizes |= {"int16": 2, "int32": 4, "int64": 8, "bool": 1, "complex64": 8}
    with World(2, on="gloo") as world:
        run = world.run(errands.every_dtype, list(sizes), record=True)
    assert [e.bytes for e in talk(run, 0, "send")] == [5 * n for n in sizes.values()]
    assert [e.bytes for e in talk(run, 1, "recv")] == [5 * n for n in sizes.values()]


def test_recording_leaves_no_trace(world, capfd):
    world.run(errands.total, torch.ones(2), record=True)
    assert capfd.readouterr().out == "", "the profiler's own lines are not for the reader"

    def is_marked():
        return hasattr(torch.distributed.ProcessGroup.allreduce, "__wrapped__")

    assert world.run(is_marked, record=True).results == [True] * 4
    assert world.run(is_marked).results == [False] * 4


def test_after_a_recorded_run_collectives_work_as_before(world):
    def all_ranks_add_up():
        errands.collectives()  # a barrier among them
        x = torch.ones(2)
        torch.distributed.all_reduce(x)
        return x.tolist()

    world.run(errands.collectives, record=True)
    assert world.run(all_ranks_add_up).results == [[4.0, 4.0]] * 4


def test_an_uneven_all_to_all_counts_what_each_rank_was_given(world):
    """Row s of SIZES: what rank s gives to each; in an even ring they would be equal."""
    sizes, item = errands.SIZES, 3 * FLOAT64
    run = world.run(errands.uneven_exchange, record=True)
    assert run.bytes_per_link == {
        (s, d): rows * item
        for s, line in enumerate(sizes)
        for d, rows in enumerate(line)
        if rows and s != d
    }
    columns = zip(*sizes, strict=True)
    sent = tuple((sum(line) - line[r]) * item for r, line in enumerate(sizes))
    received = tuple((sum(line) - line[r]) * item for r, line in enumerate(columns))
    assert (run.bytes_sent, run.bytes_received) == (sent, received)
    simulated = World(4).run(errands.uneven_exchange)
    assert run.bytes_per_link == simulated.bytes_per_link
    for rank, line in enumerate(sizes):
        given = [e.bytes for e in talk(run, rank, "all_to_all")]
        assert given == [e.bytes for e in talk(simulated, rank)] == [sum(line) * item]


def test_an_all_to_all_of_lists_counts_its_tensors(world):
    links = world.run(errands.exchange_of_lists, record=True).bytes_per_link
    assert links == {(s, d): 5 * FLOAT64 for s in range(4) for d in range(4) if s != d}
    assert links == World(4).run(errands.exchange_of_lists).bytes_per_link


def test_bytes_per_link_are_those_of_sends_and_rings(world):
    run = world.run(errands.ring_of_sends, 3, 1000, record=True)
    assert run.bytes_per_link == {(r, (r + 1) % 4): 3000 * FLOAT64 for r in range(4)}
    run = world.run(errands.collectives, record=True)
    links = run.bytes_per_link
    for rank in range(4):
        out = sum(nbytes for (source, _), nbytes in links.items() if source == rank)
        back = sum(nbytes for (_, target), nbytes in links.items() if target == rank)
        assert (out, back) == (run.bytes_sent[rank], run.bytes_received[rank])
