"""Virtual time and bytes of the simulated world: closed forms, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from course import World
from course.costs.collectives import algorithms
from course.costs.topology import Cluster, collective_seconds, uniform
from course.costs.traffic import ALGORITHMS, traffic
from course.facts import DGX_H100, Link, Node
from tests.rank_functions import timed

ALPHA, B = 3e-6, 20e9
NIC = Link("card", 7e-6, 5e9)
M = 8 * 840 * 8  # bytes; divides by 1 to 8
few_examples = settings(max_examples=12)


def close(seconds: float):
    return pytest.approx(seconds, rel=1e-12, abs=0)


def wires(ranks: int) -> Cluster:
    return uniform(ranks, latency_s=ALPHA, bytes_per_s=B)


def servers(nodes: int, gpus: int, nics: int) -> Cluster:
    fabric = Link("fabric", ALPHA, B)
    return Cluster(Node("server", DGX_H100.gpu, gpus, fabric, NIC, nics), nodes)


def run(cluster: Cluster, function, *args, **options):
    return World(cluster.ranks, cluster=cluster, **options).run(function, *args)


# --- Messages -------------------------------------------------------------------------


def test_one_message():
    assert run(wires(2), timed.message, M).seconds == close(ALPHA + M / B)


def test_message_to_another_node():
    cluster = servers(nodes=2, gpus=2, nics=2)
    assert run(cluster, timed.message, M, 0, 3).seconds == close(7e-6 + M / 5e9)


def test_empty_message_takes_the_latency():
    assert run(wires(2), timed.message, 0).seconds == close(ALPHA)


@pytest.mark.parametrize("ranks", range(2, 9))
def test_ring_by_hand(ranks):
    result = run(wires(ranks), timed.ring, M)
    assert result.seconds == close(2 * (ranks - 1) * (ALPHA + M / (ranks * B)))
    assert result.bytes_sent == (2 * (ranks - 1) * M // ranks,) * ranks
    assert result.bytes_received == result.bytes_sent


def test_ring_by_hand_over_two_nodes():
    """Every step waits for the slowest wire, that between the nodes."""
    result = run(servers(nodes=2, gpus=2, nics=2), timed.ring, M)
    assert result.seconds == close(6 * (NIC.latency_s + M / 4 / NIC.bytes_per_s))


def test_ring_by_hand_over_a_slow_link():
    result = run(wires(4).with_slow_link(1, 2, 10), timed.ring, M)
    assert result.seconds == close(6 * (ALPHA + 10 * M / 4 / B))


@pytest.mark.parametrize("workers", [1, 3, 7])
@pytest.mark.parametrize("at_once", [True, False])
def test_push_to_a_parameter_server(workers, at_once):
    """The server's way in takes one message at a time; latencies overlap if it asks."""
    seconds = run(wires(workers + 1), timed.push_to_server, M, at_once).seconds
    latencies = 1 if at_once else workers
    assert seconds == close(latencies * ALPHA + workers * M / B)


def test_both_ways_at_once():
    assert run(wires(2), timed.pairs, M, [0, 1], [1, 0]).seconds == close(ALPHA + M / B)


def test_one_sender_to_two():
    seconds = run(wires(3), timed.pairs, M, [0, 0], [1, 2]).seconds
    assert seconds == close(ALPHA + 2 * M / B)


def test_pairs_of_their_own_run_side_by_side():
    assert run(wires(4), timed.pairs, M, [0, 2], [1, 3]).seconds == close(ALPHA + M / B)


@pytest.mark.parametrize("nics, turns", [(1, 4), (2, 2), (4, 1)])
def test_gpus_share_network_cards(nics, turns):
    cluster = servers(nodes=2, gpus=4, nics=nics)
    seconds = run(cluster, timed.pairs, M, [0, 1, 2, 3], [4, 5, 6, 7]).seconds
    assert seconds == close(NIC.latency_s + turns * M / NIC.bytes_per_s)


def test_inside_and_outside_use_other_ports():
    cluster = servers(nodes=2, gpus=2, nics=1)
    seconds = run(cluster, timed.pairs, M, [0, 0], [1, 2]).seconds
    assert seconds == close(max(ALPHA + M / B, NIC.latency_s + M / NIC.bytes_per_s))


# --- Built-in collectives ---------------------------------------------------------------

PAIRS = [
    (name, way)
    for name in ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
                 "reduce_scatter", "all_to_all", "barrier")
    for way in ALGORITHMS
    if way in algorithms(name) and (way != "tree" or name in ("all_reduce", "barrier"))
]  # fmt: skip


@pytest.mark.parametrize("cluster", [wires(5), servers(2, 2, 1)], ids=["one", "two_nodes"])
@pytest.mark.parametrize("name, way", PAIRS)
def test_collective(name, way, cluster):
    """Its formula's seconds, and its algorithm's bytes on every link."""
    n, nbytes = cluster.ranks, 8 * 20 * cluster.ranks
    result = run(cluster, timed.collective, name, nbytes, algorithms={name: way})
    size = 0 if name == "barrier" else nbytes
    want = collective_seconds(cluster, range(n), name, way, size)
    assert result.seconds == close(want)
    links: dict = {}
    for source, destination, sent in traffic(name, way, n, size):
        links[source, destination] = links.get((source, destination), 0) + sent
    assert result.bytes_per_link == {pair: sent for pair, sent in links.items() if sent}


CLOSED_FORMS = {  # bytes that rank 0, and each other rank, sends of M over n ranks
    "all_reduce": lambda n: (2 * (n - 1) * M // n,) * 2,
    "all_gather": lambda n: ((n - 1) * M // n,) * 2,
    "reduce_scatter": lambda n: ((n - 1) * M // n,) * 2,
    "all_to_all": lambda n: ((n - 1) * M // n,) * 2,
    "scatter": lambda n: ((n - 1) * M // n, 0),
    "gather": lambda n: (0, M // n),
    "barrier": lambda n: (0, 0),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_bytes_that_each_rank_sends(name, ranks):
    first, others = CLOSED_FORMS[name](ranks)
    result = run(wires(ranks), timed.collective, name, M)
    assert result.bytes_sent == (first, *[others] * (ranks - 1))
    assert sum(result.bytes_received) == sum(result.bytes_sent)


def test_chain_of_a_broadcast():
    result = run(wires(4), timed.collective, "broadcast", M)
    assert result.bytes_per_link == {(0, 1): M, (1, 2): M, (2, 3): M}


def test_uneven_all_to_all():
    """Each pair's bytes on its link; the busiest rank's ports give the time."""
    splits = [[9, 5, 0], [1, 9, 2], [7, 4, 9]]
    result = run(wires(3), timed.uneven_all_to_all, splits)
    assert result.bytes_per_link == {
        (i, j): 8 * splits[i][j]
        for i in range(3)
        for j in range(3)
        if i != j and splits[i][j]
    }
    assert result.seconds == close(2 * ALPHA + 8 * (7 + 4) / B)


# --- Groups and ports -----------------------------------------------------------------


def reduce_seconds(ranks: int, nbytes: int) -> float:
    return 2 * (ranks - 1) * (ALPHA + nbytes / (ranks * B))


@pytest.mark.parametrize(
    "groups, turns",
    [
        ([[0, 1], [2, 3]], 1),
        ([[0, 1], [0, 1]], 2),
        ([[0, 1], [1, 2]], 2),
        ([[0, 1], [1, 2], [2, 3]], 2),
        ([[0, 1], [0, 1], [0, 1]], 3),
    ],
)
def test_groups_that_share_ports_take_turns(groups, turns):
    seconds = run(wires(4), timed.reduce_in_groups, M, groups).seconds
    assert seconds == close(turns * reduce_seconds(2, M))


# --- Compute --------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.3, 1.0, 2.5])
def test_overlap(share):
    """max(c, t) with async_op, c + t without."""
    t = reduce_seconds(4, M)
    c = share * t
    overlapped = run(wires(4), timed.reduce_and_compute, M, c, True)
    in_turn = run(wires(4), timed.reduce_and_compute, M, c, False)
    assert overlapped.seconds == close(max(c, t))
    assert in_turn.seconds == close(c + t)
    compute = [e for e in overlapped.events if e.lane == "compute"]
    assert [(e.rank, e.name, e.start_s) for e in compute] == [
        (rank, "matrix product", 0.0) for rank in range(4)
    ]
    assert all(e.seconds == close(c) for e in compute)


def test_slow_rank_delays_all():
    result = run(wires(3).with_slow_rank(1, 4), timed.compute_then_meet, 0.25)
    barrier = collective_seconds(wires(3), range(3), "barrier", "ring", 0)
    assert result.seconds_per_rank == (close(1.0 + barrier),) * 3


def test_collective_begins_when_the_last_has_come():
    result = run(wires(4), timed.compute_after, 0.5, 2)
    reduces = [e for e in result.events if e.name == "all_reduce"]
    assert [e.start_s for e in reduces] == [0.5] * 4
    assert result.seconds == close(0.5 + reduce_seconds(4, 800))


# --- Any size -------------------------------------------------------------------------


@few_examples
@given(ranks=some.integers(2, 6), numbers=some.integers(0, 5000))
def test_any_message_and_ring(ranks, numbers):
    nbytes = 8 * numbers * ranks
    result = run(wires(ranks), timed.ring, nbytes)
    assert result.seconds == close(2 * (ranks - 1) * (ALPHA + nbytes / ranks / B))
    assert run(wires(2), timed.message, nbytes).seconds == close(ALPHA + nbytes / B)


@few_examples
@given(
    ranks=some.integers(1, 6),
    numbers=some.integers(1, 2000),
    name=some.sampled_from(sorted({name for name, _ in PAIRS})),
)
def test_any_collective(ranks, numbers, name):
    """Nothing is lost on the way, and events last as long as the formula says."""
    nbytes = 8 * numbers * ranks
    result = run(wires(ranks), timed.collective, name, nbytes)
    size = 0 if name == "barrier" else nbytes
    want = collective_seconds(wires(ranks), range(ranks), name, "ring", size)
    assert [e.seconds for e in result.events] == [pytest.approx(want, rel=1e-12)] * ranks
    assert sum(result.bytes_sent) == sum(result.bytes_received)
    assert sum(result.bytes_sent) == sum(result.bytes_per_link.values())
    if name != "all_to_all":
        assert {e.bytes for e in result.events} == {size}


def test_an_uneven_all_to_all_between_nodes_waits_for_its_busiest_port():
    """Ten numbers inside a node or between nodes; two ranks of a node share a card."""
    inside = [[0, 10, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    outside = [[0, 0, 10, 1], [0, 0, 0, 3], [0, 0, 0, 0], [0, 0, 0, 0]]
    cluster, steps_s = servers(2, 2, 1), 2 * ALPHA + NIC.latency_s
    found = [run(cluster, timed.uneven_all_to_all, s).seconds for s in (inside, outside)]
    assert found[0] == close(steps_s + 8 * max(10 / B, 1 / NIC.bytes_per_s))
    assert found[0] < found[1]
    assert found[1] == close(steps_s + 8 * 14 / NIC.bytes_per_s)


def test_an_uneven_all_to_all_of_some_ranks_uses_their_ports():
    cluster = servers(3, 2, 1)
    result = run(cluster, timed.uneven_all_to_all_of, [2, 5], [[0, 7], [4, 0]])
    assert result.seconds == close(NIC.latency_s + 8 * 7 / NIC.bytes_per_s)


@few_examples
@given(data=some.data(), ranks=some.integers(2, 4))
def test_any_uneven_all_to_all(data, ranks):
    row = some.lists(some.integers(0, 9), min_size=ranks, max_size=ranks)
    splits = data.draw(some.lists(row, min_size=ranks, max_size=ranks))
    result = run(wires(ranks), timed.uneven_all_to_all, splits)
    out = [sum(splits[i]) - splits[i][i] for i in range(ranks)]
    into = [sum(r[j] for r in splits) - splits[j][j] for j in range(ranks)]
    assert result.bytes_sent == tuple(8 * numbers for numbers in out)
    assert result.bytes_received == tuple(8 * numbers for numbers in into)
    assert result.seconds == close((ranks - 1) * ALPHA + 8 * max(out + into) / B)
