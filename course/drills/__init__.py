"""Interview drills: questions as data, numeric answers computed by course.costs.

drills.show("ring")            a quiz in the notebook
drills.ask("C16a", seed=7)     one question with drawn numbers
drills.grade(drill, "49 GB")   right or wrong, and which slip it looks like
drills.sheet("ring")           all of a topic as markdown, for reading without a kernel
"""

from course.drills.drawing import Drill, ask
from course.drills.grading import Verdict, grade
from course.drills.questions import Choice, Numeric, Question, Slip
from course.drills.reading import questions, topics
from course.drills.sheet import sheet

__all__ = [
    "Choice",
    "Drill",
    "Numeric",
    "Question",
    "Slip",
    "Verdict",
    "ask",
    "grade",
    "questions",
    "sheet",
    "show",
    "topics",
]


def show(topic: str, *, seed: int | None = None, level: int | None = None) -> None:
    """A quiz over one topic, in a notebook.

    seed:  draws the numbers of every numeric question; None keeps the book's numbers
           until the reader asks for new ones
    level: 1 warm-up, 2 interview, 3 hard; None for all
    Raises ValueError for an unknown topic or a level without questions.
    """
    from course.drills.quiz import show_quiz  # widgets only where one is shown

    show_quiz(topic, seed=seed, level=level)
