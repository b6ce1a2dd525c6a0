"""NCCL's cost model: the switch points derived from its constants, and published curves.

The switch points were derived once by hand for A100 with 8 channels of 24 GB/s and H100
with 16 of 24 GB/s across nodes, an AMD host for both, no NVLS, no tuner plugin.
"""

from dataclasses import replace
from statistics import median

import pytest

from course import facts_nccl
from course.costs import bandwidth, nccl
from course.facts import GIB, KIB, MIB

SIZES = [2**k for k in range(10, 31)]
A100, H100 = nccl.dgx_a100, nccl.dgx_h100


def h100_amd(nodes: int) -> nccl.Setup:
    return replace(H100(nodes), cpu="AMD")


def first_ring(setup) -> int | None:
    """The size from which on a ring is chosen, None where trees rule up to 1 GiB."""
    chosen = [nccl.choose(setup, size)[0] for size in SIZES]
    if "Ring" not in chosen:
        return None
    first = chosen.index("Ring")
    assert set(chosen[:first]) <= {"Tree"} and set(chosen[first:]) == {"Ring"}
    return SIZES[first]


@pytest.mark.parametrize("make", [A100, H100, h100_amd])
def test_one_node_never_chooses_a_tree(make):
    points = nccl.switch_points(make(1), SIZES)
    assert [(a, p) for _, a, p in points] == [
        ("Ring", "LL"),
        ("Ring", "LL128"),
        ("Ring", "Simple"),
    ]
    assert points[1][0] == 4 * MIB


@pytest.mark.parametrize(
    "make, gpus, size",
    [
        (A100, 16, 16 * MIB),
        (A100, 32, 32 * MIB),
        (A100, 64, 64 * MIB),
        (A100, 128, 256 * MIB),
        (A100, 512, None),
        (h100_amd, 16, 32 * MIB),
        (h100_amd, 32, 256 * MIB),
        (H100, 16, 32 * MIB),
        (h100_amd, 64, None),
        (H100, 64, None),
        (h100_amd, 128, None),
        (H100, 128, None),
        (h100_amd, 512, None),
        (H100, 512, None),
    ],
)
def test_where_the_tree_gives_way_to_the_ring(make, gpus, size):
    assert first_ring(make(gpus // 8)) == size


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
def test_256_kib_changes_the_protocol_not_the_algorithm(nodes):
    """By powers of two: 128 KiB is the last size that goes by LL."""
    setup = A100(nodes)
    assert nccl.choose(setup, 128 * KIB) == ("Tree", "LL")
    assert nccl.choose(setup, 256 * KIB) == ("Tree", "LL128")


def test_a_thousand_ranks_in_a_ring_wait_for_milliseconds():
    """1024 ranks, one a node: 2046 steps over the network, LL 2.7 us each, Simple 14 us.

    Simple also pays the plateau factor 1.4 once chunks are 64 bytes.
    """
    setup = nccl.Setup("Ampere", 1024, 1, 8, 24.0, 24.0)
    assert nccl.latency_us(setup, "Ring", "LL", 1) == pytest.approx(6.6 + 2046 * 2.7)
    assert nccl.latency_us(setup, "Ring", "Simple", 1) == pytest.approx(8.4 + 2046 * 14)
    plateau = nccl.latency_us(setup, "Ring", "Simple", GIB)
    assert plateau == pytest.approx(1.4 * (8.4 + 2046 * 14))
    tree = nccl.latency_us(setup, "Tree", "LL", 1)
    assert tree == pytest.approx(6.8 + 2 * 10 * 5.0)


def test_latency_of_eight_gpus_by_hand():
    setup = A100(1)
    assert nccl.latency_us(setup, "Ring", "LL", 1) == pytest.approx(6.6 + 14 * 0.6)
    assert nccl.latency_us(setup, "Ring", "LL128", 1) == pytest.approx(14 + 14 * 1.9)
    assert nccl.latency_us(setup, "Tree", "Simple", 1) == pytest.approx(8.4 + 14 * 4)


def test_on_two_nodes_the_processor_posts_each_step():
    """Inside steps take the 2 us of an AMD host (Simple 6), where the link is faster."""
    setup = A100(2)
    assert nccl.latency_us(setup, "Ring", "LL", 1) == pytest.approx(6.6 + 28 * 2 + 2 * 2.7)
    assert nccl.latency_us(setup, "Ring", "Simple", 1) == pytest.approx(
        8.4 + 28 * 6 + 2 * 14
    )


def test_a_dgx_h100_has_intel_processors_which_post_in_half_the_time():
    """Chapter 04's numbers: 16 nodes, LL, 30 steps between nodes and 224 inside."""
    assert (A100(16).cpu, H100(16).cpu) == ("AMD", "Intel")
    ring = 6.6 + 30 * 2.7
    assert nccl.latency_us(H100(16), "Ring", "LL", 1) == pytest.approx(ring + 224 * 1.0)
    assert nccl.latency_us(h100_amd(16), "Ring", "LL", 1) == pytest.approx(ring + 224 * 2.0)
    tree = nccl.latency_us(H100(16), "Tree", "LL", 1)
    assert tree == pytest.approx(6.8 + 2 * (7 * 0.6 + 4 * 5.0))


def test_bandwidths_of_eight_gpus_by_hand():
    """12 links of 20 GB/s: bus 240. Ring: 8/14 of it. LL at most 87.7, LL128 8 x 20."""
    setup = A100(1)
    found = [nccl.bandwidth_gb_per_s(setup, "Ring", p, GIB) for p in nccl.PROTOCOLS]
    assert found == pytest.approx([87.7 * 8 / 14, 160 * 8 / 14, 240 * 8 / 14])
    tree = nccl.bandwidth_gb_per_s(setup, "Tree", "Simple", 1024 * GIB)
    assert tree == pytest.approx(min(240 * 0.92, 8 * 24) / 2)
    # 1 MiB is 2**14 pieces of 64 bytes: entry 14 of the corrections, 0.5.
    corrected = nccl.bandwidth_gb_per_s(setup, "Tree", "Simple", MIB)
    assert corrected == pytest.approx(0.5 * tree)


# --- Published curves ------------------------------------------------------------------


def residuals(setup, measured_us) -> dict[int, float]:
    """Predicted over measured time, by size."""
    predicted = {
        size: nccl.seconds(setup, *nccl.choose(setup, size), size) for size in measured_us
    }
    return {size: predicted[size] * 1e6 / us for size, us in measured_us.items()}


def test_eight_a100_agree_within_8_percent_from_512_mib():
    ratios = residuals(A100(1), facts_nccl.A100_8_ALL_REDUCE_US)
    large = [ratio for size, ratio in ratios.items() if size >= 512 * MIB]
    assert len(large) == 6
    assert all(0.92 < ratio < 1 for ratio in large)


def test_eight_a100_are_slower_than_the_model_at_small_sizes():
    """The model holds the kernel alone; a call of a few KiB takes tens of us more."""
    ratios = residuals(A100(1), facts_nccl.A100_8_ALL_REDUCE_US)
    small = [ratio for size, ratio in ratios.items() if size <= MIB]
    assert 0.3 < median(small) < 0.4
    assert all(ratio < 1 for ratio in ratios.values())


def test_rings_of_eight_h200_agree_within_2_percent_at_16_gib():
    """H200 has H100's links. 367.2 GB/s with rings only; the model counts 18 x 20.6."""
    ((size, measured),) = facts_nccl.H200_8_RING_BUSBW_GB_PER_S.items()
    time = nccl.seconds(H100(1), "Ring", "Simple", size)
    predicted = bandwidth.busbw("all_reduce", 8, size, time) / 1e9
    assert predicted == pytest.approx(measured, rel=0.02)


def test_a_switch_that_adds_passes_what_a_ring_can():
    """NVLS is not in this model: with it the published curve is above any ring's."""
    size = 16 * GIB
    time = nccl.seconds(H100(1), *nccl.choose(H100(1), size), size)
    ring = bandwidth.busbw("all_reduce", 8, size, time) / 1e9
    assert facts_nccl.H200_8_BUSBW_GB_PER_S[size] > 450 > ring


# --- Input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        ({"generation": "Turing"}, "generation must be one of"),
        ({"cpu": "ARM"}, "cpu must be one of"),
        ({"nodes": 0}, "nodes must be 1 or more"),
        ({"channels": 0}, "channels must be 1 or more"),
    ],
)
def test_impossible_setups_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(A100(1), **change)


def test_names_that_nccl_does_not_have_are_refused():
    with pytest.raises(ValueError, match=r"'Ring', 'Tree'.*not 'halving_doubling'"):
        nccl.seconds(A100(1), "halving_doubling", "LL", 1)
    with pytest.raises(ValueError, match="protocol must be one of"):
        nccl.seconds(A100(1), "Ring", "LL64", 1)


def test_one_gpu_takes_no_time():
    alone = nccl.Setup("Ampere", 1, 1, 8, 30.0, 24.0)
    assert nccl.seconds(alone, "Ring", "LL", GIB) == 0
