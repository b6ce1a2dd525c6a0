"""What an MoE layer sends: one dispatch, or one layer there and back, to be metered.

The tokens are those of `moe_versions`, the first batch; the model is not trained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from course.costs.moe_traffic import routed_matrix
from course.parallel.moe import routed, ways_over
from course.parallel.moe_exchange import permute, plan, totals
from course.parallel.moe_versions import PAIR, Task, batches, build, check_tokens

ITEM_BYTES = 8  # float64
COUNT_BYTES = 8  # an expert's number of rows, int64


def dispatch_once(way: str, task: Task) -> None:
    """Route my tokens and send their rows to the experts, and no more."""
    check_tokens(way, task)
    moe, mine = build(way, task).moe, my_tokens(task)
    routing = routed(moe.router, mine, task.capacity_factor)
    how = plan(routing.kept_load(), moe.group)
    rows, _ = permute(mine, routing)
    moe.dispatch(rows.detach(), how)


def layer_once(way: str, task: Task) -> None:
    """Forward and backward of the layer, gradients of parameters left where they are."""
    check_tokens(way, task)
    moe, mine = build(way, task).moe, my_tokens(task).requires_grad_()
    moe(mine).square().sum().backward()


def my_tokens(task: Task) -> torch.Tensor:
    x, _ = next(batches(task))
    return x.split(task.tokens)[dist.get_rank()]


# --- Predicted ------------------------------------------------------------------------


def routes_of(task: Task) -> list[np.ndarray]:
    """The experts of every kept copy of each rank's tokens, found in one process."""
    moe, (x, _) = build("alone", task).moe, next(batches(task))
    moe(x, task.tokens)
    return [r.experts[r.kept].cpu().numpy() for r in moe.routings]


def dispatch_bytes(way: str, task: Task, routes: list[np.ndarray]) -> np.ndarray:
    """[source, destination] bytes of the rows of one dispatch, what stays on the diagonal.

    Not for "EP levels", where rows are handed on.
    """
    if way == "EP levels":
        raise ValueError("way must send rows straight to their experts, not 'EP levels'")
    row_bytes = task.hidden * ITEM_BYTES
    if way != "EP x DP":
        return routed_matrix(routes, task.experts, row_bytes)
    matrix = np.zeros((len(routes), len(routes)))
    for first in range(0, len(routes), PAIR):  # each pair of ranks is by itself
        pair = slice(first, first + PAIR)
        matrix[pair, pair] = routed_matrix(routes[pair], task.experts, row_bytes)
    return matrix


def counts_bytes(way: str, task: Task) -> np.ndarray:
    """[source, destination] bytes of the exchange of counts: E / n numbers to each rank."""
    ranks = len(task.tokens)
    group = np.arange(ranks) // (PAIR if way == "EP x DP" else ranks)
    together = group[:, None] == group
    return together * task.experts / together.sum(axis=1)[0] * COUNT_BYTES


def layer_bytes(way: str, task: Task, routes: list[np.ndarray]) -> np.ndarray:
    """Of forward and backward: counts, two dispatches, two combines (the transpose)."""
    there = dispatch_bytes(way, task, routes)
    return counts_bytes(way, task) + 2 * (there + there.T)


# --- The same bytes with nothing to find out --------------------------------------------


def same_bytes(task: Task, hidden: int) -> dict[str, Callable[[], None]]:
    """{what: call}, all with the same rows of so many float32, by the routes of `task`.

    "plain" is two all-to-alls whose sizes are known; the layer's two ways also exchange
    counts, and bring rows into the order of experts.
    """
    moe, mine = build("EP", task).moe, my_tokens(task)
    routing = routed(moe.router, mine, task.capacity_factor)
    rows, _ = permute(torch.ones(len(mine), hidden, dtype=torch.float32), routing)
    load = routing.kept_load()
    how = plan(load)
    sizes = totals(how.outgoing), totals(how.incoming)
    calls = {"plain": partial(_plain, rows, *sizes)}
    for name, pairs in (("EP", False), ("EP pairs", True)):
        calls[name] = partial(_by_hand, rows, load, ways_over(None, None, pairs))
    return calls


@torch.no_grad()
def _plain(rows: torch.Tensor, sends: list[int], receives: list[int]) -> None:
    there = rows.new_empty(sum(receives), rows.shape[1])
    dist.all_to_all_single(there, rows, receives, sends)
    dist.all_to_all_single(torch.empty_like(rows), there, sends, receives)


@torch.no_grad()
def _by_hand(rows: torch.Tensor, load: torch.Tensor, ways: tuple) -> None:
    there, back = ways
    how = plan(load)
    back(there(rows, how), how)
