"""All-reduce in two levels: wires inside a node are fast, the ones between nodes slow.

inside  group of the ranks of my node
across  group of the ranks with my place in every node (my rail)
"""

import torch
import torch.distributed as dist

from course.parallel.collectives import (
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from course.parallel.messages import flattened
from course.parallel.trees import tree_broadcast, tree_reduce

SUM = dist.ReduceOp.SUM


def node_groups(gpus: int):
    """(inside, across) for this rank, of a world filled node by node, `gpus` ranks each.

    Every rank of the world must call it: a group is made by all, members or not.
    Raises ValueError where the world is not a whole number of nodes.
    """
    n, me = dist.get_world_size(), dist.get_rank()
    if gpus < 1 or n % gpus:
        raise ValueError(f"gpus must divide the world size ({n}), not {gpus}")
    nodes = [range(start, start + gpus) for start in range(0, n, gpus)]
    rails = [range(local, n, gpus) for local in range(gpus)]
    made = [[dist.new_group(list(ranks)) for ranks in kind] for kind in (nodes, rails)]
    return made[0][me // gpus], made[1][me % gpus]


def hierarchical_all_reduce(tensor: torch.Tensor, op=SUM, *, inside, across) -> None:
    """Reduce-scatter inside, all-reduce my piece across, all-gather inside. In place.

    All network cards of a node work at once, each on its own piece.
    """
    with flattened(tensor) as row:
        piece = ring_reduce_scatter(row, op, inside)
        ring_all_reduce(piece, op, across)
        ring_all_gather(row, inside)


def leader_all_reduce(tensor: torch.Tensor, op=SUM, *, inside, across) -> None:
    """Reduce to one leader a node, all-reduce among leaders, broadcast inside. In place.

    The leader's network card carries everything while the others idle.
    """
    tree_reduce(tensor, op, inside)
    if dist.get_rank(inside) == 0:
        ring_all_reduce(tensor, op, across)
    tree_broadcast(tensor, inside)
