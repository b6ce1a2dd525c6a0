"""Tokens on their way to experts and home, copy by copy: frames for `widgets.stepper`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import plotly.graph_objects as go

from course.costs.moe import check_routing, in_order
from course.figures.rank_grid import NOTHING, Cell, rank_grid

MOST_TOKENS = len(ascii_lowercase)
Rows = list[list[Cell]]


@dataclass(frozen=True)
class Copy:
    """A token on its way to one expert. source: the token's rank; home: the expert's."""

    name: str
    source: int
    expert: int
    home: int

    def before(self) -> Cell:
        text = f"{self.name}→{self.expert}"
        return Cell(text, (self.source,), f"token {self.name} for expert {self.expert}")

    def after(self) -> Cell:
        said = f"what expert {self.expert} made of token {self.name}"
        return Cell(f"{self.expert}({self.name})", (self.source,), said)


def moving_frames(
    chosen: Sequence[Sequence[Sequence[int]]], experts: int
) -> list[tuple[go.Figure, str]]:
    """What each rank holds, from its tokens to its outputs, one frame a step.

    chosen: for each rank, for each of its tokens, its experts, the best first: so
            `routing.experts.tolist()` of every rank. Ranks may differ in tokens
    experts: E, of which rank r of n holds E/n from r E/n on

    Tokens are called a, b, c, ... from rank 0 on; a cell has the colour of the token's
    rank. Raises ValueError for more than 26 tokens or experts that are not there.
    """
    ranks, names = len(chosen), _names(chosen)
    copies = _copies(chosen, names, in_order(experts, ranks))
    kept = [[Cell(n, (r,), f"token {n}") for n in names[r]] for r in range(ranks)]
    done = [[_output(n, r) for n in names[r]] for r in range(ranks)]
    states = [
        (kept, "Each rank has its own tokens."),
        *_out(copies, ranks, experts),
        *_back(copies, ranks),
        (done, "Un-permute: each token adds up its rows, by the router's weights."),
    ]
    wide = max(len(row) for rows, _ in states for row in rows)
    return [(_frame(rows, wide, i), words) for i, (rows, words) in enumerate(states)]


def _names(chosen) -> list[str]:
    counts = [len(tokens) for tokens in chosen]
    if not 1 <= sum(counts) <= MOST_TOKENS:
        raise ValueError(f"chosen must have 1 to {MOST_TOKENS} tokens, not {sum(counts)}")
    starts = [sum(counts[:r]) for r in range(len(counts))]
    return [ascii_lowercase[s : s + n] for s, n in zip(starts, counts, strict=True)]


def _copies(chosen, names, homes: list[int]) -> list[Copy]:
    """In token order, a token's first choice first."""
    found = []
    for source, tokens in enumerate(chosen):
        for name, picks in zip(names[source], tokens, strict=True):
            check_routing(len(picks), len(homes))
            if not all(0 <= e < len(homes) for e in picks):
                raise ValueError(
                    f"chosen must name experts from 0 to {len(homes) - 1}, not {picks}"
                )
            found += [Copy(name, source, e, homes[e]) for e in picks]
    return found


def _laid_out(copies, ranks: int, at: str, key: Callable, cell: Callable) -> Rows:
    """The cells of each rank; at: "source" or "home", where the copies are by now."""
    ordered = sorted(copies, key=key)
    return [[cell(c) for c in ordered if getattr(c, at) == r] for r in range(ranks)]


def _by_expert(copy: Copy):
    return copy.expert


def _as_sent(copy: Copy):
    return copy.source, copy.expert


def _out(copies, ranks: int, experts: int) -> list[tuple[Rows, str]]:
    lay = lambda at, key: _laid_out(copies, ranks, at, key, Copy.before)
    each = experts // ranks
    return [
        (lay("source", lambda c: 0), "Route: a copy of the token for each of its experts."),
        (lay("source", _by_expert), "Permute: copies for one expert now lie together."),
        (
            lay("home", _as_sent),
            f"Dispatch, the first all-to-all: a rank gets copies for its {each} experts, "
            f"those from rank 0 first. {_moved(copies)}",
        ),
        (lay("home", _by_expert), "Each rank sorts what came, by expert."),
    ]


def _back(copies, ranks: int) -> list[tuple[Rows, str]]:
    lay = lambda at, key: _laid_out(copies, ranks, at, key, Copy.after)
    return [
        (lay("home", _by_expert), "The experts work. Some ranks have more to do."),
        (
            lay("home", _as_sent),
            "Each rank puts its rows back into the order of arrival.",
        ),
        (lay("source", _by_expert), "Combine, the second all-to-all: all rows are home."),
    ]


def _moved(copies) -> str:
    moved = sum(c.source != c.home for c in copies)
    return f"{moved} of {len(copies)} copies change their rank."


def _output(name: str, rank: int) -> Cell:
    return Cell(f"y({name})", (rank,), f"the layer's output for token {name}")


def _frame(rows: Rows, wide: int, step: int) -> go.Figure:
    names = ("tokens", "route", "permute", "dispatch", "sort by expert")
    names += ("experts", "sort by rank", "combine", "un-permute")
    filled = [row + [NOTHING] * (wide - len(row)) for row in rows]
    title = "From tokens to experts and home"
    return rank_grid({names[step]: filled}, title=title, column="row")
