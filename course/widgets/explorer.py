"""`explore` binds controls to a figure function; `show` draws one figure."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import plotly.graph_objects as go
import traitlets

from course.figures.theme import title_of
from course.widgets.controls import Control, controls_for
from course.widgets.live import Live, figure_and_text, figure_json, static


def explore(
    figure_function: Callable, *, title: str = "", caption: str = "", **controls
) -> Explorer:
    """Sliders, dropdowns and checkboxes over a pure function that returns a figure.

    figure_function: returns a plotly Figure, or (Figure, text); the text, worked out
        for these values, stands under the picture
    title:    the stored line's words (default: the figure's own title)
    caption:  a fixed line under the picture
    controls: one per argument, `widgets.slider(...)` or a short form (see `control`)

    An error in the function at its first values is raised here; a later one is shown in
    the widget in place of the picture.
    """
    return Explorer(figure_function, title=title, caption=caption, controls=controls)


def show(figure: go.Figure, text: str = "", *, title: str = "") -> Explorer:
    """One figure, drawn like the live ones: no controls."""
    return Explorer(lambda: (figure, text), title=title, caption="", controls={})


# A figure that takes longer is not drawn ahead: the kernel would be busy when asked.
AHEAD_AT_MOST_S = 0.05


class Explorer(Live):
    """A figure function with controls. Make one with `explore`.

    The page shows a slider's next step at once: after each picture it asks for the one
    that a further step in the same direction would need. Figure functions are pure, so
    a picture drawn ahead is the picture.
    """

    _esm = static("common.js", "explore.js")
    controls = traitlets.List().tag(sync=True)
    caption = traitlets.Unicode().tag(sync=True)
    positions = traitlets.Dict().tag(sync=True, echo_update=False)
    # JSON of {"at": positions, "figure": ..., "text": ...} or {"at": ..., "error": ...},
    # sent whole: it is small
    picture = traitlets.Unicode().tag(sync=True)

    def __init__(self, function: Callable, *, title: str, caption: str, controls: dict):
        self._function = function
        self._controls = controls_for(function, controls)
        self._ahead: dict[str, tuple[go.Figure, str]] = {}  # one picture, by its positions
        start = {name: c.start for name, c in self._controls.items()}
        self._figure, text = self._draw(start)
        self._title = title or title_of(self._figure)
        super().__init__(
            controls=[_for_page(name, c) for name, c in self._controls.items()],
            caption=caption,
            positions=start,
            picture=_picture(start, self._figure, text),
        )
        self.observe(self._on_positions, "positions")
        self.on_msg(self._on_request)

    @property
    def values(self) -> dict[str, Any]:
        """The value of each control now."""
        return self._values(self.positions)

    @property
    def figure(self) -> go.Figure:
        """The figure as last drawn."""
        return self._figure

    def move(self, **values) -> go.Figure:
        """Set controls from Python, as a reader would. Raises what the function raises."""
        chosen = {n: self._controls[n].position_of(v) for n, v in values.items()}
        positions = {**self.positions, **chosen}
        self._draw(positions)
        self.positions = positions
        return self._figure

    def sweep(self) -> int:
        """Draw at every position of every control; returns how many were drawn.

        Each control runs from end to end three times: with the others at their start,
        at their low end, and at their high end. Raises the function's first error, with
        the values it came at.
        """
        drawn = 0
        for positions in self._sweep():
            try:
                self._draw(positions)
            except Exception as error:
                error.add_note(f"explore was drawing {self._values(positions)}")
                raise
            drawn += 1
        return drawn

    def _sweep(self) -> Iterator[dict[str, int]]:
        start = {name: c.start for name, c in self._controls.items()}
        low = dict.fromkeys(start, 0)
        high = {name: len(c.values) - 1 for name, c in self._controls.items()}
        yield start
        for others in (start, low, high):
            for name, moved in self._controls.items():
                for position in range(len(moved.values)):
                    yield {**others, name: position}

    def _values(self, positions: dict[str, int]) -> dict[str, Any]:
        return {name: c.values[positions[name]] for name, c in self._controls.items()}

    def _draw(self, positions: dict[str, int]) -> tuple[go.Figure, str]:
        start = time.perf_counter()
        made = self._function(**self._values(positions))
        self._took_s = time.perf_counter() - start
        return figure_and_text(made, getattr(self._function, "__name__", "the function"))

    def _on_positions(self, change) -> None:
        at = change["new"]
        try:
            self._figure, text = self._ahead.pop(_key(at), None) or self._draw(at)
        except Exception as error:  # shown to the reader: a callback has no caller
            message = f"{type(error).__name__}: {error}"
            self.picture = json.dumps({"at": at, "error": message})
        else:
            self.picture = _picture(at, self._figure, text)

    def _on_request(self, _, content: dict, buffers) -> None:
        """The page asks for a picture ahead of need. One that fails fails when needed."""
        at = content.get("ahead")
        if at is None or self._took_s > AHEAD_AT_MOST_S:
            return
        try:
            figure, text = self._draw(at)
        except Exception:
            return
        self._ahead = {_key(at): (figure, text)}
        self.send({"ahead": _picture(at, figure, text)})

    def stored_text(self) -> str:
        return f"Figure: {self._title}" if self._title else "Figure"

    def stored_figure(self) -> go.Figure:
        return self._figure


def _for_page(name: str, control: Control) -> dict:
    return {
        "name": name,
        "kind": control.kind,
        "label": control.label,
        "about": control.about,
        "texts": list(control.texts),
    }


def _key(positions: dict[str, int]) -> str:
    return json.dumps(positions, sort_keys=True)


def _picture(at: dict[str, int], figure: go.Figure, text: str) -> str:
    words = f'"at": {json.dumps(at)}, "text": {json.dumps(text)}'
    return f'{{{words}, "figure": {figure_json(figure)}}}'
