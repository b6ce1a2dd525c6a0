"""Relations that the numbers in course/facts.py must keep."""

import pytest

from course import facts, facts_nccl
from course.facts import GB, Gpu, Link, Node


def all_of(kind):
    return {name: value for name, value in vars(facts).items() if isinstance(value, kind)}


def test_h100_peak_is_clock_times_tensor_cores():
    # Boost clock x multiply-adds a clock and core x 2 operations x tensor cores.
    assert pytest.approx(1830e6 * 512 * 2 * 528, rel=1e-4) == facts.H100.bf16_flops_per_s


def test_nvlink_and_pcie_are_compared_in_the_same_direction():
    ratio = facts.NVLINK3.bytes_per_s / facts.PCIE4.bytes_per_s
    assert ratio == pytest.approx(9.5, abs=0.05)
    # The folklore divides 600 (both directions) by 32 (one direction).
    assert ratio != pytest.approx(600 / 32, rel=0.1)
    assert facts.NVLINK4.bytes_per_s / facts.PCIE5.bytes_per_s == pytest.approx(
        7.14, abs=0.01
    )


@pytest.mark.parametrize(
    "link, links, gb_per_link",
    [(facts.NVLINK3, 12, 25), (facts.NVLINK4, 18, 25), (facts.NVLINK5, 18, 50)],
)
def test_nvlink_is_its_links_times_their_speed(link, links, gb_per_link):
    assert link.bytes_per_s == links * gb_per_link * GB


@pytest.mark.parametrize(
    "link, gigabits",
    [
        (facts.IB_EDR, 100),
        (facts.IB_HDR, 200),
        (facts.IB_NDR, 400),
        (facts.IB_XDR, 800),
        (facts.ROCE_200, 200),
        (facts.ROCE_400, 400),
        (facts.EFA_P4D, 400 / 8),
        (facts.EFA_P5, 3200 / 8),
        (facts.EFA_P6_B300, 6400 / 8),
    ],
)
def test_network_links_are_their_gigabits_over_eight(link, gigabits):
    assert link.bytes_per_s * 8 == gigabits * 1e9


def test_peaks_are_dense():
    assert facts.B200.bf16_flops_per_s == 4500e12 / 2
    assert facts.GB200.bf16_flops_per_s == 5000e12 / 2
    assert facts.MI300X.bf16_flops_per_s == pytest.approx(2614.9e12 / 2, rel=1e-4)
    # A rack: 72 GPUs, 360 PFLOP/s sparse.
    rack = facts.GB200_NVL72
    assert rack.gpus * rack.gpu.bf16_flops_per_s * 2 == 360e15


@pytest.mark.parametrize(
    "gpu, reached",
    [
        ("A100_80GB", 271.2),
        ("H100", 794.5),
        ("B200", 1745),
        ("GB200", 1822),
        ("MI300X", 668.4),
    ],
)
def test_matmul_ceilings_are_the_measured_ones(gpu, reached):
    """Measured TFLOP/s: MAMF table of stas00/ml-engineering."""
    gpu = getattr(facts, gpu)
    predicted = gpu.bf16_flops_per_s * gpu.matmul_efficiency
    assert predicted == pytest.approx(reached * 1e12, rel=2e-3)


def test_h200_is_h100_with_more_memory():
    assert facts.H200.bf16_flops_per_s == facts.H100.bf16_flops_per_s
    assert facts.H200.memory_bytes > facts.H100.memory_bytes
    assert facts.H200.memory_bytes_per_s > facts.H100.memory_bytes_per_s


def test_a_p4d_gpu_gets_an_eighth_of_its_node():
    node = facts.AWS_P4D
    assert node.nics * node.nic.bytes_per_s / node.gpus == facts.EFA_P4D.bytes_per_s


def test_mi300x_reaches_one_peer_at_a_seventh():
    whole, one = facts.INFINITY_FABRIC3, facts.INFINITY_FABRIC3_PEER
    assert whole.bytes_per_s == 7 * one.bytes_per_s


def test_fabrics_are_faster_than_the_network_of_their_node():
    for name, node in all_of(Node).items():
        assert node.fabric.bytes_per_s > node.nic.bytes_per_s, name
        assert node.fabric.latency_s < node.nic.latency_s, name


def test_names_are_given_once():
    for kind in (Link, Gpu, Node):
        names = [value.name for value in all_of(kind).values()]
        assert len(names) == len(set(names)), kind


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Link("x", -1, 1), "latency_s"),
        (lambda: Link("x", 0, 0), "bytes_per_s"),
        (lambda: Node("x", facts.H100, 0, facts.PCIE4, facts.IB_NDR, 1), "gpus"),
        (lambda: Node("x", facts.H100, 4, facts.PCIE4, facts.IB_NDR, 5), "nics"),
    ],
)
def test_impossible_hardware_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_link_charges_latency_and_bytes():
    assert Link("x", 2e-6, 1e9).seconds(1000) == pytest.approx(3e-6)


def test_nccl_latencies_in_facts_are_the_ring_simple_ones():
    simple = facts_nccl.PROTOCOLS.index("Simple")
    for wire, link in (
        ("NVLink", facts.NVLINK4),
        ("PCIe", facts.PCIE4),
        ("network", facts.IB_NDR),
    ):
        step_us = facts_nccl.STEP_LATENCY_US["Ring", wire][simple]
        assert link.latency_s * 1e6 == pytest.approx(step_us)


def test_nccl_counts_with_less_than_the_wire():
    for generation, link in (("Ampere", facts.NVLINK3), ("Hopper", facts.NVLINK4)):
        counted = facts_nccl.NVLINKS[generation] * facts_nccl.NVLINK_GB_PER_S[generation]
        assert 0.75 < counted * GB / link.bytes_per_s < 0.85


def test_tree_corrections_cover_64_bytes_to_512_mib():
    assert {len(row) for row in facts_nccl.TREE_CORRECTION.values()} == {24}
    assert all(0.4 <= x <= 1 for row in facts_nccl.TREE_CORRECTION.values() for x in row)


def test_published_curves_cover_the_same_sizes():
    sizes = [2**i * 1024 for i in range(5, 25)]
    for curve in (
        facts_nccl.A100_8_ALL_REDUCE_US,
        facts_nccl.H200_8_BUSBW_GB_PER_S,
        facts_nccl.B200_8_BUSBW_GB_PER_S,
        facts_nccl.B200_32_BUSBW_GB_PER_S,
    ):
        assert list(curve) == sizes
