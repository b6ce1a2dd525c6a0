"""The pictures of a ring's cost show what simulated rings and servers really take."""

import math

import pytest
import torch
import torch.distributed as dist

from course import World
from course.costs.topology import uniform
from course.facts import GB, IB_NDR, KIB, MIB, NVLINK4, Link
from course.figures.ring_costs import ring_against_server, ring_bandwidths, ring_terms
from course.parallel.collectives import ring_all_reduce

WIRE = Link("wire", 10e-6, 10 * GB)


def wired(ranks: int):
    return uniform(ranks, latency_s=WIRE.latency_s, bytes_per_s=WIRE.bytes_per_s)


def ring(nbytes: int):
    ring_all_reduce(torch.ones(nbytes // 4))


def push_and_pull(nbytes: int):
    """Rank 0 is the server."""
    mine = torch.ones(nbytes // 4)
    others = range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        for worker in others:
            dist.recv(mine, worker)
        for worker in others:
            dist.send(mine, worker)
    else:
        dist.send(mine, 0)
        dist.recv(mine, 0)


def trace(figure, start: str):
    return next(t for t in figure.data if t.name.startswith(start))


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_both_terms_together_are_the_time_of_a_simulated_ring(ranks):
    drawn = trace(ring_terms(ranks, WIRE)[0], "both")
    nbytes = 40 * ranks * KIB
    seconds = World(ranks, cluster=wired(ranks)).run(ring, nbytes).seconds
    below = max(i for i, m in enumerate(drawn.x) if m <= nbytes)
    assert drawn.y[below] <= seconds <= drawn.y[below + 1]
    share = (nbytes - drawn.x[below]) / (drawn.x[below + 1] - drawn.x[below])
    on_the_line = drawn.y[below] + share * (drawn.y[below + 1] - drawn.y[below])
    assert seconds == pytest.approx(on_the_line, rel=1e-9)


def test_the_terms_are_equal_at_the_dotted_line():
    figure, words = ring_terms(8, NVLINK4)
    at = figure.layout.shapes[0].x0
    assert at == pytest.approx(8 * 3.4e-6 * 450e9)
    latency, bandwidth = trace(figure, "latency"), trace(figure, "bandwidth")
    below = max(i for i, m in enumerate(latency.x) if m <= at)
    assert bandwidth.y[below] <= latency.y[below]
    assert bandwidth.y[below + 1] > latency.y[below + 1]
    assert "11.7 MiB" in words


@pytest.mark.parametrize("workers", [2, 3, 6])
def test_the_server_takes_what_a_simulated_server_takes(workers):
    figure, _ = ring_against_server(MIB, 1, WIRE)
    drawn = trace(figure, "1 server")
    run = World(workers + 1, cluster=wired(workers + 1)).run(push_and_pull, MIB)
    assert drawn.y[drawn.x.index(workers)] == pytest.approx(run.seconds, rel=1e-12)


def test_more_servers_share_the_load_and_the_sentence_says_by_how_much():
    one, _ = ring_against_server(GB, 1, IB_NDR)
    eight, words = ring_against_server(GB, 8, IB_NDR)
    ratio = trace(one, "1 server").y[-1] / trace(eight, "8 servers").y[-1]
    assert ratio == pytest.approx(8, rel=0.01)
    assert words.startswith("64 workers: 8 servers")


def test_busbw_stays_at_the_wire_for_large_buffers_and_algbw_falls():
    figure, words = ring_bandwidths(256 * 2**30, NVLINK4)
    bus, alg = trace(figure, "busbw"), trace(figure, "algbw")
    assert min(bus.y) > 0.99 * 450 and max(bus.y) <= 450 * (1 + 1e-12)
    assert list(alg.y) == sorted(alg.y, reverse=True)
    assert bus.y[6] / alg.y[6] == pytest.approx(2 * 7 / 8)
    assert "On 8 ranks" in words


def test_small_buffers_leave_both_bandwidths_low():
    figure, _ = ring_bandwidths(64 * KIB, NVLINK4)
    assert all(b < 450 / 20 for b in trace(figure, "busbw").y)
    assert all(math.isfinite(a) for a in trace(figure, "algbw").y)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: ring_terms(1), "ranks must be 2 or more, not 1"),
        (lambda: ring_bandwidths(0), "nbytes must be positive, not 0"),
        (lambda: ring_bandwidths(1, most_ranks=1), "ranks must be 2 or more, not 1"),
        (lambda: ring_against_server(1, 0), "servers must be 1 or more, not 0"),
        (lambda: ring_against_server(-1), "nbytes must be 0 or more, not -1"),
    ],
)
def test_bad_values_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()
