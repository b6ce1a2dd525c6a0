"""From token order to expert order, from rank to rank, and back; gradients go with it.

    t   tokens of this rank        k   experts that each visits        h   hidden
    n   ranks of the group, each of which holds e = E / n experts

    announce counts, permute -> dispatch -> (experts) -> combine -> unpermute

A row is one copy of a token. Every exchange is an all-to-all in which each pair of ranks
has its own number of rows, and its backward is the same all-to-all the other way round:
all ranks must take part in forward and in backward, also those without tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.functional import embedding_bag

from course.parallel.moe_router import Routing

# --- Order in one rank ----------------------------------------------------------------


def permute(tokens: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, order): the kept copies of the tokens [t, h], those of expert 0 first.

    rows   [kept, h]  copies for one expert stay in token order
    order  [kept]     which copy each row is: copy i is choice i % k of token i // k
    """
    choices = routing.experts.masked_fill(~routing.kept, routing.expert_count)
    order = choices.flatten().argsort(stable=True)  # dropped ones last
    order = order[: int(routing.kept.sum())]
    return tokens.index_select(0, order // routing.top_k), order


def unpermute(rows: torch.Tensor, order: torch.Tensor, routing: Routing) -> torch.Tensor:
    """[t, h]: each token's rows, weighted and added; zero for one that has none.

    rows  [kept, h]  outputs of the experts, in the order in which `permute` gave them
    """
    kept = routing.kept.flatten()
    row_of = torch.empty_like(routing.experts).flatten()  # of each copy, where it is kept
    row_of[order] = torch.arange(len(order), device=order.device)
    weights = routing.weights.flatten()[kept]
    ends = routing.kept.sum(dim=-1).cumsum(0)
    starts = ends - routing.kept.sum(dim=-1)
    # gathers, weights and adds in one pass: several times as fast as index_add on a CPU
    out = embedding_bag(
        row_of[kept], rows.to(weights.dtype), starts, mode="sum", per_sample_weights=weights
    )
    return out.to(rows.dtype)


def by_column(rows: torch.Tensor, sizes: list[list[int]]) -> list[torch.Tensor]:
    """The rows of each b, from rows that lie in blocks: sizes[a][b] in block [a][b]."""
    if len(sizes[0]) == 1:
        return [rows]  # one column: they lie right as they are
    blocks = iter(rows.split([size for some in sizes for size in some]))
    grid = [[next(blocks) for _ in some] for some in sizes]
    return [end_to_end(column) for column in zip(*grid, strict=True)]


def by_row(columns: list[torch.Tensor], sizes: list[list[int]]) -> torch.Tensor:
    """The way back: what `by_column` gave, as one tensor in its order."""
    if len(columns) == 1:
        return columns[0]
    each = zip(columns, transposed(sizes), strict=True)
    grid = zip(*[column.split(some) for column, some in each], strict=True)
    return end_to_end([block for some in grid for block in some])


def end_to_end(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


# --- Between ranks --------------------------------------------------------------------


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sends, receives, group):
        ctx.sends, ctx.receives, ctx.group = sends, receives, group
        out = rows.new_empty(sum(receives), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), receives, sends, group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        # what I was sent goes back to where it came from
        back = all_to_all(gradient, ctx.receives, ctx.sends, ctx.group)
        return back, None, None, None


def all_to_all(
    rows: torch.Tensor, sends: list[int], receives: list[int], group=None
) -> torch.Tensor:
    """Rows from every rank, in rank order; the gradient goes the way back.

    sends[r]:    so many of my rows are for rank r, one rank's after the other's
    receives[r]: so many come from rank r
    """
    return _AllToAll.apply(rows, sends, receives, group)


def two_level_all_to_all(
    rows: torch.Tensor, sends: list[int], receives: list[int], *, inside, across
) -> torch.Tensor:
    """`all_to_all` in two steps: across nodes on my own rail, then inside the node.

    The rows for all g ranks of another node go to my counterpart there in one message,
    who hands them on: a rank has N - 1 messages that leave the node, not (N - 1) g, with
    the same bytes. The fast wires inside carry what they need not in a flat all-to-all.

    inside: group of my node's g ranks; across: of the ranks with my place in all N nodes.
    Ranks are counted node by node. `course.parallel.hierarchical.node_groups` makes both.
    """
    g = dist.get_world_size(inside)
    leaving = grid(sends, g)  # [node to][place to]
    arriving = grid(receives, g)  # [node from][place from]
    passing = exchange_counts(torch.tensor(leaving), across)  # [node from][place to]
    rows = all_to_all(rows, totals(leaving), totals(passing), across)
    rows = end_to_end(by_column(rows, passing))
    by_place = transposed(arriving)  # [place from][node from]
    rows = all_to_all(rows, totals(transposed(passing)), totals(by_place), inside)
    return end_to_end(by_column(rows, by_place))


def exchange_counts(counts: torch.Tensor, group=None) -> list[list[int]]:
    """Row r of counts [n, any] goes to rank r. Returns the rows that came, by rank."""
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts, group=group)
    return incoming.tolist()


# --- Dispatch and combine -------------------------------------------------------------

Exchange = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]


@dataclass(frozen=True)
class Plan:
    """How many rows go where, known to both sides before any is sent.

    outgoing  [n][e]  my rows for each expert, by rank
    incoming  [n][e]  rows of each rank for my experts
    """

    outgoing: list[list[int]]
    incoming: list[list[int]]


def announce(load: torch.Tensor, group=None) -> Callable[[], Plan]:
    """Begin to tell every rank how many rows to expect; call what it returns to wait.

    load  [E]  my rows for each expert. They are known before the rows are sorted
    """
    outgoing = load.view(dist.get_world_size(group), -1)
    incoming = torch.empty_like(outgoing)
    work = dist.all_to_all_single(incoming, outgoing, group=group, async_op=True)

    def finish() -> Plan:
        work.wait()
        return Plan(outgoing.tolist(), incoming.tolist())

    return finish


def plan(load: torch.Tensor, group=None) -> Plan:
    """`announce`, and wait for it."""
    return announce(load, group)()


def dispatch(rows: torch.Tensor, how: Plan, exchange: Exchange) -> list[torch.Tensor]:
    """Send rows, sorted by expert, to the experts' ranks.

    Returns the rows for each of my e experts; those of one rank stay in their order.
    """
    arrived = exchange(rows, totals(how.outgoing), totals(how.incoming))
    return by_column(arrived, how.incoming)


def combine(outputs: list[torch.Tensor], how: Plan, exchange: Exchange) -> torch.Tensor:
    """Send the outputs of my e experts back: they arrive as `dispatch`'s rows left."""
    leaving = by_row(outputs, how.incoming)
    return exchange(leaving, totals(how.incoming), totals(how.outgoing))


def grid(sizes: list[int], columns: int) -> list[list[int]]:
    return [sizes[i : i + columns] for i in range(0, len(sizes), columns)]


def transposed(sizes: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*sizes, strict=True)]


def totals(sizes: list[list[int]]) -> list[int]:
    return [sum(some) for some in sizes]
