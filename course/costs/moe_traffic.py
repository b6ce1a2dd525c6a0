"""Bytes of expert parallelism: what a rank sends, by copy, by rank, by node. No torch.

    T  tokens of one rank      k  experts a token visits      h  hidden
    E  experts in all          n  ranks that share them (EP)  b  bytes of an element

Lepikhin et al. 2020, "GShard" (arXiv 2006.16668), section 3; Fedus et al. 2021, "Switch
Transformers" (arXiv 2101.03961), section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from course.costs.collectives import check_ranks
from course.costs.moe import check_routing, in_order
from course.costs.topology import Cluster, Port

# All-to-alls of one layer in one step. The backward of a dispatch sends as a combine does,
# and the other way round.
EXCHANGES = ("dispatch", "combine", "backward of combine", "backward of dispatch")


def exchange_bytes(
    tokens: float, top_k: int, hidden: int, ranks: int, *, itemsize: float = 2
) -> float:
    """Bytes that a rank sends in one all-to-all: T k h b (n - 1) / n.

    For experts that are equally popular; 1 of n copies stays. A copy is a whole vector.
    """
    check_ranks(ranks)
    _check_sizes(tokens, top_k, hidden)
    return tokens * top_k * hidden * itemsize * (ranks - 1) / ranks


def _check_sizes(tokens: float, top_k: int, hidden: int) -> None:
    if tokens < 0:
        raise ValueError(f"tokens must be 0 or more, not {tokens}")
    for name, value in (("top_k", top_k), ("hidden", hidden)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")


def step_bytes(
    tokens: float,
    top_k: int,
    hidden: int,
    ranks: int,
    *,
    dispatch_itemsize: float = 2,
    combine_itemsize: float = 2,
) -> float:
    """Bytes that a rank sends for one layer in one step: two dispatches, two combines.

    The backward of the combine sends gradients to the experts, so it counts as a dispatch.
    DeepSeek-V3 (arXiv 2412.19437, section 3.3.3) sends those two in FP8, itemsize 1, and
    the two combines in bf16.
    """
    sent = [
        exchange_bytes(tokens, top_k, hidden, ranks, itemsize=width)
        for width in (dispatch_itemsize, combine_itemsize)
    ]
    return len(EXCHANGES) / 2 * sum(sent)


def tensor_parallel_bytes(
    tokens: float, hidden: int, ranks: int, *, itemsize: float = 2
) -> float:
    """Bytes that a rank sends in forward if the experts are cut by tensor parallelism.

    tokens: of one rank, as above; the group works on all n T of them. One all-reduce of
    n T h b, or a gather and a scatter that come to the same: 2 (n - 1) T h b.
    Expert parallelism sends two exchanges, 2 T k h b (n - 1) / n: k / n of it.
    """
    check_ranks(ranks)
    _check_sizes(tokens, 1, hidden)
    return 2 * (ranks - 1) * tokens * hidden * itemsize


# --- One copy to each place ---------------------------------------------------------------


def reached(
    top_k: int,
    experts: int,
    places: int,
    *,
    groups: int = 1,
    limit: int | None = None,
) -> float:
    """Mean number of distinct places (ranks or nodes) among a token's k experts.

    Every set of k experts is equally likely. A place with E/p experts is missed in
    C(E - E/p, k) of C(E, k) cases: p (1 - C(E - E/p, k) / C(E, k)).

    limit: a token may visit only so many of `groups` (nodes). Here the groups are drawn
           evenly, then the experts from these. DeepSeek-V3 (arXiv 2412.19437, section
           2.1.2): at most 4 nodes, chosen by their best experts' scores.
    """
    check_routing(top_k, experts)
    for name, value in (("places", places), ("groups", groups)):
        if value < 1 or experts % value:
            raise ValueError(f"{name} must divide experts ({experts}), not {value}")
    chosen = groups if limit is None else limit
    if not 1 <= chosen <= groups:
        raise ValueError(f"limit must be from 1 to groups ({groups}), not {limit}")
    if places % groups:
        raise ValueError(f"groups must divide places ({places}), not {groups}")
    pool = experts * chosen // groups
    if top_k > pool:
        raise ValueError(f"top_k must be {pool} or less in {chosen} groups, not {top_k}")
    missed = math.comb(pool - experts // places, top_k) / math.comb(pool, top_k)
    return places * chosen / groups * (1 - missed)


def deduplicated_bytes(
    tokens: float,
    top_k: int,
    hidden: int,
    experts: int,
    places: int,
    *,
    itemsize: float = 2,
    groups: int = 1,
    limit: int | None = None,
) -> float:
    """Bytes that a rank sends to other places if each place gets a token at most once.

    places: ranks, or nodes, which then hand the token on inside: T reached h b (p - 1) / p
    """
    _check_sizes(tokens, top_k, hidden)
    copies = reached(top_k, experts, places, groups=groups, limit=limit)
    return tokens * copies * hidden * itemsize * (places - 1) / places


# --- From rank to rank --------------------------------------------------------------------


def expected_matrix(
    tokens: Sequence[float], visits: Sequence[float], token_bytes: float
) -> np.ndarray:
    """Mean bytes of one dispatch, [source, destination], what stays on the diagonal.

    tokens: of each rank      visits: chance that a token visits each expert, in order
    """
    ranks = len(tokens)
    check_ranks(ranks)
    to_rank = np.bincount(in_order(len(visits), ranks), weights=np.asarray(visits, float))
    return np.outer(np.asarray(tokens, float), to_rank) * token_bytes


def routed_matrix(
    routes: Sequence[np.ndarray],
    experts: int,
    token_bytes: float,
    *,
    deduplicate: bool = False,
) -> np.ndarray:
    """Bytes of one dispatch, [source, destination], for given choices.

    routes:      for each rank the experts of its tokens, shape (T, k); T may differ
    deduplicate: a rank gets a token once, however many of its experts it visits
    The combine sends the transpose.
    """
    ranks = len(routes)
    homes = np.array(in_order(experts, ranks))
    matrix = np.zeros((ranks, ranks))
    for source, choices in enumerate(routes):
        to = homes[np.asarray(choices, int)]
        if deduplicate:
            tokens = np.arange(len(to))[:, None]
            to = np.unique(tokens * ranks + to) % ranks
        matrix[source] = np.bincount(to.ravel(), minlength=ranks)
    return matrix * token_bytes


def port_bytes(
    cluster: Cluster, matrix: np.ndarray, members: Sequence[int] | None = None
) -> dict[Port, float]:
    """Bytes through each port of the cluster that the exchange uses, see `Cluster.ports`.

    matrix:  [source, destination]; the diagonal stays where it is and counts nothing
    members: the ranks in the cluster, in the matrix' order; None: the first ones
    """
    n = len(matrix)
    if n > cluster.ranks:
        raise ValueError(f"cluster must have {n} ranks or more, not {cluster.ranks}")
    members = range(n) if members is None else members
    homes = np.array([cluster.node_of(r) for r in members])
    near = homes[:, None] == homes
    moved = np.asarray(matrix, float) * ~np.eye(n, dtype=bool)
    inside, outside = moved * near, moved * ~near
    through: dict[Port, float] = {}
    for i, rank in enumerate(members):
        if near[i].sum() > 1:
            through["gpu out", rank] = float(inside[i].sum())
            through["gpu in", rank] = float(inside[:, i].sum())
        if not near[i].all():
            card = cluster.nic_of(rank)
            for way, nbytes in (
                ("out", outside[i].sum()),
                ("in", outside[:, i].sum()),
            ):
                port = (f"nic {way}", *card)
                through[port] = through.get(port, 0.0) + float(nbytes)
    return through
