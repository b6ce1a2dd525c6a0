"""Pictures in place of live figures: what a notebook shows before it is run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

from course.authoring.svg import shrink

# `course.widgets.live` adds the first to a live figure's bundle while a build runs.
FIGURE_MIME = "application/vnd.ring-to-rack.figure+json"
PLOTLY_MIME = "application/vnd.plotly.v1+json"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
SVG_MIME = "image/svg+xml"

WIDTH, HEIGHT = 760, 360
# Raise this when `shrink` or the size above changes: stored pictures are then redrawn.
VERSION = 3


def figure_id(figure: dict) -> str:
    """A short name of a figure's content, the same in every build."""
    text = json.dumps([VERSION, figure], sort_keys=True)
    return "f" + hashlib.sha256(text.encode()).hexdigest()[:10]


def chromium() -> str:
    """Path of the browser that draws.

    Raises RuntimeError where there is none.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("BROWSER_PATH") or next(
        filter(None, map(shutil.which, names)), ""
    )
    if not path:
        raise RuntimeError("pictures need Chromium: install it, or set BROWSER_PATH to one")
    return path


class Painter:
    """Draws figures in one Chromium, started at the first figure. Use it in `with`."""

    def __init__(self):
        self._started = False

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, *_) -> None:
        if self._started:
            import kaleido

            kaleido.stop_sync_server()

    def _start(self) -> None:
        import kaleido

        # no MathJax: it would be asked for from another host
        page = kaleido.PageGenerator(mathjax=False)
        kaleido.start_sync_server(n=1, path=chromium(), page_generator=page)
        self._started = True

    def draw(self, figure: dict) -> str:
        """SVG of a figure, given as plotly JSON: {"data": [...], "layout": {...}}."""
        import kaleido

        if not self._started:
            self._start()
        layout = figure.get("layout", {})
        size = {
            "width": layout.get("width") or WIDTH,
            "height": layout.get("height") or HEIGHT,
        }
        plain = {"data": figure["data"], "layout": layout}
        svg = kaleido.calc_fig_sync(plain, opts={"format": "svg", **size})
        return shrink(svg.decode(), figure_id(figure))


def stored_pictures(notebook) -> dict[str, str]:
    """{figure id: svg} of the pictures that a notebook holds, to be used again."""
    return {
        output.metadata["figure"]: output.data[SVG_MIME]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "figure" in output.get("metadata", {}) and SVG_MIME in output.data
    }


def plotly_text(figure: dict) -> str:
    """The line of text that stands for a plain plotly figure."""
    title = figure.get("layout", {}).get("title", {})
    text = title.get("text", "") if isinstance(title, dict) else title
    return f"Figure: {text}" if text else "Figure"


def keep_picture(output, painter: Painter, known: dict[str, str]) -> None:
    """Turn one output's live figure, if it has one, into a picture and a line of text."""
    data = output.get("data", {})
    live = data.pop(FIGURE_MIME, None)
    plain = data.pop(PLOTLY_MIME, None)
    data.pop(WIDGET_MIME, None)
    figure = live or plain
    if figure is None:
        return
    name = figure_id(figure)
    data[SVG_MIME] = known.get(name) or painter.draw(figure)
    data.setdefault("text/plain", plotly_text(figure))
    output.metadata = {"figure": name}
