"""Graders for the exercises, run on simulated worlds that count every byte.

    from course.checks import check
    check("ring reduce-scatter", my_reduce_scatter)

`exercise(name)` tells what is asked; `exercises("03")` names those of a chapter.
"""

from __future__ import annotations

from collections.abc import Callable

from course.checks import (
    chapter_02,
    chapter_03,
    chapter_04,
    chapter_07,
    chapter_08,
    chapter_10,
    chapter_11,
    lab_01,
    lab_03,
    lab_05,
    lab_06,
    lab_11,
)
from course.checks.exercise import Exercise
from course.checks.verdict import Verdict

__all__ = ["Verdict", "check", "exercise", "exercises"]

_HOMES = (
    chapter_02,
    chapter_03,
    chapter_04,
    chapter_07,
    chapter_08,
    chapter_10,
    chapter_11,
    lab_01,
    lab_03,
    lab_05,
    lab_06,
    lab_11,
)
_ALL = {e.name: e for home in _HOMES for e in home.EXERCISES}


def exercises(chapter: str | None = None) -> tuple[str, ...]:
    """Names of the exercises, of one chapter ("03", "lab 01") or of all."""
    chapters = sorted({e.chapter for e in _ALL.values()})
    if chapter is not None and chapter not in chapters:
        raise ValueError(f"chapter must be one of {chapters}, not {chapter!r}")
    return tuple(e.name for e in _ALL.values() if chapter in (None, e.chapter))


def exercise(name: str) -> Exercise:
    """The task, the signature, a size hint and a target. ValueError names the choices."""
    if name not in _ALL:
        raise ValueError(f"name must be one of {list(_ALL)}, not {name!r}")
    return _ALL[name]


def check(name: str, function: Callable) -> Verdict:
    """Grade an answer, print the verdict in a line or two, and return it.

    Every element on every rank is compared, on several numbers of ranks and sizes; then
    bytes and steps, which the world has counted, are held against what is enough.
    Raises ValueError for a name that is no exercise, or a function that is none.
    """
    asked = exercise(name)
    if not callable(function):
        raise ValueError(
            f"function must be something to call, not {function!r}: "
            f'write check("{name}", my_function), without brackets after my_function'
        )
    verdict = asked.grade(function)
    print(verdict.text)
    return verdict
