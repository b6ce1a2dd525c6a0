"""Tokens and experts in a picture: who goes where, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from course.costs import moe
from course.figures import theme, toy_router

TOKENS, EXPERTS = 24, 8
# of the width of the places, left of them: the tokens, the ends of the lines
TOKEN_X, LINE_X = -0.48, -0.15
KEPT, DROPPED = theme.BLUE, theme.VERMILLION


# --- Route tokens -------------------------------------------------------------------------


def route_tokens(
    top_k: int = 1,
    capacity_factor: float = 1.0,
    skew: float = 1.0,
    noise: float = 0.0,
    auxiliary: float = 0.0,
) -> tuple[go.Figure, str]:
    """24 tokens on the left, 8 experts on the right, a square for each place an expert has.

    skew:      how much the first experts are liked, Zipf's exponent
    noise:     standard deviation of the noise on the logits, before the choice
    auxiliary: weight of the balance loss under which the toy router was trained, on 256
               other tokens (see `toy_router`, which says what is real in it)
    A copy beyond the capacity is dropped. First choices of all tokens are served first.
    """
    _check_settings(top_k, capacity_factor, skew, noise, auxiliary)
    bias = toy_router.trained_bias(skew, EXPERTS, top_k, auxiliary)
    logits = toy_router.preferences(TOKENS, EXPERTS, skew) + bias
    chosen = toy_router.choices(logits, top_k, noise)
    places = toy_router.places(chosen)
    slots = moe.capacity(TOKENS, top_k, EXPERTS, capacity_factor)
    loads = toy_router.loads(chosen, EXPERTS)
    return _routes(chosen, places, slots, loads), _said(chosen, places, slots, loads)


def _check_settings(top_k, factor, skew, noise, auxiliary) -> None:
    moe.capacity(TOKENS, top_k, EXPERTS, factor)
    for name, value in (("skew", skew), ("noise", noise), ("auxiliary", auxiliary)):
        if value < 0:
            raise ValueError(f"{name} must be 0 or more, not {value}")


def _said(chosen, places, slots: int, loads) -> str:
    lost = places >= slots
    copies, empty = chosen.size, int(np.maximum(slots - loads, 0).sum())
    past = int(lost.all(axis=1).sum())
    return (
        f"Capacity {slots} for each expert. {int(lost.sum())} of {copies} copies dropped, "
        f"{past} of {TOKENS} tokens pass by all experts; {empty} of {slots * EXPERTS} "
        f"places empty. Largest load: {moe.imbalance(loads):.2f} times the mean."
    )


def _expert_y(expert) -> float:
    """Experts share the height of the tokens."""
    return (np.asarray(expert) + 0.5) * TOKENS / EXPERTS - 0.5


def _routes(chosen, places, slots: int, loads) -> go.Figure:
    figure = theme.new_figure(
        f"{TOKENS} tokens, {EXPERTS} experts: top-{chosen.shape[1]}",
        x="place in the expert's queue",
        height=520,
        hovermode="closest",
        showlegend=True,
    )
    kept, wide = places < slots, max(8, slots, int(loads.max()))
    figure.add_traces(
        [
            _lines(chosen, kept, "kept copy", KEPT, "solid", wide),
            _lines(chosen, ~kept, "dropped copy", DROPPED, "dot", wide),
            _empty_places(slots, loads),
            _squares(chosen, places, kept, "in its place", KEPT),
            _squares(chosen, places, ~kept, "beyond the capacity", DROPPED),
            _tokens(chosen, kept, wide),
            _gates(loads, wide),
        ]
    )
    return _with_room(figure, slots, wide)


def _with_room(figure: go.Figure, slots: int, wide: int) -> go.Figure:
    step = 1 if wide <= 12 else 2
    ticks = list(range(0, wide, step))
    figure.update_xaxes(
        range=[(TOKEN_X - 0.02) * wide, wide - 0.3],
        tickvals=ticks,
        ticktext=ticks,
        showgrid=False,
    )
    figure.update_yaxes(range=[TOKENS - 0.3, -0.8], visible=False)
    line = {"color": theme.INK, "width": 1.5, "dash": "dash"}
    figure.add_shape(
        type="line", x0=slots - 0.5, x1=slots - 0.5, y0=-0.8, y1=TOKENS - 0.4, line=line
    )
    figure.add_annotation(
        text="capacity", x=slots - 0.5, y=-0.8, yanchor="bottom", showarrow=False
    )
    figure.update_layout(legend={"orientation": "h", "y": -0.13}, margin_l=64)
    return figure


def _lines(chosen, wanted, name: str, color: str, dash: str, wide: int) -> dict:
    """From token to expert, one line for each copy that is wanted."""
    x, y = [], []
    for token, i in zip(*np.nonzero(wanted), strict=True):
        x += [(TOKEN_X + 0.02) * wide, LINE_X * wide, None]
        y += [float(token), float(_expert_y(chosen[token, i])), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": theme.tint(color, 0.65), "dash": dash, "width": 1.3},
        "hoverinfo": "skip",
    }


def _empty_places(slots: int, loads) -> dict:
    spots = [(p, e) for e in range(EXPERTS) for p in range(int(loads[e]), slots)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "empty place",
        "x": [p for p, _ in spots],
        "y": [float(_expert_y(e)) for _, e in spots],
        "marker": {
            "symbol": "square",
            "size": 15,
            "color": theme.EMPTY,
            "line": {"color": theme.MUTED, "width": 1},
        },
        "hoverinfo": "skip",
    }


def _squares(chosen, places, wanted, name: str, color: str) -> dict:
    """A square for each copy, with the number of its token."""
    token, i = np.nonzero(wanted)
    order = ("first", "second", "third", "fourth")
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": name,
        "x": places[token, i].tolist(),
        "y": _expert_y(chosen[token, i]).tolist(),
        "text": [str(t) for t in token],
        "textfont": {"size": 9, "color": theme.CARD if color == KEPT else color},
        "marker": {
            "symbol": "square" if color == KEPT else "diamond",
            "size": 15 if color == KEPT else 17,
            "color": color if color == KEPT else theme.CARD,
            "line": {"color": color, "width": 1.3},
        },
        "hovertext": [
            f"token {t}, {_nth(j, order)} choice: expert {chosen[t, j]}, {name}"
            for t, j in zip(token, i, strict=True)
        ],
        "hoverinfo": "text",
    }


def _nth(i: int, words: Sequence[str]) -> str:
    return words[i] if i < len(words) else f"{i + 1}th"


def _tokens(chosen, kept, wide: int) -> dict:
    served = kept.any(axis=1)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "token",
        "showlegend": False,
        "x": [TOKEN_X * wide] * TOKENS,
        "y": list(range(TOKENS)),
        "text": [f"token {t}" if t % 4 == 0 else str(t) for t in range(TOKENS)],
        "textposition": "middle left",
        "textfont": {"size": 10, "color": theme.MUTED},
        "cliponaxis": False,
        "marker": {"size": 8, "color": [KEPT if s else DROPPED for s in served]},
        "hovertext": [
            f"token {t} to experts {', '.join(map(str, row))}"
            for t, row in enumerate(chosen)
        ],
        "hoverinfo": "text",
    }


def _gates(loads, wide: int) -> dict:
    return {
        "type": "scatter",
        "mode": "text",
        "showlegend": False,
        "x": [-0.4 - 0.015 * wide] * EXPERTS,
        "y": _expert_y(np.arange(EXPERTS)).tolist(),
        "text": [f"<b>expert {e}</b>" for e in range(EXPERTS)],
        "textposition": "middle left",
        "textfont": {"size": 11, "color": theme.INK},
        "hovertext": [f"expert {e}: {load} copies" for e, load in enumerate(loads)],
        "hoverinfo": "text",
    }
