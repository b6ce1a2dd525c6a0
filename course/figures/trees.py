"""Trees of ranks as pictures: who hands to whom, and how much each rank must send.

M  bytes in the buffer. Every edge carries its tree's share of M up and again down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from course.figures import theme
from course.parallel.trees import Seat, binary_tree, double_tree

MOST_RANKS = 32
KINDS = {
    "binomial": "a binomial tree",
    "binary": "a binary tree",
    "double": "a double binary tree",
}


def binomial_tree(ranks: int) -> list[Seat]:
    """The tree of `tree_reduce`: a rank's parent is the rank without its lowest set bit."""
    parents = [rank & (rank - 1) for rank in range(ranks)]
    children = [[r for r in range(1, ranks) if parents[r] == p] for p in range(ranks)]
    return [
        Seat(parents[rank] if rank else None, tuple(mine))
        for rank, mine in enumerate(children)
    ]


def sent_by_rank(trees: Sequence[Sequence[Seat]]) -> list[float]:
    """What each rank sends in an all-reduce, in units of M: up once, down to each child."""
    ranks = range(len(trees[0]))
    edges = [
        sum(len(t[r].children) + (t[r].parent is not None) for t in trees) for r in ranks
    ]
    return [count / len(trees) for count in edges]


def tree_picture(kind: str = "double", ranks: int = 8) -> tuple[go.Figure, str]:
    """One tree, or both of a double tree one above the other; rank r stands at x = r.

    kind: "binomial", "binary" or "double"
    Dark circles have children, light ones are leaves. Raises ValueError.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {list(KINDS)}, not {kind!r}")
    if not 2 <= ranks <= MOST_RANKS:
        raise ValueError(f"ranks must be from 2 to {MOST_RANKS}, not {ranks}")
    trees = _trees(kind, ranks)
    sent = sent_by_rank(trees)
    placed = [_Placed(tree, _depths(tree)) for tree in trees]
    rows = sum(p.rows for p in placed) + len(placed) - 1
    figure = theme.new_figure(
        f"{ranks} ranks in {KINDS[kind]}",
        height=90 + 46 * rows,
        showlegend=False,
        margin_b=16,
    )
    top = 0
    for tree in placed:
        figure.add_traces([_edges(tree, top), *_circles(tree, top, sent)])
        top += tree.rows + 1
    axis = {"showgrid": False, "ticks": "", "showticklabels": False}
    figure.update_xaxes(range=[-0.7, ranks - 0.3], **axis)
    figure.update_yaxes(range=[rows - 0.4, -0.6], **axis)
    return figure, _words(trees, sent)


def _trees(kind: str, ranks: int) -> list[list[Seat]]:
    if kind == "double":
        return list(double_tree(ranks))
    return [binomial_tree(ranks) if kind == "binomial" else binary_tree(ranks)]


@dataclass(frozen=True)
class _Placed:
    tree: Sequence[Seat]
    depths: Sequence[int]

    @property
    def rows(self) -> int:
        return max(self.depths) + 1


def _depths(tree: Sequence[Seat]) -> list[int]:
    def depth(rank: int) -> int:
        parent = tree[rank].parent
        return 0 if parent is None else depth(parent) + 1

    return [depth(rank) for rank in range(len(tree))]


def _edges(placed: _Placed, top: int) -> go.Scatter:
    x, y = [], []
    for rank, seat in enumerate(placed.tree):
        if seat.parent is not None:
            x += [rank, seat.parent, None]
            y += [top + placed.depths[rank], top + placed.depths[seat.parent], None]
    line = {"color": theme.MUTED, "width": 2}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip")


def _circles(placed: _Placed, top: int, sent: list[float]) -> list[go.Scatter]:
    """Inner ranks and leaves apart, so that each has its own colours."""
    looks = (
        (True, theme.BLUE, "#FFFFFF"),
        (False, theme.tint(theme.BLUE, 0.15), theme.INK),
    )
    made = []
    for inner, fill, ink in looks:
        ranks = [r for r, seat in enumerate(placed.tree) if bool(seat.children) == inner]
        made.append(
            go.Scatter(
                x=ranks,
                y=[top + placed.depths[r] for r in ranks],
                mode="markers+text",
                marker={
                    "size": 26,
                    "color": fill,
                    "line": {"color": theme.BLUE, "width": 1},
                },
                text=[str(r) for r in ranks],
                textfont={"color": ink, "size": 12},
                hovertext=[_hover(r, placed.tree[r], sent[r]) for r in ranks],
                hoverinfo="text",
            )
        )
    return made


def _hover(rank: int, seat: Seat, sent: float) -> str:
    above = "the root" if seat.parent is None else f"under rank {seat.parent}"
    below = ", ".join(map(str, seat.children))
    below = f"over {below}" if below else "a leaf"
    return f"rank {rank}: {above}, {below}; sends {sent:g} M in all"


def _words(trees: list[list[Seat]], sent: list[float]) -> str:
    busiest = [r for r, amount in enumerate(sent) if amount == max(sent)]
    some = ", ".join(map(str, busiest[:6])) + (" ..." if len(busiest) > 6 else "")
    inner = [sum(bool(t[r].children) for t in trees) for r in range(len(sent))]
    word = "rank" if len(busiest) == 1 else "ranks"
    busy = f"Most is sent by {word} {some}: {max(sent):g} M. "
    if len(trees) == 1:
        return busy + f"{inner.count(0)} of {len(sent)} ranks have no children."
    twice = [f"Rank {r}" for r, both in enumerate(inner) if both == 2] or ["No rank"]
    return busy + f"{', '.join(twice)} has children in both trees."
