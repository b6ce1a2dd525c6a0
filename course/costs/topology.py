"""Clusters: nodes of GPUs, which wire joins two ranks, which ports a message holds.

Rank r sits on node r // gpus, as local GPU r % gpus: ranks fill one node after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from course.costs.collectives import cost, rounds
from course.facts import DGX_H100, Gpu, Link, Node

# A port carries one message at a time in its direction: ("nvlink out", 3), ("nic in", 0, 1)
Port = tuple


@dataclass(frozen=True)
class Cluster:
    """`nodes` equal servers, with nothing but their network cards between them.

    slow_links: {(source, destination): factor}, bandwidth divided by the factor
    slow_ranks: {rank: factor}, compute time multiplied by the factor
    """

    node: Node
    nodes: int = 1
    slow_links: dict[tuple[int, int], float] = field(default_factory=dict)
    slow_ranks: dict[int, float] = field(default_factory=dict)

    def __post_init__(self):
        if self.nodes < 1:
            raise ValueError(f"nodes must be 1 or more, not {self.nodes}")

    @property
    def ranks(self) -> int:
        return self.nodes * self.node.gpus

    @property
    def name(self) -> str:
        return self.node.name if self.nodes == 1 else f"{self.nodes} x {self.node.name}"

    def node_of(self, rank: int) -> int:
        return rank // self.node.gpus

    def nic_of(self, rank: int) -> tuple[int, int]:
        """(node, network card) that the rank's traffic leaves by."""
        local = rank % self.node.gpus
        return self.node_of(rank), local * self.node.nics // self.node.gpus

    def link(self, source: int, destination: int) -> Link:
        """The wire between two ranks."""
        same = self.node_of(source) == self.node_of(destination)
        link = self.node.fabric if same else self.node.nic
        factor = self.slow_links.get((source, destination))
        return link.slower(factor) if factor else link

    def ports(self, source: int, destination: int) -> tuple[Port, Port]:
        """The sender's port out and the receiver's port in, which the message holds."""
        if self.node_of(source) == self.node_of(destination):
            return ("gpu out", source), ("gpu in", destination)
        return ("nic out", *self.nic_of(source)), ("nic in", *self.nic_of(destination))

    def with_slow_link(self, source: int, destination: int, factor: float) -> Cluster:
        return replace(self, slow_links={**self.slow_links, (source, destination): factor})

    def with_slow_rank(self, rank: int, factor: float) -> Cluster:
        return replace(self, slow_ranks={**self.slow_ranks, rank: factor})


def cluster_for(ranks: int, node: Node = DGX_H100) -> Cluster:
    """The smallest cluster of such nodes that holds so many ranks."""
    if ranks < 1:
        raise ValueError(f"ranks must be 1 or more, not {ranks}")
    return Cluster(node, math.ceil(ranks / node.gpus))


def uniform(
    ranks: int, *, latency_s: float, bytes_per_s: float, gpu: Gpu | None = None
) -> Cluster:
    """`ranks` GPUs on one switch: every pair is joined by the same wire."""
    link = Link("wire", latency_s, bytes_per_s)
    return Cluster(Node(f"{ranks} equal ranks", gpu or DGX_H100.gpu, ranks, link, link, 1))


# --- Collectives on a cluster -----------------------------------------------------------


def nodes_of(cluster: Cluster, members: Sequence[int]) -> dict[int, list[int]]:
    """The members of a group by the node they sit on, in rank order."""
    homes: dict[int, list[int]] = {}
    for rank in members:
        homes.setdefault(cluster.node_of(rank), []).append(rank)
    return homes


def collective_ports(cluster: Cluster, members: Sequence[int]) -> tuple[Port, ...]:
    """Every port that a collective of these ranks holds while it runs."""
    homes = nodes_of(cluster, members)
    ports: dict[Port, None] = {}
    for ranks in homes.values():
        if len(ranks) > 1:
            ports |= dict.fromkeys((way, r) for r in ranks for way in ("gpu out", "gpu in"))
        if len(homes) > 1:
            nics = [cluster.nic_of(r) for r in ranks]
            ports |= dict.fromkeys(
                (way, *nic) for nic in nics for way in ("nic out", "nic in")
            )
    return tuple(ports)


def ring_bytes_per_s(cluster: Cluster, members: Sequence[int]) -> float:
    """Bandwidth of rings over these ranks, one ring per network card that they have.

    Inside a node a ring runs at the fabric's speed. Where it leaves a node, rings share
    the node's cards evenly: NCCL opens its channels so. Slow links slow the ring.
    """
    homes = nodes_of(cluster, members)
    bounds = [cluster.node.fabric.bytes_per_s] if len(members) > len(homes) else []
    if len(homes) > 1:
        cards = min(len({cluster.nic_of(r) for r in ranks}) for ranks in homes.values())
        bounds.append(cards * cluster.node.nic.bytes_per_s)
    pairs = zip(members, [*members[1:], members[0]], strict=True)
    slow = max((cluster.slow_links.get(pair, 1.0) for pair in pairs), default=1.0)
    return min(bounds) / slow


def collective_seconds(
    cluster: Cluster, members: Sequence[int], collective: str, algorithm: str, nbytes: float
) -> float:
    """Seconds of one collective that has the cluster's ports to itself.

    members:  global ranks of the group
    nbytes:   the whole buffer M, as in `course.costs.collectives.cost`

    On one node: steps * alpha + bytes / B of that formula, exactly. Over k nodes the
    steps that leave a node are (k - 1) / (n - 1) of all: NCCL's src/graph/tuning.cc
    counts nInter = 2 (nNodes - 1) of the 2 (nRanks - 1) steps of a ring all-reduce, and
    log2(nNodes) levels of a tree. Trees and butterflies: log2(k) of log2(n) steps.
    """
    n = len(members)
    if n == 1:
        return 0.0
    total = cost(collective, algorithm, n, nbytes)
    homes = nodes_of(cluster, members)
    outside = total.steps * _share_outside(algorithm, len(homes), n)
    node = cluster.node
    latency_s = (
        outside * node.nic.latency_s + (total.steps - outside) * node.fabric.latency_s
    )
    if collective in ("all_to_all", "scatter", "gather") and len(homes) > 1:
        return latency_s + _scattered_seconds(cluster, homes, n, collective, nbytes)
    return latency_s + total.bytes_sent / ring_bytes_per_s(cluster, members)


def _share_outside(algorithm: str, nodes: int, n: int) -> float:
    """The part of the steps that leave a node."""
    if algorithm in ("ring", "naive"):
        return (nodes - 1) / (n - 1)
    return rounds(nodes) / rounds(n)


def _scattered_seconds(
    cluster: Cluster, homes: dict[int, list[int]], n: int, collective: str, nbytes: float
) -> float:
    """Byte time where every piece goes straight to its rank, in or out of the node.

    The two ways run side by side, so the longer one counts.
    """
    longest = 0.0
    for ranks in homes.values():
        senders = len(ranks) if collective == "all_to_all" else 1
        cards = len({cluster.nic_of(r) for r in ranks[:senders]})
        out = (
            senders * nbytes * (n - len(ranks)) / n / (cards * cluster.node.nic.bytes_per_s)
        )
        inside = nbytes * (len(ranks) - 1) / n / cluster.node.fabric.bytes_per_s
        longest = max(longest, out, inside)
    return longest
