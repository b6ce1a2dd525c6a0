"""How NCCL chooses: its static cost model for all-reduce, with rings and trees.

    time = latency + bytes / bandwidth        for each algorithm and protocol; least wins

Nothing in it is measured on the machine. It is filled once, when the communicator is
made, from compiled-in constants (`course.facts_nccl`) and the topology that was found.
Source: NVIDIA/nccl 2.30.7 src/graph/tuning.cc (Copyright NVIDIA, BSD-3; formulas only).
Left out: NVLS, NVLSTree, CollNet, PAT, tuner plugins; so on Hopper and later this tells
what NCCL_NVLS_ENABLE=0 would do.
"""

from dataclasses import dataclass

from course import facts_nccl as facts

ALGORITHMS = ("Ring", "Tree")
PROTOCOLS = facts.PROTOCOLS


@dataclass(frozen=True)
class Setup:
    """What NCCL found when the communicator was made.

    generation:  "Ampere", "Hopper" or "Blackwell"
    nodes, gpus: servers, and GPUs in each
    channels:    rings (or trees) side by side
    inside_gb_per_s, across_gb_per_s: bandwidth of one channel inside and between nodes
    cpu:         "AMD" or "Intel", for the LL limit and the posting cost across nodes
    """

    generation: str
    nodes: int
    gpus: int
    channels: int
    inside_gb_per_s: float
    across_gb_per_s: float
    cpu: str = "AMD"

    def __post_init__(self):
        for name, choices in (
            ("generation", facts.TREE_GB_PER_S),
            ("cpu", ("AMD", "Intel")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {list(choices)}, not {getattr(self, name)!r}"
                )
        for name in ("nodes", "gpus", "channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @property
    def scale(self) -> int:
        """Which of a table's three numbers: 1 node, 2 nodes, 3 or more."""
        return min(self.nodes, 3) - 1


def dgx_a100(nodes: int = 1) -> Setup:
    """8 x A100 a node, one HDR card each: 8 channels of 24 GB/s between nodes.

    Inside, 12 NVLinks at the 20 GB/s that NCCL counts with, shared by the channels.
    """
    return Setup("Ampere", nodes, 8, 8, _nvlink_share("Ampere", 8), 24.0)


def dgx_h100(nodes: int = 1) -> Setup:
    """8 x H100 a node, one NDR card each: 16 channels of 24 GB/s between nodes.

    NVIDIA's DGX A100 has AMD EPYC processors, its DGX H100 Intel Xeon (product pages).
    """
    return Setup("Hopper", nodes, 8, 16, _nvlink_share("Hopper", 16), 24.0, cpu="Intel")


def _nvlink_share(generation: str, channels: int) -> float:
    return facts.NVLINKS[generation] * facts.NVLINK_GB_PER_S[generation] / channels


def _bus_gb_per_s(setup: Setup, algorithm: str, protocol: str) -> float:
    """Bandwidth of all channels together, after the limits of the protocol."""
    generation, scale, channels = setup.generation, setup.scale, setup.channels
    wire = setup.inside_gb_per_s if setup.nodes <= 2 else setup.across_gb_per_s
    bus = channels * wire
    ll_most = facts.LL_GB_PER_S[generation if setup.nodes == 1 else setup.cpu][scale]
    if algorithm == "Ring":
        return {
            "LL": min(ll_most, bus * 0.5),
            "LL128": min(
                bus * 0.92, channels * facts.RING_LL128_GB_PER_S[generation][scale]
            ),
            "Simple": bus,
        }[protocol]
    bus = min(bus * 0.92, channels * facts.TREE_GB_PER_S[generation][scale])
    share = 7 / 9 if setup.nodes == 1 else 120 / 128
    return {
        "LL": min(bus / 3.8, ll_most),
        "LL128": min(bus * share, channels * facts.TREE_LL128_GB_PER_S[generation][scale]),
        "Simple": bus,
    }[protocol]


def bandwidth_gb_per_s(setup: Setup, algorithm: str, protocol: str, nbytes: float) -> float:
    """Algorithm bandwidth: bytes of the buffer over time, without the latency."""
    _check(algorithm, protocol)
    bus = _bus_gb_per_s(setup, algorithm, protocol)
    if algorithm == "Ring":
        return bus * setup.ranks / (2 * (setup.ranks - 1))
    size = int(nbytes // 64).bit_length() - 1  # log2(bytes / 64), rounded down
    correction = facts.TREE_CORRECTION[protocol][size] if 0 <= size < 23 else 1.0
    return bus * 0.5 * correction


def latency_us(setup: Setup, algorithm: str, protocol: str, nbytes: float) -> float:
    """Microseconds before bytes count: a base, and the steps in a row.

    Ring: 2(n-1) steps, 2(nodes-1) of them over the network. Tree: up and down a chain
    inside the node and log2(nodes) levels between nodes.
    """
    _check(algorithm, protocol)
    p = PROTOCOLS.index(protocol)
    base = facts.BASE_LATENCY_US[algorithm][p]
    inside = facts.STEP_LATENCY_US[algorithm, "NVLink"][p]
    across = facts.STEP_LATENCY_US[algorithm, "network"][p]
    if algorithm == "Tree":
        levels = setup.nodes.bit_length() - 1
        return base + 2 * ((setup.gpus - 1) * inside + levels * across)
    outside = 2 * (setup.nodes - 1)
    if setup.nodes > 1:
        post = facts.NET_OVERHEAD_US[setup.cpu] * (3 if protocol == "Simple" else 1)
        inside = max(inside, post)
    total = base + (2 * (setup.ranks - 1) - outside) * inside + outside * across
    chunk = nbytes / (setup.channels * setup.ranks)
    plateau = protocol == "Simple" and setup.nodes > 1 and chunk >= 64
    return total * 1.4 if plateau else total


def seconds(setup: Setup, algorithm: str, protocol: str, nbytes: float) -> float:
    """What NCCL expects an all-reduce to take. Raises ValueError for unknown names."""
    if setup.ranks == 1:
        return 0.0
    byte_us = nbytes / (1000 * bandwidth_gb_per_s(setup, algorithm, protocol, nbytes))
    return (latency_us(setup, algorithm, protocol, nbytes) + byte_us) * 1e-6


def choose(setup: Setup, nbytes: float) -> tuple[str, str]:
    """(algorithm, protocol) with the least expected time."""
    pairs = [(a, p) for a in ALGORITHMS for p in PROTOCOLS]
    return min(pairs, key=lambda pair: seconds(setup, *pair, nbytes))


def switch_points(setup: Setup, sizes) -> list[tuple[int, str, str]]:
    """(bytes, algorithm, protocol) at the first size and wherever the choice changes."""
    found: list[tuple[int, str, str]] = []
    for nbytes in sizes:
        chosen = choose(setup, nbytes)
        if not found or found[-1][1:] != chosen:
            found.append((nbytes, *chosen))
    return found


def _check(algorithm: str, protocol: str) -> None:
    for name, value, choices in (
        ("algorithm", algorithm, ALGORITHMS),
        ("protocol", protocol, PROTOCOLS),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be one of {list(choices)}, not {value!r}")
