"""`stepper` plays frames, or a run, step by step. All frames are sent at once: playing
needs no kernel, so it stays even while a cell runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go
import traitlets

from course.figures.theme import title_of
from course.quantities import write_bytes, write_seconds
from course.widgets.live import Live, figure_and_text, figure_json, static

if TYPE_CHECKING:  # `course.widgets` starts without torch, and the worlds may bring it
    from course.worlds.run import Event, Run

MOST_FRAMES = 400
# a run with more moments than this is shown at so many of them, evenly chosen
MOST_MOMENTS = 60
MOST_NAMED = 4


def stepper(
    frames: Run | Sequence,
    *,
    title: str = "",
    seconds_per_frame: float = 1.0,
    still: int = 0,
) -> Stepper:
    """Play, pause, step back and forward, scrub.

    frames: plotly Figures, or (Figure, caption) pairs, in order; or a Run recorded with
        record=True, which is played over its timeline
    title:  the stored line's words (default: the first figure's own title)
    still:  the frame that stands in the notebook before it is run; playing starts at 0

    Raises ValueError for no frames or too many, TypeError for what is not a figure.
    """
    if seconds_per_frame <= 0:
        raise ValueError(f"seconds_per_frame must be positive, not {seconds_per_frame}")
    is_run = hasattr(type(frames), "events")
    made = run_frames(frames) if is_run else list(frames)
    if not 1 <= len(made) <= MOST_FRAMES:
        raise ValueError(f"frames must be from 1 to {MOST_FRAMES}, not {len(made)}")
    if not 0 <= still < len(made):
        raise ValueError(f"still must be from 0 to {len(made) - 1}, not {still}")
    return Stepper(made, title, seconds_per_frame, still)


class Stepper(Live):
    """Frames that can be played. Make one with `stepper`."""

    _esm = static("common.js", "stepper.js")
    # JSON of {"base": figure, "frames": [{"data": {index: trace}, "layout", "caption"}]}
    film = traitlets.Unicode().tag(sync=True)
    position = traitlets.Int(0).tag(sync=True, echo_update=False)
    seconds_per_frame = traitlets.Float().tag(sync=True)

    def __init__(self, frames: list, title: str, seconds_per_frame: float, still: int = 0):
        self._still = still
        self.frames = [figure_and_text(f, "a frame") for f in frames]
        self._title = title or title_of(self.frames[0][0])
        super().__init__(film=_film(self.frames), seconds_per_frame=seconds_per_frame)

    @property
    def caption(self) -> str:
        """The caption of the frame that is shown."""
        return self.frames[self.position][1]

    def stored_text(self) -> str:
        many = f"{len(self.frames)} step" + "s" * (len(self.frames) != 1)
        return f"Stepper: {self._title}, {many}" if self._title else f"Stepper: {many}"

    def stored_figure(self) -> go.Figure:
        return self.frames[self._still][0]


def _film(frames: list[tuple[go.Figure, str]]) -> str:
    """The first frame whole, each frame by what differs from it."""
    figures = [json.loads(figure_json(figure)) for figure, _ in frames]
    base = figures[0]
    shots = [
        {**_difference(base, figure), "caption": caption}
        for figure, (_, caption) in zip(figures, frames, strict=True)
    ]
    return json.dumps({"base": base, "frames": shots}, separators=(",", ":"))


def _difference(base: dict, figure: dict) -> dict:
    old, new = base["data"], figure["data"]
    traces = {i: t for i, t in enumerate(new) if i >= len(old) or t != old[i]}
    layout = {k: v for k, v in figure["layout"].items() if v != base["layout"].get(k)}
    gone = {k: None for k in base["layout"] if k not in figure["layout"]}
    return {"data": traces, "traces": len(new), "layout": layout | gone}


def run_frames(run: Run) -> list[tuple[go.Figure, str]]:
    """The run's timeline once per moment at which something starts or ends.

    Raises NotMetered where the run was not recorded.
    """
    from course.figures.timeline import timeline

    unit, seconds_per_x = _unit(run.seconds)
    whole = timeline(run, time_unit=unit)
    end_s = max((e.end_s for e in run.events), default=run.seconds)
    frames = []
    for now_s in _moments(run):
        figure = go.Figure(whole)
        _add_now(figure, now_s / seconds_per_x, end_s / seconds_per_x)
        frames.append((figure, _caption(run, now_s)))
    return frames


def _unit(seconds: float) -> tuple[str, float]:
    steps = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
    return next((s for s in steps if seconds >= s[1]), ("ns", 1e-9))


def _moments(run: Run) -> list[float]:
    edges = {e.start_s for e in run.events} | {e.end_s for e in run.events} | {0.0}
    moments = sorted(edges)
    if len(moments) <= MOST_MOMENTS:
        return moments
    step = (len(moments) - 1) / (MOST_MOMENTS - 1)
    return [moments[round(i * step)] for i in range(MOST_MOMENTS)]


def _add_now(figure: go.Figure, now: float, end: float) -> None:
    """A line at this moment; what is still to come lies under a veil."""
    on_x = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    veil = {"fillcolor": "rgba(255,255,255,0.72)", "line": {"width": 0}, "layer": "above"}
    figure.add_shape(type="rect", x0=now, x1=max(end * 1.01, now), **on_x, **veil)
    figure.add_shape(
        type="line", x0=now, x1=now, **on_x, line={"width": 2, "color": "#D55E00"}
    )


def _caption(run: Run, now_s: float) -> str:
    now = [e for e in run.events if e.start_s <= now_s < e.end_s]
    # what is sent says what is received
    doing = sorted(now, key=lambda e: "recv" in e.name)
    named = "; ".join(_doing(e) for e in doing[:MOST_NAMED]) or "nothing is under way"
    more = f"; and {len(doing) - MOST_NAMED} more" if len(doing) > MOST_NAMED else ""
    return f"At {write_seconds(now_s)}: {named}{more}."


def _doing(event: Event) -> str:
    size = f" {write_bytes(event.bytes)}" if event.bytes else ""
    ways = {"send": "to", "isend": "to", "recv": "from", "irecv": "from"}
    way = ways.get(event.name, "with")
    peer = "" if event.peer is None else f" {way} rank {event.peer}"
    return f"rank {event.rank}: {event.name}{size}{peer}"
