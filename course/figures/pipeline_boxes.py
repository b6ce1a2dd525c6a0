"""Work of a pipeline as boxes in rows, one row a rank: few traces, however many boxes.

Each kind of work has a colour, a hatch and a height, so that no one of them is needed
alone. All boxes of one kind and chunk are one path, so that thousands redraw at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from course.figures import theme
from course.figures.looks import IDLE
from course.parallel.schedules import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

# (rank, kind, stage, micro_batch, start_s, end_s)
Span = tuple[int, str, int, int, float, float]

KINDS = (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
NAMES = {
    FORWARD: "forward",
    BACKWARD: "backward",
    INPUT_GRADIENT: "input gradient",
    WEIGHT_GRADIENT: "weight gradient",
}
# colour, hatch, and share of the row's height
LOOK = {
    FORWARD: (theme.BLUE, "", 1.0),
    BACKWARD: (theme.SKY, "/", 1.0),
    INPUT_GRADIENT: (theme.SKY, "\\", 1.0),
    WEIGHT_GRADIENT: (theme.ORANGE, "x", 0.6),
}
FILL = 0.84  # of a row's height, which is 1
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# labels and what is said on pointing: no more than this many, or the page slows down
MOST_LABELS, MOST_HOVERS = 600, 4000
LETTER_PX, LEAST_ROW_PX = 6.4, 15


@dataclass(frozen=True)
class Boxes:
    """Pieces of work, one an entry of each array.

    kind:  the place in KINDS
    chunk: which of the stages of its rank, 0 for the first in the model
    """

    ranks: int
    chunks: int
    rank: np.ndarray
    kind: np.ndarray
    stage: np.ndarray
    chunk: np.ndarray
    micro_batch: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def makespan_s(self) -> float:
        """When the last one ends."""
        return float(self.end_s.max(initial=0.0))

    @property
    def busy_s(self) -> np.ndarray:
        """Seconds of work of each rank."""
        seconds = self.end_s - self.start_s
        return np.bincount(self.rank, weights=seconds, minlength=self.ranks)

    @property
    def bubble_of_total(self) -> float:
        """Idle share of all ranks' time, from 0 to the last end."""
        total_s = self.makespan_s * self.ranks
        return 1 - float(self.busy_s.sum()) / total_s if total_s else 0.0

    def only(self, chosen: np.ndarray) -> Boxes:
        """Those where chosen is true."""
        kept = (
            getattr(self, f)[chosen]
            for f in ("rank", "kind", "stage", "chunk", "micro_batch", "start_s", "end_s")
        )
        return Boxes(self.ranks, self.chunks, *kept)


def boxes_of(timeline) -> Boxes:
    """The boxes of a `schedule_time.Timeline`."""
    schedule = timeline.schedule
    actions = [a for order in schedule.orders for a in order]
    code = {kind: i for i, kind in enumerate(KINDS)}
    stage = np.array([a.stage for a in actions], np.int32)
    return Boxes(
        schedule.ranks,
        schedule.chunks,
        np.repeat(np.arange(schedule.ranks), [len(order) for order in schedule.orders]),
        np.array([code[a.kind] for a in actions], np.int32),
        stage,
        _chunk_of_stage(schedule.owner)[stage],
        np.array([a.micro_batch for a in actions], np.int32),
        np.concatenate([np.asarray(s, float) for s in timeline.start_s]),
        np.concatenate([np.asarray(e, float) for e in timeline.end_s]),
    )


def _chunk_of_stage(owner: Sequence[int]) -> np.ndarray:
    """For each stage, how many earlier stages its rank holds."""
    held: dict[int, int] = {}
    chunks = []
    for rank in owner:
        chunks.append(held.get(rank, 0))
        held[rank] = chunks[-1] + 1
    return np.array(chunks, np.int32)


def boxes_from_spans(spans: Iterable[Span], *, ranks: int | None = None) -> Boxes:
    """The boxes of measured work; the first start of all becomes 0.

    ranks: how many there are (default: up to the largest named)
    Raises ValueError where there is no span, a kind or rank that there is not, or a
    span that ends before it starts.
    """
    spans = list(spans)
    if not spans:
        raise ValueError("spans must hold one span or more")
    for span in spans:
        _check_span(span, ranks)
    rank, kind, stage, micro_batch, start_s, end_s = map(list, zip(*spans, strict=True))
    held = {r: sorted({s[2] for s in spans if s[0] == r}) for r in set(rank)}
    first_s = min(start_s)
    return Boxes(
        ranks or max(rank) + 1,
        max(map(len, held.values())),
        np.array(rank, np.int32),
        np.array([KINDS.index(k) for k in kind], np.int32),
        np.array(stage, np.int32),
        np.array([held[r].index(s) for r, s in zip(rank, stage, strict=True)], np.int32),
        np.array(micro_batch, np.int32),
        np.array(start_s) - first_s,
        np.array(end_s) - first_s,
    )


def _check_span(span: Span, ranks: int | None) -> None:
    if span[1] not in KINDS:
        raise ValueError(f"a span's kind must be one of {KINDS}, not {span[1]!r}")
    if not 0 <= span[0] < (ranks or span[0] + 1):
        rule = f"from 0 to {ranks - 1}" if ranks else "0 or more"
        raise ValueError(f"a span's rank must be {rule}, not {span[0]}")
    if span[5] < span[4]:
        raise ValueError(f"a span must not end before it starts: {span}")


_NAME = re.compile(r"([FBIW])(\d+)@(\d+)")


def spans_of(events: Iterable) -> list[Span]:
    """The pipeline's work among a run's events: those named like an action, "F3@1"."""
    named = ((e, _NAME.fullmatch(e.name)) for e in events)
    return [
        (e.rank, found[1], int(found[3]), int(found[2]), e.start_s, e.end_s)
        for e, found in named
        if found
    ]


# --- Traces ---------------------------------------------------------------------------


def traces(boxes: Boxes, second: float, row_px: float, plot_px: float, **place) -> list:
    """Idle rows, boxes, what they say, and their numbers where there is room.

    second:  what one second is on the x axis
    row_px, plot_px: the height of a row and the width of the axis, for the labels
    place:   for every trace, e.g. yaxis="y2", showlegend=False
    """
    x_px = plot_px / ((boxes.makespan_s * second) or 1)
    drawn = [_idle(boxes, second, place)]
    for kind, name in enumerate(KINDS):
        mine = boxes.only(boxes.kind == kind)
        for chunk in range(boxes.chunks if len(mine) else 0):
            one = mine.only(mine.chunk == chunk)
            drawn.append(_filled(one, name, chunk, second, x_px, place))
        if len(mine) and len(boxes) <= MOST_HOVERS:
            drawn.append(_hover(mine, name, second, place))
    return drawn + _labels(boxes, second, row_px, x_px, place)


def _idle(boxes: Boxes, second: float, place: dict) -> dict:
    ranks, end = np.arange(boxes.ranks), np.full(boxes.ranks, boxes.makespan_s * second)
    path = _path(ranks * 0.0, end, ranks - FILL / 2, ranks + FILL / 2)
    return _shape("idle", IDLE, "", path, theme.GRID, 0.5) | {"legendrank": 2000} | place


def _filled(boxes, kind: str, chunk: int, second: float, x_px: float, place) -> dict:
    """All boxes of one kind and chunk, as one path."""
    color, hatch, height = LOOK[kind]
    bottom = boxes.rank + FILL / 2
    start, end = boxes.start_s * second, boxes.end_s * second
    path = _path(start, end, bottom - FILL * height, bottom)
    # a light edge parts neighbours, but would swallow a box of a pixel or two
    widest_px = float((end - start).max(initial=0)) * x_px
    edge_px = 1.0 if widest_px > 6 else 0.5 if widest_px > 3 else 0
    shade = _shade(color, chunk, boxes.chunks)
    trace = _shape(NAMES[kind], shade, hatch, path, theme.CARD, edge_px)
    trace |= {"legendgroup": kind, "legendrank": 1000 + KINDS.index(kind)} | place
    return trace if chunk == 0 else trace | {"showlegend": False}


def _shade(color: str, chunk: int, chunks: int) -> str:
    """Later chunks of a rank are paler."""
    return theme.tint(color, 1 - 0.45 * chunk / max(1, chunks - 1))


def _path(left, right, top, bottom) -> tuple[np.ndarray, np.ndarray]:
    """x and y of rectangles, one after the other, with a gap after each."""
    gap = np.full(len(left), np.nan)
    x = np.stack([left, left, right, right, gap], axis=1)
    y = np.stack([bottom, top, top, bottom, gap], axis=1)
    return x.ravel().astype(np.float32), y.ravel().astype(np.float32)


def _shape(name: str, color: str, hatch: str, path, edge: str, edge_px: float) -> dict:
    pattern = {
        "shape": hatch,
        "fgcolor": "rgba(0,0,0,0.4)",
        "bgcolor": color,
        "size": 7,
        "solidity": 0.16,
    }
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": path[0],
        "y": path[1],
        "fill": "toself",
        "fillcolor": color,
        "line": {"color": edge, "width": edge_px, "simplify": False},
        "hoverinfo": "skip",
    } | ({"fillpattern": pattern} if hatch else {})


def _hover(boxes: Boxes, kind: str, second: float, place: dict) -> dict:
    """Points in the middle of boxes that are not drawn, only pointed at."""
    start, end = boxes.start_s * second, boxes.end_s * second
    data = np.stack([boxes.micro_batch, boxes.stage, start, end], axis=1)
    return {
        "type": "scatter",
        "mode": "none",
        "x": ((start + end) / 2).astype(np.float32),
        "y": boxes.rank.astype(np.int16),
        "customdata": data.astype(np.float32),
        "hovertemplate": f"<b>{NAMES[kind]}</b> of micro-batch %{{customdata[0]}}"
        "<br>rank %{y}, stage %{customdata[1]}"
        "<br>%{customdata[2]:.4g} to %{customdata[3]:.4g}<extra></extra>",
    } | (place | {"showlegend": False})


def _labels(boxes: Boxes, second: float, row_px: float, x_px: float, place) -> list[dict]:
    """Micro-batch numbers, with a letter for the chunk where a rank holds several."""
    width_px = (boxes.end_s - boxes.start_s) * second * x_px
    digits = np.char.str_len(boxes.micro_batch.astype(str)) + (boxes.chunks > 1)
    fits = width_px >= digits * LETTER_PX + 2
    if row_px < LEAST_ROW_PX or not 0 < fits.sum() <= MOST_LABELS:
        return []
    shown = boxes.only(fits)
    middle = (shown.start_s + shown.end_s) / 2 * second
    low = (1 - np.array([LOOK[KINDS[k]][2] for k in shown.kind])) * FILL / 2
    letters = LETTERS if boxes.chunks > 1 else [""] * boxes.chunks
    pairs = zip(shown.micro_batch, shown.chunk, strict=True)
    dark = (shown.kind > 0) | (shown.chunk > 0)
    return [
        {
            "type": "scatter",
            "mode": "text",
            "x": middle.astype(np.float32),
            "y": (shown.rank + low).astype(np.float32),
            "text": [f"{m}{letters[c % 26]}" for m, c in pairs],
            "textfont": {
                "size": 11,
                "color": [theme.INK if d else theme.CARD for d in dark],
            },
            "hoverinfo": "skip",
        }
        | (place | {"showlegend": False})
    ]
