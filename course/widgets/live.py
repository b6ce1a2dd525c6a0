"""The base of every live figure: how it reaches the page, and what a notebook stores.

**Live.** A figure is a light anywidget that carries its plotly JSON and nothing else.
plotly.js (5 MB) comes from the installed plotly wheel, travels once per kernel as one
gzipped, invisible model, and is evaluated once per page, whoever asks first. A page
reload, a kernel restart, a second notebook in the page or another front end needs no
special case: a figure asks the page for plotly.js, and only if the page has none does
it ask its kernel's library model. Nothing is fetched from the network.

**Stored.** The display bundle is the widget and one stable line of text, e.g.
"Figure: ring all-reduce, time against message size". With RING_TO_RACK_BUILD=1 it also
holds the figure itself under FIGURE_MIME. `course/authoring.py` has to turn that entry
into image/svg+xml, and to remove it and WIDGET_MIME from the file: JupyterLab takes a
stored widget before a stored picture and, with no kernel, would show only "model not
found". So the file keeps image/svg+xml and text/plain, and no widget state.
"""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from importlib.resources import files

import anywidget
import ipywidgets
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs, get_plotlyjs_version

FIGURE_MIME = "application/vnd.ring-to-rack.figure+json"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
BUILDING = "RING_TO_RACK_BUILD"


class _Library(ipywidgets.Widget):
    """plotly.js, gzipped. It has no view: figures in the page read its bytes.

    Not an AnyWidget: that one reports an error in the page when it is not set up within
    2 s, and this first and largest model of a page may take longer on a busy machine.
    """

    source = traitlets.Bytes().tag(sync=True)


_library: _Library | None = None


def library() -> _Library:
    """The kernel's one model of plotly.js, made at the first figure."""
    global _library
    if _library is None or _library.comm is None:
        _library = _Library(source=gzip.compress(get_plotlyjs().encode(), compresslevel=6))
    return _library


@cache
def static(*names: str) -> str:
    """The text of files of course/widgets/static, one after the other."""
    folder = files("course.widgets") / "static"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


class Live(anywidget.AnyWidget):
    """A widget with one plotly picture. Subclasses say which, and in what words."""

    _css = static("widgets.css")
    library = traitlets.Unicode().tag(sync=True)
    plotly_version = traitlets.Unicode().tag(sync=True)

    def __init__(self, **state):
        super().__init__(
            library=library().model_id, plotly_version=get_plotlyjs_version(), **state
        )

    def stored_text(self) -> str:
        """The one line that stands for the widget where it cannot be shown."""
        raise NotImplementedError

    def stored_figure(self) -> go.Figure | None:
        """The picture that stands for the widget where no kernel runs."""
        return None

    def _repr_mimebundle_(self, **kwargs):
        data, metadata = super()._repr_mimebundle_(**kwargs)
        data["text/plain"] = self.stored_text()
        figure = self.stored_figure()
        if os.environ.get(BUILDING) == "1" and figure is not None:
            data[FIGURE_MIME] = json.loads(figure_json(figure))
        return data, metadata

    def __repr__(self) -> str:
        return self.stored_text()


def figure_json(figure: go.Figure) -> str:
    """The figure as plotly.js reads it; arrays go as base64, not as digits."""
    return figure.to_json(validate=False)


def figure_and_text(made, maker: str) -> tuple[go.Figure, str]:
    """What a figure function returned: a figure, or (figure, text).

    Raises TypeError, naming the function, for anything else.
    """
    figure, text = made if isinstance(made, tuple) and len(made) == 2 else (made, "")
    if not isinstance(figure, go.Figure) or not isinstance(text, str):
        kind = type(figure).__name__
        raise TypeError(
            f"{maker} must return a plotly Figure or (Figure, text), not {kind}"
        )
    return figure, text
