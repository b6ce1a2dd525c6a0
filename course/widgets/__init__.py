"""What the reader can touch: explore, stepper, predict, reveal, show.

explore: controls over a figure function      stepper: frames or a run, played step by step
predict: commit a number, then see            reveal:  folded source
show:    one figure, without controls

How a widget is stored in a notebook, and what `course/authoring.py` has to do about it,
is written at the top of `course/widgets/live.py`.
"""

from course.widgets.controls import checkbox, choice, log_slider, slider, stops
from course.widgets.explorer import explore, show
from course.widgets.guess import predict
from course.widgets.player import stepper
from course.widgets.source import reveal

__all__ = [
    "checkbox",
    "choice",
    "explore",
    "log_slider",
    "predict",
    "reveal",
    "show",
    "slider",
    "stepper",
    "stops",
]
