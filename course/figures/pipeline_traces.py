"""Work of a pipeline drawn as boxes in rows, one row a rank: few traces, many boxes.

Each kind of work has a colour, a hatch and a height, so that no one of them is needed
alone. All boxes of one kind and chunk are one path, so that thousands redraw at once.
"""

from __future__ import annotations

import numpy as np

from course.figures import theme
from course.figures.looks import IDLE
from course.figures.pipeline_boxes import KINDS, Boxes
from course.parallel.schedules import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

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
MOST_LABELS = 600  # or the page slows down
LETTER_PX, LEAST_ROW_PX = 6.4, 15


def traces(
    boxes: Boxes,
    second: float,
    unit: str,
    row_px: float,
    plot_px: float,
    *,
    hovers: bool,
    **place,
) -> list[dict]:
    """Idle rows, boxes, what they say, and their numbers where there is room.

    second, unit: what one second is on the x axis, and the name of that axis' unit
    row_px, plot_px: the height of a row and the width of the axis, for the labels
    hovers:  whether boxes say what they are where they are pointed at
    place:   for every trace, e.g. yaxis="y2", showlegend=False
    """
    x_px = plot_px / ((boxes.makespan_s * second) or 1)
    drawn = [_idle(boxes, second, place)]
    for kind, name in enumerate(KINDS):
        mine = boxes.only(boxes.kind == kind)
        for chunk in range(boxes.chunks if len(mine) else 0):
            one = mine.only(mine.chunk == chunk)
            drawn.append(_filled(one, name, chunk, second, x_px, place))
        if hovers and len(mine):
            drawn.append(_hover(mine, name, second, unit, place))
    return drawn + _labels(boxes, second, row_px, x_px, place)


def _idle(boxes: Boxes, second: float, place: dict) -> dict:
    ranks, end = np.arange(boxes.ranks), np.full(boxes.ranks, boxes.makespan_s * second)
    path = _path(ranks, ranks * 0.0, end, ranks - FILL / 2, ranks + FILL / 2)
    return _shape("idle", IDLE, "", path, theme.GRID, 0.5) | {"legendrank": 2000} | place


def _filled(boxes, kind: str, chunk: int, second: float, x_px: float, place) -> dict:
    """All boxes of one kind and chunk, as one path."""
    color, hatch, height = LOOK[kind]
    bottom = boxes.rank + FILL / 2
    start, end = boxes.start_s * second, boxes.end_s * second
    path = _path(boxes.rank, start, end, bottom - FILL * height, bottom)
    # a light edge parts neighbours, but would swallow a box of a pixel or two, which has
    # no room for a hatch either: there lightness and height tell kinds apart
    widest_px = float((end - start).max(initial=0)) * x_px
    edge_px = 1.0 if widest_px > 6 else 0.5 if widest_px > 3 else 0
    shade = _shade(color, chunk, boxes.chunks)
    trace = _shape(NAMES[kind], shade, hatch, path, theme.CARD, edge_px)
    trace |= {"legendgroup": kind, "legendrank": 1000 + KINDS.index(kind)} | place
    return trace if chunk == 0 else trace | {"showlegend": False}


def _shade(color: str, chunk: int, chunks: int) -> str:
    """Later chunks of a rank are paler."""
    return theme.tint(color, 1 - 0.45 * chunk / max(1, chunks - 1))


def _path(row, left, right, top, bottom) -> tuple[np.ndarray, np.ndarray]:
    """x and y of rectangles; those of one row are one line, up, over, down and along.

    Two points each, for the page draws a line of shape "hv": first across, then up or
    down. A row begins at its first corner below, and so ends at the same height.

    The page makes a node for each piece between gaps, so one for each row and not one
    for each rectangle: plotly draws thousands of those six times slower.
    """
    x, y, gap = [], [], [np.nan]
    for one in np.split(np.arange(len(row)), 1 + np.flatnonzero(np.diff(row))):
        x += [left[one[:1]], np.stack([left[one], right[one]], axis=1).ravel(), gap]
        y += [bottom[one[:1]], np.stack([top[one], bottom[one]], axis=1).ravel(), gap]
    return tuple(np.concatenate(parts[:-1]).astype(np.float32) for parts in (x, y))


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
        "mode": "lines" if edge_px else "none",
        "name": name,
        "x": path[0],
        "y": path[1],
        "fill": "toself",
        "fillcolor": color,
        "line": {"color": edge, "width": edge_px, "shape": "hv", "simplify": False},
        "hoverinfo": "skip",
    } | ({"fillpattern": pattern} if hatch and edge_px else {})


def _hover(boxes: Boxes, kind: str, second: float, unit: str, place: dict) -> dict:
    """Points in the middle of boxes that are not drawn, only pointed at."""
    start, end = boxes.start_s * second, boxes.end_s * second
    data = np.stack([boxes.micro_batch, boxes.rank, boxes.stage, start, end], axis=1)
    return {
        "type": "scatter",
        "mode": "none",
        "x": ((start + end) / 2).astype(np.float32),
        "y": boxes.rank.astype(np.int16),
        "customdata": data.astype(np.float32),
        "hovertemplate": f"<b>{NAMES[kind]}</b> of micro-batch %{{customdata[0]}}"
        "<br>rank %{customdata[1]}, stage %{customdata[2]}"
        f"<br>%{{customdata[3]:.4~g}} to %{{customdata[4]:.4~g}} {unit}<extra></extra>",
    } | (place | {"showlegend": False})


def _labels(boxes: Boxes, second: float, row_px: float, x_px: float, place) -> list[dict]:
    """Micro-batch numbers, with a letter for the chunk where a rank holds several."""
    width_px = (boxes.end_s - boxes.start_s) * second * x_px
    letters = 1 + sum(boxes.micro_batch >= 10**k for k in (1, 2, 3)) + (boxes.chunks > 1)
    fits = width_px >= letters * LETTER_PX + 2
    if row_px < LEAST_ROW_PX or not 0 < fits.sum() <= MOST_LABELS:
        return []
    # dark ones last: neighbours of one colour are stored together, in a third of the space
    shown = boxes.only(fits)
    shown = shown.only(np.argsort(_is_pale(shown), kind="stable"))
    middle = (shown.start_s + shown.end_s) / 2 * second
    low = (1 - np.array([LOOK[KINDS[k]][2] for k in shown.kind])) * FILL / 2
    names = LETTERS if boxes.chunks > 1 else [""] * boxes.chunks
    pairs = zip(shown.micro_batch, shown.chunk, strict=True)
    return [
        {
            "type": "scatter",
            "mode": "text",
            "x": middle.astype(np.float32),
            "y": (shown.rank + low).astype(np.float32),
            "text": [f"{m}{names[c % 26]}" for m, c in pairs],
            "textfont": {
                "size": 11,
                "color": [theme.INK if pale else theme.CARD for pale in _is_pale(shown)],
            },
            "hoverinfo": "skip",
        }
        | (place | {"showlegend": False})
    ]


def _is_pale(boxes: Boxes) -> np.ndarray:
    """Whether each box is so light that its number has to be dark."""
    return (boxes.kind > 0) | (boxes.chunk > 0)
