"""Seconds of expert parallelism: exchanges, the cut, two levels, the slowest. No torch.

Letters as in `moe_traffic`; g GPUs a node, N nodes, n = g N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course.costs.collectives import Cost, check_nbytes, cost
from course.costs.hierarchical import TwoLevelCost, bisection_seconds
from course.costs.moe import check_routing, loads_of, rank_loads
from course.costs.moe_traffic import expected_matrix, port_bytes, reached
from course.costs.topology import Cluster

# --- Exchanges ----------------------------------------------------------------------------


def exchange_seconds(
    cluster: Cluster, matrix: np.ndarray, members: Sequence[int] | None = None
) -> float:
    """Seconds of one all-to-all with these bytes, [source, destination].

    members: their ranks in the cluster; None: the first ones

    n - 1 latencies, then the port that carries most. A lower bound: traffic inside and
    between nodes overlaps, and no message waits for another's port in vain. With equal
    pieces that is `collective_seconds` of course.costs.topology.
    """
    ranks = len(matrix)
    if ranks == 1:
        return 0.0
    who = range(ranks) if members is None else members
    node, nodes = cluster.node, len({cluster.node_of(r) for r in who})
    outside = nodes - 1
    latency_s = outside * node.nic.latency_s + (ranks - nodes) * node.fabric.latency_s
    return latency_s + max(_port_seconds(cluster, matrix, members).values())


def _port_seconds(cluster: Cluster, matrix: np.ndarray, members=None) -> dict:
    wires = {"gpu": cluster.node.fabric, "nic": cluster.node.nic}
    through = port_bytes(cluster, matrix, members)
    return {p: n / wires[p[0].split()[0]].bytes_per_s for p, n in through.items()}


def busiest_port(cluster: Cluster, matrix: np.ndarray) -> tuple:
    """The port that takes longest, ("nic in", node, card) or ("gpu out", rank), ..."""
    seconds = _port_seconds(cluster, matrix)
    return max(seconds, key=lambda port: seconds[port])


# --- The cut through the middle -----------------------------------------------------------


def bisection_bytes_per_s(cluster: Cluster, oversubscription: float = 1.0) -> float:
    """Bandwidth of the cut through the middle of the cluster, one direction.

    Half of the nodes send through all their network cards; on one node, half of the GPUs
    through the fabric. oversubscription: ports below a switch level over ports above it.
    """
    if oversubscription < 1:
        raise ValueError(f"oversubscription must be 1 or more, not {oversubscription}")
    node = cluster.node
    if cluster.nodes == 1:
        return node.gpus // 2 * node.fabric.bytes_per_s / oversubscription
    return cluster.nodes // 2 * node.nics * node.nic.bytes_per_s / oversubscription


def cut_seconds(
    ranks: int,
    nbytes: float,
    *,
    one_way: float | None = None,
    both_ways: float | None = None,
) -> float:
    """Least seconds of a uniform all-to-all, limited by the cut alone.

    nbytes:    D, what each rank holds, its own piece included
    one_way:   bytes/s of all wires of the cut in one direction: n D / (4 B)
    both_ways: the same with both directions counted: n D / (2 B)

    Derivation, n even: a rank sends D/n to each of the n/2 ranks beyond the cut, so the
    n/2 ranks of one half send n/2 * n/2 * D/n = n D / 4 across, and as much comes back at
    the same time. Half of n D crosses, a quarter in each direction.
    """
    if (one_way is None) == (both_ways is None):
        raise ValueError("one_way or both_ways must be given, and not both")
    bandwidth = one_way if both_ways is None else both_ways / 2
    if bandwidth <= 0:
        raise ValueError(f"bytes per second must be positive, not {one_way or both_ways}")
    return bisection_seconds(ranks, nbytes, bandwidth)


def pessimistic_cut_seconds(ranks: int, nbytes: float, one_way: float) -> float:
    """n D / (2 B) with a one-way B: as if all n D crossed, half of it in each direction.

    Often seen so. Twice `cut_seconds`, since half of the pairs lie on one side.
    """
    check_nbytes(nbytes)
    return ranks * nbytes / (2 * one_way)


# --- Two levels ---------------------------------------------------------------------------


def hierarchical_all_to_all(gpus: int, nodes: int, nbytes: float) -> TwoLevelCost:
    """All-to-all inside each node, then between GPUs of the same number in their nodes.

    First GPU j of a node gathers what its node has for all GPUs j. The bytes between nodes
    stay, (N - 1) / N M a rank; the messages there are N - 1 instead of n - g, each g times
    as large; inside, the first level moves (g - 1) / g M more.
    """
    return TwoLevelCost(
        inside=cost("all_to_all", "ring", gpus, nbytes),
        across=cost("all_to_all", "ring", nodes, nbytes),
    )


def forwarded_dispatch(
    gpus: int,
    nodes: int,
    tokens: float,
    top_k: int,
    experts: int,
    token_bytes: float,
    *,
    limit: int | None = None,
) -> TwoLevelCost:
    """Each token once to each node that it visits, there on to the ranks, once each.

    It enters a node at the GPU of the sender's number, DeepSeek-V3's way (arXiv 2412.19437,
    section 3.2.2). Per rank: across T reached(nodes) (N - 1) / N, inside T reached(ranks)
    (g - 1) / g token vectors. limit: nodes that a token may visit.
    """
    check_nbytes(token_bytes)
    options = {"groups": nodes, "limit": limit}
    to_nodes = tokens * reached(top_k, experts, nodes, **options) * (nodes - 1) / nodes
    to_ranks = tokens * reached(top_k, experts, gpus * nodes, **options)
    return TwoLevelCost(
        inside=Cost(gpus - 1, to_ranks * (gpus - 1) / gpus * token_bytes),
        across=Cost(nodes - 1, to_nodes * token_bytes),
    )


# --- A step -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A mixture-of-experts layer and the tokens that each rank brings to it.

    tokens:        of one rank      expert_hidden: inner width of one expert
    itemsize:      of a number that is sent or multiplied
    matrices:      of one expert, 3 for SwiGLU
    """

    tokens: int
    hidden: int
    expert_hidden: int
    experts: int
    top_k: int
    itemsize: int = 2
    matrices: int = 3

    def __post_init__(self):
        check_routing(self.top_k, self.experts)
        for name in ("tokens", "hidden", "expert_hidden", "itemsize", "matrices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")

    @property
    def token_bytes(self) -> int:
        return self.hidden * self.itemsize

    @property
    def expert_parameters(self) -> int:
        return self.matrices * self.hidden * self.expert_hidden

    @property
    def copy_flops(self) -> int:
        """Forward FLOPs of one copy: a multiplication and an addition per weight."""
        return 2 * self.expert_parameters

    @property
    def flops_per_byte(self) -> float:
        """Forward FLOPs for each byte that a copy sends and gets back.

        matrices * expert_hidden / itemsize: neither k, E nor T is in it.
        """
        return self.copy_flops / (2 * self.token_bytes)


def expert_seconds(
    layer: Layer, cluster: Cluster, ranks: int, load: float | None = None
) -> float:
    """Forward seconds of a rank's experts: the larger of multiplying and reading weights.

    load: copies that come to the rank, None: T k, as when balanced
    """
    gpu = cluster.node.gpu
    load = layer.tokens * layer.top_k if load is None else load
    speed = gpu.flops_per_s(layer.itemsize) * gpu.matmul_efficiency
    weights = layer.experts / ranks * layer.expert_parameters * layer.itemsize
    return max(load * layer.copy_flops / speed, weights / gpu.memory_bytes_per_s)


def forward_seconds(
    layer: Layer, cluster: Cluster, ranks: int, visits: Sequence[float] | None = None
) -> dict[str, float]:
    """{"dispatch", "experts", "combine"}: all wait for the rank with the most copies.

    visits: chance that a token visits each expert, in the order of the ranks; None: k / E
    ranks:  must divide the experts. Nothing overlaps.
    """
    if visits is None:
        visits = loads_of(1, layer.top_k, layer.experts)
    matrix = expected_matrix([layer.tokens] * ranks, visits, layer.token_bytes)
    hottest = layer.tokens * ranks * float(np.max(rank_loads(visits, ranks)))
    return {
        "dispatch": exchange_seconds(cluster, matrix),
        "experts": expert_seconds(layer, cluster, ranks, hottest),
        "combine": exchange_seconds(cluster, matrix.T),
    }


def step_parts(
    layer: Layer, cluster: Cluster, ranks: int, visits: Sequence[float] | None = None
) -> dict[str, float]:
    """{"exchanges", "experts"}: forward and backward, arguments of `forward_seconds`.

    Every exchange twice, the products three times: backward multiplies twice, for the
    inputs' and for the weights' gradients.
    """
    once = forward_seconds(layer, cluster, ranks, visits)
    exchanges = 2 * (once["dispatch"] + once["combine"])
    return {"exchanges": exchanges, "experts": 3 * once["experts"]}


def step_seconds(
    layer: Layer, cluster: Cluster, ranks: int, visits: Sequence[float] | None = None
) -> float:
    """Forward and backward of one layer, nothing overlapped: the sum of `step_parts`."""
    return sum(step_parts(layer, cluster, ranks, visits).values())
