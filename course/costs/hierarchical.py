"""All-reduce over two kinds of wire: fast inside a node, slower between nodes.

g  GPUs a node, k  nodes, n = g * k ranks, M  nbytes, the whole buffer.
"""

from dataclasses import dataclass

from course.costs.collectives import FREE, Cost, check_nbytes, check_ranks, core, cost
from course.facts import Link


@dataclass(frozen=True)
class TwoLevelCost:
    """Critical path of a two-level algorithm: on the fabric, and on a network card."""

    inside: Cost
    across: Cost

    def seconds(self, fabric: Link, nic: Link) -> float:
        """The two parts one after the other, nothing overlapped."""
        return self.inside.seconds(fabric) + self.across.seconds(nic)


def _check(gpus: int, nodes: int, nbytes: float) -> None:
    for name, value in (("gpus", gpus), ("nodes", nodes)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")
    check_nbytes(nbytes)


def hierarchical_all_reduce(gpus: int, nodes: int, nbytes: float) -> TwoLevelCost:
    """Reduce-scatter inside, all-reduce of M/g across on every NIC, all-gather inside.

    2(g-1) alpha_in + 2(g-1)/g M/B_in + 2(k-1) alpha_out + 2(k-1)/k (M/g)/B_nic, with a
    ring on each level (stas00/ml-engineering network/README.md counts the same bytes).
    """
    _check(gpus, nodes, nbytes)
    return TwoLevelCost(
        inside=cost("reduce_scatter", "ring", gpus, nbytes)
        + cost("all_gather", "ring", gpus, nbytes),
        across=cost("all_reduce", "ring", nodes, nbytes / gpus),
    )


def leader_all_reduce(gpus: int, nodes: int, nbytes: float) -> TwoLevelCost:
    """Reduce to one leader a node, ring all-reduce of leaders, broadcast from each leader.

    Trees inside, as `course.parallel.hierarchical` has them. Across, all of M passes one
    network card: g times as much as `hierarchical_all_reduce` puts on each.
    """
    _check(gpus, nodes, nbytes)
    return TwoLevelCost(
        inside=cost("reduce", "tree", gpus, nbytes)
        + cost("broadcast", "tree", gpus, nbytes),
        across=cost("all_reduce", "ring", nodes, nbytes),
    )


def flat_ring_all_reduce(gpus: int, nodes: int, nbytes: float) -> TwoLevelCost:
    """One ring through all ranks, node by node: every step waits for the slower wire."""
    _check(gpus, nodes, nbytes)
    whole = cost("all_reduce", "ring", gpus * nodes, nbytes)
    return TwoLevelCost(whole, FREE) if nodes == 1 else TwoLevelCost(FREE, whole)


# The algorithms of ranks at distances 1, 2, 4, ...: the near partners are in the node.
BY_DISTANCE = ("tree", "recursive_doubling", "halving_doubling")


def all_reduce_by_distance(
    algorithm: str, gpus: int, nodes: int, nbytes: float
) -> TwoLevelCost:
    """A flat tree or butterfly where ranks fill node after node, g and k powers of two.

    Its distances below g stay inside, the others leave the node, each rank by a network
    card of its own. There "tree" and "recursive_doubling" send all of M in each step;
    "halving_doubling" (near first) has M/g left, which makes it hierarchical all-reduce
    with butterflies for rings.
    algorithm: one of BY_DISTANCE
    """
    _check(gpus, nodes, nbytes)
    if algorithm not in BY_DISTANCE:
        raise ValueError(f"algorithm must be one of {list(BY_DISTANCE)}, not {algorithm!r}")
    for name, value in (("gpus", gpus), ("nodes", nodes)):
        if core(value) != value:
            raise ValueError(f"{name} must be a power of two, not {value}")
    left = nbytes / gpus if algorithm == "halving_doubling" else nbytes
    return TwoLevelCost(
        inside=cost("all_reduce", algorithm, gpus, nbytes),
        across=cost("all_reduce", algorithm, nodes, left),
    )


def hierarchical_all_reduce_seconds(
    gpus: int, nodes: int, nbytes: float, fabric: Link, nic: Link
) -> float:
    """Seconds of `hierarchical_all_reduce`, fabric inside a node, nic out of it."""
    return hierarchical_all_reduce(gpus, nodes, nbytes).seconds(fabric, nic)


def leader_all_reduce_seconds(
    gpus: int, nodes: int, nbytes: float, fabric: Link, nic: Link
) -> float:
    """Seconds of `leader_all_reduce`, fabric inside a node, nic out of it."""
    return leader_all_reduce(gpus, nodes, nbytes).seconds(fabric, nic)


@dataclass(frozen=True)
class NodeTraffic:
    """Bytes that leave one node in one direction.

    per_node:     through all its network cards together
    busiest_nic:  through the one that carries most
    """

    per_node: float
    busiest_nic: float


def node_traffic(algorithm: str, gpus: int, nodes: int, nbytes: float) -> NodeTraffic:
    """What an all-reduce sends out of a node that has one network card per GPU.

    A flat ring laid node by node crosses each boundary once: 2(n-1)/n M, not g M. The
    hierarchical one sends 2(k-1)/k M, spread over g cards; the leader sends that by one.
    algorithm: "flat_ring", "hierarchical" or "leader"; 0 bytes where there is one node.
    """
    _check(gpus, nodes, nbytes)
    n = gpus * nodes
    across = 2 * (nodes - 1) / nodes * nbytes
    ring = 2 * (n - 1) / n * nbytes if nodes > 1 else 0.0
    choices = {
        "flat_ring": NodeTraffic(ring, ring),
        "hierarchical": NodeTraffic(across, across / gpus),
        "leader": NodeTraffic(across, across),
    }
    if algorithm not in choices:
        raise ValueError(f"algorithm must be one of {list(choices)}, not {algorithm!r}")
    return choices[algorithm]


def bisection_bytes(ranks: int, nbytes: float) -> float:
    """Bytes of a uniform all-to-all that cross from one half of the ranks to the other.

    One direction. nbytes is what each rank holds, its own piece included, so that each
    pair exchanges M/n and floor(n/2) * ceil(n/2) pairs cross: n M / 4 for even n.
    """
    check_ranks(ranks)
    check_nbytes(nbytes)
    return (ranks // 2) * (ranks - ranks // 2) * nbytes / ranks


def bisection_seconds(ranks: int, nbytes: float, bisection_bytes_per_s: float) -> float:
    """Least seconds of an all-to-all whose only limit is the cut through the middle.

    bisection_bytes_per_s: all wires of the cut together, one direction. (A number that
    adds both directions must be halved first.)
    """
    if bisection_bytes_per_s <= 0:
        raise ValueError(
            f"bisection_bytes_per_s must be positive, not {bisection_bytes_per_s}"
        )
    return bisection_bytes(ranks, nbytes) / bisection_bytes_per_s
