"""Who swaps what with whom: butterflies and two levels, as grids of ranks.

A cell's number says how many ranks are in that sum; yellow is finished. Colours as in
`course.figures.rank_grid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from course.figures import theme
from course.figures.rank_grid import Cell, rank_grid

CHOICES = (2, 4, 8, 16)
LANE = 0.05  # between two lines that join partners, as a share of all cells' width
State = tuple[tuple[frozenset[int], ...], ...]  # [rank][piece] = the ranks in that sum


@dataclass(frozen=True)
class Swap:
    """One step: every rank swaps with the rank `distance` away.

    given:  given[rank] = the pieces that it sends
    held:   the state after the step
    """

    words: str
    distance: int
    given: tuple[tuple[int, ...], ...]
    held: State

    def changed(self, rank: int) -> tuple[int, ...]:
        """The pieces of this rank that its partner sent."""
        return self.given[rank ^ self.distance] if self.distance else ()


def _start(ranks: int, pieces: int) -> Swap:
    held = tuple(tuple([frozenset({r})] * pieces) for r in range(ranks))
    return Swap("before: each rank has only its own numbers", 0, ((),) * ranks, held)


def _swap(before: Swap, words: str, distance: int, given, *, adds: bool) -> Swap:
    held = [list(row) for row in before.held]
    for r in range(len(held)):
        for piece in given[r ^ distance]:
            arrived = before.held[r ^ distance][piece]
            held[r][piece] = held[r][piece] | arrived if adds else arrived
    return Swap(words, distance, tuple(map(tuple, given)), tuple(map(tuple, held)))


def doubling_steps(ranks: int) -> list[Swap]:
    """Recursive doubling: all of the buffer (one piece) at distances 1, 2, 4, ..."""
    _check(ranks)
    steps = [_start(ranks, 1)]
    for bit in range(ranks.bit_length() - 1):
        words = f"step {bit + 1}: swap all with the rank {1 << bit} away, and add"
        steps.append(_swap(steps[-1], words, 1 << bit, [(0,)] * ranks, adds=True))
    return steps


def halving_doubling_steps(ranks: int, first: str = "near") -> list[Swap]:
    """Halving, then doubling back, as `course.parallel.halving_doubling` has them.

    first: "near" begins at distance 1, "far" at ranks / 2
    """
    _check(ranks)
    if first not in ("near", "far"):
        raise ValueError(f'first must be "near" or "far", not {first!r}')
    distances = [1 << bit for bit in range(ranks.bit_length() - 1)]
    distances = distances if first == "near" else distances[::-1]
    steps, own, back = [_start(ranks, ranks)], [range(ranks)] * ranks, []
    for distance in distances:
        keep, give = _halves(own, distance)
        words = f"halving, distance {distance}: send {_share(give, ranks)}, add what comes"
        steps.append(_swap(steps[-1], words, distance, give, adds=True))
        back.append((distance, keep))
        own = keep
    for distance, have in reversed(back):
        words = (
            f"doubling, distance {distance}: send {_share(have, ranks)}, keep what comes"
        )
        steps.append(_swap(steps[-1], words, distance, have, adds=False))
    return steps


def _halves(own: list[range], distance: int) -> tuple[list[range], list[range]]:
    """(kept, given) pieces of each rank: the upper half stays where the bit is set."""
    keep, give = [], []
    for rank, pieces in enumerate(own):
        low, high = pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :]
        kept, given = (high, low) if rank & distance else (low, high)
        keep.append(kept)
        give.append(given)
    return keep, give


def _share(pieces: list[range], ranks: int) -> str:
    return f"M/{ranks // len(pieces[0])}"


def _check(ranks: int) -> None:
    if ranks not in CHOICES:
        raise ValueError(f"ranks must be one of {list(CHOICES)}, not {ranks}")


def doubling_frames(ranks: int = 8) -> list[tuple[go.Figure, str]]:
    """Recursive doubling, one frame a step, for `widgets.stepper`."""
    title = f"Recursive doubling on {ranks} ranks"
    sent = [f"{step} M" for step in range(ranks.bit_length())]
    return _frames(doubling_steps(ranks), title, sent, "all of M")


def halving_doubling_frames(ranks: int = 8, first: str = "near") -> list:
    """Recursive halving and doubling, one frame a step, for `widgets.stepper`."""
    steps = halving_doubling_steps(ranks, first)
    total, sent = 0, []
    for step in steps:
        total += len(step.given[0])
        sent.append(f"{total}/{ranks} M")
    title = f"Recursive halving and doubling on {ranks} ranks, {first} first"
    return _frames(steps, title, sent, "piece")


def _frames(steps: Sequence[Swap], title: str, sent: list[str], column: str) -> list:
    most = max(len(_lanes(step)) for step in steps)
    return [
        (
            _frame(step, title, most, column),
            f"{_sentence(step.words)} Sent so far: {so_far}.",
        )
        for step, so_far in zip(steps, sent, strict=True)
    ]


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _frame(step: Swap, title: str, lanes: int, column: str) -> go.Figure:
    rows = [[_cell(sources) for sources in row] for row in step.held]
    figure = rank_grid(
        {step.words.split(":")[0]: rows}, title=title, column=column, by="share"
    )
    pieces = len(rows[0])
    figure.add_trace(_partners(step, pieces))
    width = pieces + 0.2 + LANE * pieces * lanes
    share = 0.5 if pieces == 1 else 1.0
    figure.update_layout(
        shapes=[_around(r, p) for r in range(len(rows)) for p in step.changed(r)],
        xaxis={"range": [-0.5, width - 0.5], "domain": [0, share]},
        showlegend=False,
    )
    # the heading stands over the cells, not over the lines beside them
    figure.update_annotations(x=share * pieces / width / 2, xanchor="center")
    if pieces == 1:
        figure.update_layout(xaxis_ticktext=[column])
    return figure


def _cell(sources: frozenset[int]) -> Cell:
    ranks = tuple(sorted(sources))
    return Cell(str(len(ranks)), ranks, f"sum of ranks {', '.join(map(str, ranks))}")


def _around(rank: int, piece: int) -> dict:
    edges = {"x0": piece - 0.48, "x1": piece + 0.48, "y0": rank - 0.46, "y1": rank + 0.46}
    return {"type": "rect", **edges, "line": {"color": theme.VERMILLION, "width": 2}}


def _lanes(step: Swap) -> list[list[int]]:
    """The lower rank of each pair, in lanes where no two pairs overlap."""
    if not step.distance:
        return []
    pairs = [r for r in range(len(step.held)) if not r & step.distance]
    return [[r for r in pairs if r % step.distance == k] for k in range(step.distance)]


def _partners(step: Swap, pieces: int) -> go.Scatter:
    """Lines beside the grid that join the two ranks of each pair."""
    x, y = [], []
    for k, lane in enumerate(_lanes(step)):
        at = pieces - 0.38 + LANE * pieces * k
        for low in lane:
            x += [at, at, None]
            y += [low, low + step.distance, None]
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        line={"width": 2, "color": theme.VERMILLION},
        marker={"size": 7, "color": theme.VERMILLION},
        hoverinfo="skip",
    )


# --- Two levels -------------------------------------------------------------------------


def hierarchical_picture(gpus: int = 4, nodes: int = 2) -> go.Figure:
    """What each rank holds after each of the three phases.

    Raises ValueError unless there are 2 to 8 gpus, 2 or more nodes, and at most 16 ranks.
    """
    if not 2 <= gpus <= 8 or nodes < 2 or gpus * nodes > 16:
        raise ValueError(f"{nodes} nodes of {gpus} gpus do not fit this picture")
    n = gpus * nodes
    everyone = frozenset(range(n))
    scattered = [_owned(r, gpus, _node(r, gpus)) for r in range(n)]
    panels = {"reduce-scatter inside": scattered}
    panels["all-reduce across"] = [_owned(r, gpus, everyone) for r in range(n)]
    panels["all-gather inside"] = [[everyone] * gpus] * n
    rows = {
        name: [[_held(c) for c in row] for row in held] for name, held in panels.items()
    }
    title = f"Hierarchical all-reduce, {nodes} nodes of {gpus} GPUs: ranks in each sum"
    figure = rank_grid(rows, title=title, by="share")
    figure.update_annotations(xanchor="center")
    for place in range(len(rows)):
        figure.update_layout({f"xaxis{place + 1 if place else ''}": _narrow(gpus)})
        figure.add_shape(**_border(gpus, place))
    return figure


def _narrow(gpus: int) -> dict:
    return {"ticktext": [str(j) for j in range(gpus)], "title": {"text": "piece"}}


def _border(gpus: int, place: int) -> dict:
    at = str(place + 1) if place else ""
    line = {"color": theme.INK, "width": 1.5}
    ends = {"x0": -0.5, "x1": gpus - 0.5, "y0": gpus - 0.5, "y1": gpus - 0.5}
    return {"type": "line", "xref": f"x{at}", "yref": f"y{at}", "line": line, **ends}


def _node(rank: int, gpus: int) -> frozenset[int]:
    first = rank // gpus * gpus
    return frozenset(range(first, first + gpus))


def _owned(rank: int, gpus: int, sources: frozenset[int]) -> list[frozenset[int]]:
    """Only piece `rank % gpus` counts now; what else is there is left half summed."""
    return [sources if piece == rank % gpus else frozenset() for piece in range(gpus)]


def _held(sources: frozenset[int]) -> Cell:
    cell = _cell(sources)
    return cell if sources else replace(cell, text="", hover="half summed, not used again")
