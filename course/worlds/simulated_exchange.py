"""How much a collective moves; an all-to-all may have another size for every pair."""

from __future__ import annotations

import numpy as np

from course.costs.moe_time import exchange_seconds
from course.costs.topology import Cluster
from course.worlds.simulated_calls import Call


def size_of(calls: list[Call]) -> float:
    """M of the collective. For an uneven all-to-all: that of the busiest rank."""
    if calls[0].kind != "all_to_all":
        return calls[0].nbytes
    n, width = len(calls), calls[0].dtype.itemsize
    if n == 1:
        return 0
    busiest = max(
        sum(splits) - splits[r] for r, call in enumerate(calls) for splits in call.splits
    )
    return busiest * width * n / (n - 1)


def uneven_seconds(cluster: Cluster, calls: list[Call]) -> float | None:
    """Seconds of an uneven all-to-all between nodes, by its busiest port; else None.

    On one node a rank's ports do not care which of its peers gets how much.
    """
    members, splits = calls[0].group.members, calls[0].splits
    if calls[0].kind != "all_to_all" or len({cluster.node_of(r) for r in members}) == 1:
        return None
    if all(call.splits[0] == splits[0] and len(set(call.splits[0])) == 1 for call in calls):
        return None
    matrix = np.array([call.splits[0] for call in calls]) * calls[0].dtype.itemsize
    return exchange_seconds(cluster, matrix, members)
