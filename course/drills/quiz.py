"""The quiz in a notebook: a session, drawn by static/quiz.js.

A widget of its own and not a set of ipywidgets: inside a notebook JupyterLab takes
arrow keys and letters pressed on a radio button for its shortcuts, so that one could
neither choose by keyboard nor type safely. Native inputs in one form, with shortcuts
switched off around them, can be used with Tab, arrows, Space and Enter.
"""

from __future__ import annotations

from importlib.resources import files

import anywidget
import traitlets

from course.drills.session import Session

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
_STATIC = files("course.drills") / "static"


class Quiz(anywidget.AnyWidget):
    """The widget. `state` is what the page shows, see `Session.state`."""

    _esm = (_STATIC / "quiz.js").read_text(encoding="utf-8")
    _css = (_STATIC / "quiz.css").read_text(encoding="utf-8")
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, session: Session):
        self.session = session
        super().__init__(state=session.state())
        self.on_msg(self._on_message)

    def _on_message(self, _widget, content: dict, _buffers) -> None:
        self.session.act(**content)
        self.state = self.session.state()


def show_quiz(topic: str, *, seed: int | None = None, level: int | None = None) -> None:
    """Display a quiz. The notebook stores the widget's id and one stable line of text."""
    from IPython.display import display

    quiz = Quiz(Session(topic, seed=seed, level=level))
    view = {"version_major": 2, "version_minor": 0, "model_id": quiz.model_id}
    display({WIDGET_MIME: view, "text/plain": quiz.session.title}, raw=True)
