"""Formulas of course/costs: exact values, what must hold for all sizes, folklore refuted.

Names like C1 are rows of the list of corrections to what is often written.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.costs import bandwidth, collectives, hierarchical, parameter_server
from course.costs.collectives import Cost, algorithms, cost, crossover_bytes, fastest
from course.facts import GB, IB_NDR, MIB, NVLINK4, Link

RANKS = st.integers(1, 4096)
NBYTES = st.integers(0, 2**36)
LINKS = st.builds(Link, st.just("any"), st.floats(1e-7, 1e-3), st.floats(1e6, 1e12))
PAIRS = st.sampled_from(list(collectives.FORMULAS))


def cost_or_skip(pair, ranks, nbytes) -> Cost | None:
    """None where halving is asked for a world that is no power of two."""
    halving = pair[1] == "halving_doubling" and pair[0] != "all_reduce"
    if halving and ranks & (ranks - 1):
        with pytest.raises(ValueError, match="power of two"):
            cost(*pair, ranks, nbytes)
        return None
    return cost(*pair, ranks, nbytes)


# --- The table -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "collective, algorithm, steps, in_m",
    [
        ("all_reduce", "naive", 14, 14),
        ("all_reduce", "ring", 14, 14 / 8),
        ("all_reduce", "tree", 6, 6),
        ("all_reduce", "double_tree", 6, 2),
        ("all_reduce", "halving_doubling", 6, 14 / 8),
        ("all_reduce", "recursive_doubling", 3, 3),
        ("reduce_scatter", "ring", 7, 7 / 8),
        ("reduce_scatter", "naive", 14, 7 + 7 / 8),
        ("all_gather", "ring", 7, 7 / 8),
        ("broadcast", "naive", 7, 7),
        ("broadcast", "ring", 7, 1),
        ("broadcast", "tree", 3, 3),
        ("reduce", "ring", 7, 1),
        ("scatter", "naive", 7, 7 / 8),
        ("gather", "tree", 3, 7 / 8),
        ("all_to_all", "naive", 7, 7 / 8),
        ("barrier", "recursive_doubling", 3, 0),
        ("send", "ring", 1, 1),
    ],
)
def test_eight_ranks_by_hand(collective, algorithm, steps, in_m):
    found = cost(collective, algorithm, 8, 8000)
    assert found.steps == steps
    assert found.bytes_sent == pytest.approx(in_m * 8000)


@pytest.mark.parametrize("ranks, extra", [(4, 0), (5, 2), (7, 2), (8, 0)])
def test_folding_costs_two_whole_messages(ranks, extra):
    for algorithm in ("halving_doubling", "recursive_doubling"):
        whole = cost("all_reduce", algorithm, ranks, 1000)
        core = cost("all_reduce", algorithm, collectives.core(ranks), 1000)
        assert whole.steps == core.steps + extra
        assert whole.bytes_sent == core.bytes_sent + extra * 1000


@given(PAIRS, RANKS, NBYTES)
def test_costs_are_sound_and_linear_in_bytes(pair, ranks, nbytes):
    one, two = (cost_or_skip(pair, ranks, m) for m in (nbytes, 2 * nbytes))
    if one is None:
        return
    assert one.steps >= 0 and one.bytes_sent >= 0
    assert two.steps == one.steps
    assert two.bytes_sent == pytest.approx(2 * one.bytes_sent)


@given(PAIRS, NBYTES)
def test_one_rank_has_nobody_to_talk_to(pair, nbytes):
    assert cost(*pair, 1, nbytes) == Cost(0, 0)


@given(st.integers(2, 4096), NBYTES)
def test_no_all_reduce_beats_the_bounds(ranks, nbytes):
    """Each rank must send 2(n-1)/n M unless a switch adds; news needs log2(n) hops."""
    for algorithm in algorithms("all_reduce"):
        found = cost("all_reduce", algorithm, ranks, nbytes)
        assert found.bytes_sent >= 2 * (ranks - 1) / ranks * nbytes * (1 - 1e-12)
        assert found.steps >= math.floor(math.log2(ranks))


@given(st.integers(2, 4096), NBYTES)
def test_all_reduce_is_reduce_scatter_and_all_gather(ranks, nbytes):
    halves = cost("reduce_scatter", "ring", ranks, nbytes) + cost(
        "all_gather", "ring", ranks, nbytes
    )
    assert cost("all_reduce", "ring", ranks, nbytes) == halves


@given(PAIRS, RANKS, NBYTES, LINKS)
def test_seconds_are_latency_and_bandwidth(pair, ranks, nbytes, link):
    found = cost_or_skip(pair, ranks, nbytes)
    if found is not None:
        parts = found.latency_seconds(link) + found.bandwidth_seconds(link)
        assert found.seconds(link) == pytest.approx(parts)


@given(st.integers(2, 4096), NBYTES, LINKS)
def test_the_fastest_is_not_beaten(ranks, nbytes, link):
    for collective in collectives.COLLECTIVES:
        best = fastest(collective, ranks, nbytes, link)
        least = cost(collective, best, ranks, nbytes).seconds(link)
        for algorithm in algorithms(collective):
            other = cost_or_skip((collective, algorithm), ranks, nbytes)
            assert other is None or least <= other.seconds(link)


def test_small_messages_go_by_doubling_and_large_ones_by_pieces():
    assert fastest("all_reduce", 64, 1024, NVLINK4) == "recursive_doubling"
    assert fastest("all_reduce", 64, 2**30, NVLINK4) == "halving_doubling"
    assert fastest("all_reduce", 6, 2**30, NVLINK4) == "ring"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: cost("all_reduce", "ring", 0, 1), "ranks must be 1 or more, not 0"),
        (lambda: cost("all_reduce", "ring", 2, -1), "nbytes must be 0 or more"),
        (lambda: cost("all_reduce", "star", 2, 1), r"'naive', 'ring', 'tree'.*not 'star'"),
        (lambda: cost("allreduce", "ring", 2, 1), "'all_reduce'.*not 'allreduce'"),
        (lambda: bandwidth.busbw_factor("barrier", 2), "collective must be one of"),
        (lambda: bandwidth.algbw(1, 0), "seconds must be positive"),
        (lambda: hierarchical.node_traffic("star", 2, 2, 1), "'leader'"),
        (lambda: hierarchical.hierarchical_all_reduce(0, 2, 1), "gpus must be 1"),
        (lambda: hierarchical.bisection_seconds(4, 1, 0), "bisection_bytes_per_s"),
        (lambda: parameter_server.push(4, 1, servers=0), "servers must be 1"),
        (lambda: collectives.pipeline_seconds(1, 0, 1, NVLINK4), "segments must be 1"),
        (lambda: bandwidth.fit_link([Cost(1, 1)], [1.0]), "2 or more"),
        (lambda: bandwidth.fit_link([Cost(1, 1)] * 2, [1.0, 0.0]), "positive"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- Pipelines -----------------------------------------------------------------------


@given(st.integers(2, 64), st.integers(1, 2**30), LINKS)
def test_best_segments_are_no_worse_than_their_neighbours(hops, nbytes, link):
    best = collectives.best_segments(hops, nbytes, link)
    least = collectives.pipeline_seconds(hops, best, nbytes, link)
    for other in (1, max(1, best - 1), best + 1, 2 * best):
        time = collectives.pipeline_seconds(hops, other, nbytes, link)
        assert least <= time * (1 + 1e-12)


def test_one_segment_is_store_and_forward():
    link = Link("x", 1.0, 10.0)
    assert collectives.pipeline_seconds(3, 1, 100, link) == 3 * (1 + 10)
    assert collectives.pipeline_seconds(3, 10, 100, link) == 12 * (1 + 1)


def test_fine_pipelining_tends_to_the_table():
    free = Link("no latency", 0.0, 1e9)
    limit = cost("broadcast", "ring", 8, 10**9).seconds(free)
    assert collectives.pipeline_seconds(7, 10**6, 10**9, free) == pytest.approx(
        limit, rel=1e-4
    )


# --- What is often written, and is not so ---------------------------------------------


@given(st.integers(2, 1024), st.integers(1, 2**36))
def test_c1_reduce_scatter_moves_half_of_all_reduce(ranks, nbytes):
    half = cost("reduce_scatter", "ring", ranks, nbytes).bytes_sent
    assert 2 * half == pytest.approx(cost("all_reduce", "ring", ranks, nbytes).bytes_sent)


def test_c2_reduce_then_broadcast_is_14_percent_worse_not_8_times():
    both = cost("reduce", "ring", 8, 1) + cost("broadcast", "ring", 8, 1)
    ring = cost("all_reduce", "ring", 8, 1)
    assert both.bytes_sent / ring.bytes_sent == pytest.approx(8 / 7)
    # All ranks together send the same, 2 (n - 1) M.
    chains = [bandwidth.traffic(name, "ring", 8, 800) for name in ("reduce", "broadcast")]
    assert sum(chain.total for chain in chains) == 14 * 800
    assert bandwidth.traffic("all_reduce", "ring", 8, 800).total == 14 * 800
    # Only a naive gather loads the root so.
    assert bandwidth.traffic("reduce", "naive", 8, 800).received[0] == 7 * 800
    assert max(chains[0].received) == 800


@given(st.integers(2, 64), st.integers(1, 10**6))
def test_c3_per_rank_is_not_total(ranks, pieces):
    nbytes = ranks * pieces
    moved = bandwidth.traffic("all_reduce", "ring", ranks, nbytes)
    assert set(moved.sent) == set(moved.received) == {2 * (ranks - 1) * pieces}
    assert moved.total == 2 * (ranks - 1) * nbytes


def test_c4_seven_billion_gradients_49_gb_each_way():
    fp32 = cost("all_reduce", "ring", 8, 7e9 * 4)
    bf16 = cost("all_reduce", "ring", 8, 7e9 * 2)
    assert fp32.bytes_sent == pytest.approx(49 * GB)
    assert bf16.bytes_sent == pytest.approx(24.5 * GB)
    moved = bandwidth.traffic("all_reduce", "ring", 8, 28 * GB)
    assert moved.both_directions(3) == 98 * GB
    # A full-duplex wire takes the time of one direction.
    assert fp32.bandwidth_seconds(NVLINK4) == pytest.approx(49 / 450)


@given(st.integers(2, 4096), LINKS)
def test_c5_the_crossover_is_n_alpha_b(ranks, link):
    found = crossover_bytes("all_reduce", "ring", ranks, link)
    assert found == pytest.approx(ranks * link.latency_s * link.bytes_per_s)
    at = cost("all_reduce", "ring", ranks, found)
    assert at.latency_seconds(link) == pytest.approx(at.bandwidth_seconds(link))


def test_c5_large_messages_are_ruled_by_bytes_at_any_ring_size():
    big = cost("all_reduce", "ring", 1024, 10**12)
    assert big.bandwidth_seconds(NVLINK4) > 100 * big.latency_seconds(NVLINK4)


def test_c6_latency_grows_with_the_ring_bytes_hardly():
    small, large = (cost("all_reduce", "ring", n, MIB) for n in (8, 1024))
    assert large.steps == 2046
    assert large.bytes_sent / small.bytes_sent < 1.15
    assert large.seconds(IB_NDR) > 100 * small.seconds(IB_NDR)


def test_c7_halving_doubling_takes_any_rank_count():
    assert cost("all_reduce", "halving_doubling", 6, 1200) == Cost(
        6, 2 * 1200 * 3 / 4 + 2400
    )


@given(st.integers(2, 12), st.integers(1, 2**30))
def test_c8_the_butterfly_sends_all_of_m_each_step(log_ranks, nbytes):
    found = cost("all_reduce", "recursive_doubling", 2**log_ranks, nbytes)
    assert found == Cost(log_ranks, log_ranks * nbytes)
    assert found.bytes_sent > cost("all_reduce", "ring", 2**log_ranks, nbytes).bytes_sent


def test_c9_all_gather_sends_own_and_forwarded_pieces():
    moved = bandwidth.traffic("all_gather", "ring", 8, 800)
    assert set(moved.sent) == {700}  # not 100, the own piece alone


def test_c10_broadcast_needs_a_pipeline_to_cost_one_m():
    assert cost("broadcast", "naive", 8, 1).bytes_sent == 7
    assert cost("broadcast", "tree", 8, 1) == Cost(3, 3)
    assert cost("broadcast", "ring", 8, 1) == Cost(7, 1)


def test_c16_a_flat_ring_already_crosses_each_node_boundary_once():
    flat, two_level = (
        hierarchical.node_traffic(name, 4, 2, 1.0) for name in ("flat_ring", "hierarchical")
    )
    assert (flat.per_node, two_level.per_node) == (1.75, 1.0)  # not 8 M against 2 M
    flat, two_level = (
        hierarchical.node_traffic(name, 8, 64, 1.0)
        for name in ("flat_ring", "hierarchical")
    )
    assert two_level.per_node / flat.per_node == pytest.approx(1, abs=0.02)


@given(st.integers(1, 16), st.integers(1, 64), st.integers(0, 2**36))
def test_c17_a_leader_puts_g_times_as_much_on_its_card(gpus, nodes, nbytes):
    leader, spread = (
        hierarchical.node_traffic(name, gpus, nodes, nbytes)
        for name in ("leader", "hierarchical")
    )
    assert leader.per_node == spread.per_node
    assert leader.busiest_nic == pytest.approx(gpus * spread.busiest_nic)
    across = [
        f(gpus, nodes, nbytes).across.bytes_sent
        for f in (hierarchical.leader_all_reduce, hierarchical.hierarchical_all_reduce)
    ]
    assert across[0] == pytest.approx(gpus * across[1])


def test_hierarchical_brackets_a_published_measurement():
    """4 nodes x 8 B200, 4 GiB: 22.05 ms between 16.1 overlapped and 26.25 in a row.

    stas00/ml-engineering network/README.md. Fabric: 740.64 GB/s, the bus bandwidth measured
    on one such node at 4 GiB; cards: 50 GB/s.
    """
    fabric, nic = Link("measured", 0, 740.64 * GB), Link("EFA", 0, 50 * GB)
    found = hierarchical.hierarchical_all_reduce(8, 4, 4 * 2**30)
    serial = found.seconds(fabric, nic)
    overlapped = max(found.inside.seconds(fabric), found.across.seconds(nic))
    assert found.across.bytes_sent == pytest.approx(0.75 * 2**30)
    assert found.inside.bytes_sent == pytest.approx(7 * 2**30)
    assert serial == pytest.approx(26.25e-3, rel=0.01)
    assert overlapped == pytest.approx(16.1e-3, rel=0.01)
    assert overlapped < 22.05e-3 < serial


@given(st.integers(1, 16), st.integers(0, 2**30))
def test_one_node_is_the_plain_ring(gpus, nbytes):
    found = hierarchical.hierarchical_all_reduce(gpus, 1, nbytes)
    flat = hierarchical.flat_ring_all_reduce(gpus, 1, nbytes)
    assert found.across == flat.across == Cost(0, 0)
    assert found.inside == flat.inside == cost("all_reduce", "ring", gpus, nbytes)


@given(st.integers(1, 512), st.integers(0, 2**30))
def test_c18_a_quarter_of_all_to_all_crosses_the_cut_one_way(half, nbytes):
    ranks = 2 * half
    crossing = hierarchical.bisection_bytes(ranks, nbytes)
    assert crossing == pytest.approx(ranks * nbytes / 4)  # not N D / 2


def test_c18_counted_pair_by_pair():
    for ranks in (2, 3, 5, 8):
        left = ranks // 2
        crossing = sum(a < left <= b for a in range(ranks) for b in range(ranks))
        assert hierarchical.bisection_bytes(ranks, ranks * 10) == crossing * 10
    assert hierarchical.bisection_seconds(8, 80, 10) == 16


@given(st.integers(1, 512), st.integers(0, 2**30))
def test_c19_a_server_pays_push_and_pull(workers, nbytes):
    step = parameter_server.push_and_pull(workers, nbytes)
    assert step.bytes_sent == 2 * workers * nbytes  # N P is one direction only
    both = parameter_server.push_and_pull(workers, nbytes, overlapped=True)
    assert both.bytes_sent == workers * nbytes
    moved = parameter_server.traffic(workers, nbytes)
    assert moved.total == 2 * workers * nbytes
    assert moved.sent[-1] == moved.received[-1] == nbytes  # a worker: P each way


def test_c19_servers_share_until_the_workers_are_the_limit():
    assert parameter_server.push(16, 100, servers=4).bytes_sent == 400
    assert parameter_server.push(16, 100, servers=16).bytes_sent == 100
    assert parameter_server.push(16, 100, servers=64).bytes_sent == 100


# --- Bandwidths, fits ------------------------------------------------------------------


@pytest.mark.parametrize(
    "collective, factor",
    [("all_reduce", 1.75), ("reduce_scatter", 7 / 8), ("all_to_all", 7 / 8), ("reduce", 1)],
)
def test_busbw_factors(collective, factor):
    assert bandwidth.busbw_factor(collective, 8) == factor


@given(st.integers(2, 1024), st.integers(1, 2**36), LINKS)
def test_an_ideal_ring_reads_the_wire_as_busbw(ranks, nbytes, link):
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        seconds = cost(collective, "ring", ranks, nbytes).bandwidth_seconds(link)
        found = bandwidth.busbw(collective, ranks, nbytes, seconds)
        assert found == pytest.approx(link.bytes_per_s)


def test_busbw_of_a_published_line():
    """8 x A100, 16 GiB in 127997 us: algbw 134.22, busbw 234.89 GB/s."""
    nbytes, seconds = 16 * 2**30, 127997e-6
    assert bandwidth.algbw(nbytes, seconds) == pytest.approx(134.22 * GB, rel=1e-4)
    assert bandwidth.busbw("all_reduce", 8, nbytes, seconds) == pytest.approx(
        234.89 * GB, rel=1e-4
    )


@given(LINKS, st.integers(2, 64))
def test_a_fit_finds_the_link_that_made_the_times(link, ranks):
    centre = crossover_bytes("all_reduce", "ring", ranks, link)
    costs = [cost("all_reduce", "ring", ranks, centre * 4.0**k) for k in range(-4, 5)]
    found = bandwidth.fit_link(costs, [c.seconds(link) for c in costs])
    assert found.latency_s == pytest.approx(link.latency_s, rel=1e-6)
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-6)


def test_a_fit_weighs_small_messages_as_much_as_large_ones():
    """10 % too slow at every size: B comes out 10 % low, and so does 1 / alpha."""
    costs = [cost("all_reduce", "ring", 4, 2.0**k) for k in range(10, 30)]
    found = bandwidth.fit_link(costs, [1.1 * c.seconds(NVLINK4) for c in costs])
    assert found.latency_s == pytest.approx(1.1 * NVLINK4.latency_s)
    assert found.bytes_per_s == pytest.approx(NVLINK4.bytes_per_s / 1.1)


def test_a_fit_never_has_negative_latency():
    costs = [Cost(1, b) for b in (100, 200, 400)]
    found = bandwidth.fit_link(costs, [90.0, 195.0, 410.0])
    assert found.latency_s == 0
    assert found.bytes_per_s == pytest.approx(1, rel=0.05)
    with pytest.raises(ValueError, match="grow"):
        bandwidth.fit_link([Cost(1, 0), Cost(2, 0)], [1.0, 2.0])


@pytest.mark.parametrize("algorithm", ["ring", "naive"])
@pytest.mark.parametrize(
    "collective", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]
)
def test_no_rank_sends_more_than_the_critical_path(collective, algorithm):
    """A port that is busy with bytes_sent cannot have sent more."""
    moved = bandwidth.traffic(collective, algorithm, 5, 500)
    assert sum(moved.sent) == sum(moved.received)
    assert (
        max(*moved.sent, *moved.received) <= cost(collective, algorithm, 5, 500).bytes_sent
    )


def test_noise_in_short_times_does_not_hide_the_bandwidth():
    """4 KiB to 4 MiB on a busy machine: one quiet moment at 1 MiB, all else slow."""
    costs = [cost("send", "ring", 2, 2**k) for k in range(12, 23, 2)]
    noisy_ms = [8.1, 10.3, 15.6, 7.7, 2.0, 15.9]
    times = [ms / 1e3 for ms in noisy_ms]
    # relative errors alone would find that more bytes take less time
    relative = [[c.steps / t, c.bytes_sent / t] for c, t in zip(costs, times, strict=True)]
    slope = np.linalg.lstsq(np.array(relative), np.ones(len(times)), rcond=None)[0][1]
    assert slope < 0
    fitted = bandwidth.fit_link(costs, times)
    assert 0.1e9 < fitted.bytes_per_s < 5e9
    with pytest.raises(ValueError, match="seconds must grow"):
        bandwidth.fit_link(costs, sorted(times, reverse=True))
