"""What collectives do, as grids of ranks, and the ring all-reduce step by step.

The numbers are chosen so that a sum shows who is in it: piece j of rank r is the digit
j + 1 at the r-th place, so that 303 is piece 2 of ranks 0 and 2. Beyond five ranks such
numbers are too long: "2.5" then stands for piece 5 of rank 2, and a sum is written S5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from course.figures import theme
from course.figures.collective_costs import map_of_fastest, time_against_size
from course.figures.rank_grid import MOST_RANKS, NOTHING, Cell, held, rank_grid

__all__ = [
    "COLLECTIVES",
    "collective_grid",
    "held",
    "map_of_fastest",
    "rank_grid",
    "ring_frames",
    "time_against_size",
]

# more ranks than this, and a sum of digits is longer than its cell
MOST_DIGITS = 5


def digits(rank: int, piece: int) -> int:
    """The number in that piece of that rank: digit piece + 1 at place `rank`."""
    return (piece + 1) * 10**rank


# --- Before and after ---------------------------------------------------------------


def _own(n: int) -> list[list[Cell]]:
    return [[held(_single(n, r, j), r) for j in range(n)] for r in range(n)]


def _single(n: int, rank: int, piece: int) -> int | str:
    return digits(rank, piece) if n <= MOST_DIGITS else f"{rank}.{piece}"


def _sum(n: int, piece: int) -> Cell:
    total = sum(digits(r, piece) for r in range(n))
    return held(total if n <= MOST_DIGITS else f"S{piece}", *range(n))


def _sums(n: int) -> list[Cell]:
    return [_sum(n, j) for j in range(n)]


def _empty(n: int) -> list[Cell]:
    return [NOTHING] * n


def _only(n: int, cell: Cell, column: int) -> list[Cell]:
    return [cell if j == column else NOTHING for j in range(n)]


def _at_root(n: int, root: int, row: list[Cell]) -> list[list[Cell]]:
    return [row if r == root else _empty(n) for r in range(n)]


def _broadcast(n: int, root: int):
    own = _own(n)
    return _at_root(n, root, own[root]), [own[root]] * n


def _reduce(n: int, root: int):
    own = _own(n)
    return own, [_sums(n) if r == root else row for r, row in enumerate(own)]


def _all_reduce(n: int, root: int):
    return _own(n), [_sums(n)] * n


def _scatter(n: int, root: int):
    own = _own(n)
    after = [_only(n, own[root][r], r) for r in range(n)]
    return _at_root(n, root, own[root]), after


def _diagonal(n: int) -> list[list[Cell]]:
    own = _own(n)
    return [_only(n, own[r][r], r) for r in range(n)]


def _gather(n: int, root: int):
    own = _own(n)
    return _diagonal(n), _at_root(n, root, [own[r][r] for r in range(n)])


def _all_gather(n: int, root: int):
    own = _own(n)
    return _diagonal(n), [[own[r][r] for r in range(n)]] * n


def _reduce_scatter(n: int, root: int):
    return _own(n), [_only(n, _sum(n, r), r) for r in range(n)]


def _all_to_all(n: int, root: int):
    own = _own(n)
    return own, [[own[j][r] for j in range(n)] for r in range(n)]


_GRIDS: dict[str, tuple[Callable, str]] = {
    "broadcast": (_broadcast, "every rank gets what rank {root} has"),
    "reduce": (_reduce, "rank {root} gets the sum of all ranks"),
    "all_reduce": (_all_reduce, "every rank gets the sum of all ranks"),
    "scatter": (_scatter, "rank {root} deals one piece to each rank"),
    "gather": (_gather, "rank {root} collects one piece from each rank"),
    "all_gather": (_all_gather, "every rank collects one piece from each rank"),
    "reduce_scatter": (_reduce_scatter, "rank r gets piece r of the sum"),
    "all_to_all": (_all_to_all, "rank r gets piece r of each rank"),
}
COLLECTIVES = tuple(_GRIDS)


def collective_grid(collective: str = "all_reduce", ranks: int = 4, root: int = 0):
    """What each rank holds before and after a collective, as a plotly Figure.

    root counts for broadcast, reduce, scatter and gather only. Raises ValueError.
    """
    if collective not in _GRIDS:
        raise ValueError(f"collective must be one of {list(_GRIDS)}, not {collective!r}")
    _check_ranks(ranks, MOST_RANKS)
    if not 0 <= root < ranks:
        raise ValueError(f"root must be from 0 to {ranks - 1}, not {root}")
    make, words = _GRIDS[collective]
    before, after = make(ranks, root)
    title = f"{collective.replace('_', '-')}: {words.format(root=root)}"
    return rank_grid({"before": before, "after": after}, title=title)


def _check_ranks(ranks: int, most: int) -> None:
    if not 2 <= ranks <= most:
        raise ValueError(f"ranks must be from 2 to {most}, not {ranks}")


# --- The ring, step by step ----------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """One message of a step: a piece goes from a rank to the next."""

    source: int
    destination: int
    piece: int


@dataclass(frozen=True)
class RingStep:
    """The state after one step: held[rank][piece] = the ranks that are in that sum."""

    half: str
    number: int
    moves: tuple[Move, ...]
    held: tuple[tuple[tuple[int, ...], ...], ...]


def ring_steps(ranks: int) -> list[RingStep]:
    """A ring all-reduce by simulation, in the order of `course.parallel.collectives`.

    In step s of the reduce-scatter rank r sends piece r - s - 1, of the all-gather
    piece r - s. A receiver adds in the first half, and overwrites in the second.
    """
    n = ranks
    state = [[(r,)] * n for r in range(n)]
    steps = []
    for half, shift in (("reduce-scatter", 1), ("all-gather", 0)):
        for s in range(n - 1):
            moves = tuple(Move(r, (r + 1) % n, (r - s - shift) % n) for r in range(n))
            sent = [state[m.source][m.piece] for m in moves]
            for m, arrived in zip(moves, sent, strict=True):
                mine = state[m.destination][m.piece] if shift else ()
                state[m.destination][m.piece] = tuple(sorted({*mine, *arrived}))
            steps.append(RingStep(half, s + 1, moves, tuple(map(tuple, state))))
    return steps


def ring_frames(
    ranks: int = 4, values: Sequence[Sequence[float]] | None = None
) -> list[tuple[go.Figure, str]]:
    """Every piece of every rank after every step of a ring all-reduce, with a caption.

    values: the number in each piece of each rank, values[rank][piece]; by default the
        digits of this module, and beyond 5 ranks how many ranks are in a sum

    An arrow is a message of the step. Feed the frames to `widgets.stepper`.
    """
    _check_ranks(ranks, MOST_RANKS)
    if values is not None and {len(values), *map(len, values)} != {ranks}:
        raise ValueError(f"values must be {ranks} rows of {ranks} numbers")
    start = RingStep("start", 0, (), tuple(tuple([(r,)] * ranks) for r in range(ranks)))
    steps = [start, *ring_steps(ranks)]
    return [(_frame(step, ranks, values), _caption(step, ranks)) for step in steps]


def _frame(step: RingStep, n: int, values) -> go.Figure:
    rows = [[_cell(s, j, n, values) for j, s in enumerate(row)] for row in step.held]
    figure = rank_grid({_heading(step, n): rows}, title=_title(n), by="share")
    if step.moves:
        figure.add_trace(_arrows(step.moves, n))
    figure.update_layout(
        yaxis_range=[n - 0.1, -0.9],
        shapes=[_frame_of_cell(m) for m in step.moves],
        height=figure.layout.height + 24,
        showlegend=False,
    )
    return figure


def _title(n: int) -> str:
    return f"Ring all-reduce on {n} ranks: the sums fill, then go round"


def _cell(sources: tuple[int, ...], piece: int, n: int, values) -> Cell:
    whose = f"{len(sources)} of {n} ranks ({', '.join(map(str, sources))})"
    if values is None and n > MOST_DIGITS:
        return Cell(f"{len(sources)}", sources, f"sum of {whose}")
    number = values or [[digits(r, j) for j in range(n)] for r in range(n)]
    total = sum(number[r][piece] for r in sources)
    return Cell(f"{total:g}" if values else f"{total}", sources, f"{total}, sum of {whose}")


def _heading(step: RingStep, n: int) -> str:
    if not step.moves:
        return "before: each rank has only its own numbers"
    return f"{step.half}, step {step.number} of {n - 1}"


def _caption(step: RingStep, n: int) -> str:
    if not step.moves:
        return f"Each rank cuts its buffer into {n} pieces. Rank r will send to rank r + 1."
    shown = step.moves if n <= 4 else step.moves[:2]
    sends = [
        f"rank {m.source} sends piece {m.piece} to rank {m.destination}" for m in shown
    ]
    rest = "" if len(shown) == n else ", and so on round the ring"
    sent = step.number + (n - 1) * (step.half == "all-gather")
    ends = (
        "the receiver adds it" if step.half == "reduce-scatter" else "the receiver keeps it"
    )
    heading = _heading(step, n)
    return (
        f"{heading[0].upper()}{heading[1:]}: {', '.join(sends)}{rest}; {ends}. "
        f"Each rank has now sent {sent}/{n} of its buffer."
    )


def _frame_of_cell(move: Move) -> dict:
    """A frame round the cell that the message changes."""
    x, y = move.piece, move.destination
    edges = {"x0": x - 0.48, "x1": x + 0.48, "y0": y - 0.46, "y1": y + 0.46}
    return {"type": "rect", **edges, "line": {"color": theme.VERMILLION, "width": 2}}


def _arrows(moves: Sequence[Move], n: int) -> go.Scatter:
    """An arrow from row to row; the last rank's leaves below and comes in above."""
    x, y, symbols, hovers = [], [], [], []
    for m in moves:
        wraps = m.destination == 0
        parts = (
            [(n - 0.74, n - 0.32), (-0.86, -0.4)]
            if wraps
            else [(m.source + 0.22, m.source + 0.62)]
        )
        for top, bottom in parts:
            x += [m.piece, m.piece, None]
            y += [top, bottom, None]
            symbols += ["circle", "triangle-down", "circle"]
            hovers += [f"piece {m.piece}: rank {m.source} to rank {m.destination}"] * 3
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        line={"width": 2.5, "color": theme.VERMILLION},
        marker={
            "symbol": symbols,
            "size": [5 if s == "circle" else 13 for s in symbols],
            "color": theme.VERMILLION,
        },
        hovertext=hovers,
        hoverinfo="text",
    )
