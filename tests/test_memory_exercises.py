"""Chapter 07's graders accept what is right, and name what is wrong with what is not."""

import pytest

from course.checks import Verdict, check, exercise, exercises
from course.checks.chapter_07 import OnOneRank
from course.facts import MIB
from course.worlds import World
from tests.exercise_answers import stub
from tests.memory_answers import RIGHT, WRONG

NAMES = exercises("07")
right_answers = [(name, f) for name, answers in RIGHT.items() for f in answers]
wrong_answers = [(name, *answer) for name, answers in WRONG.items() for answer in answers]
metered = [name for name in NAMES if isinstance(exercise(name), OnOneRank)]


def names_of(answers):
    return [f"{answer[0]}: {answer[1].__name__}" for answer in answers]


def test_every_exercise_has_answers():
    assert set(NAMES) == set(RIGHT) == set(WRONG)
    assert all(len(answers) >= 4 for answers in WRONG.values())


@pytest.mark.parametrize("name, answer", right_answers, ids=names_of(right_answers))
def test_a_right_answer_passes(name, answer):
    verdict = check(name, answer)
    assert (verdict.kind, verdict.passed) == ("right", True), verdict.text
    assert verdict.text.startswith("right: ")


@pytest.mark.parametrize(
    "name, answer, kind, words", wrong_answers, ids=names_of(wrong_answers)
)
def test_a_wrong_answer_is_told_what_is_wrong(name, answer, kind, words):
    verdict = check(name, answer)
    assert (verdict.kind, verdict.passed) == (kind, False), verdict.text
    assert words in verdict.text
    assert "course/checks" not in verdict.text


@pytest.mark.parametrize("name", NAMES)
def test_the_stub_is_not_attempted(name):
    assert check(name, stub) == Verdict("not attempted", "not attempted", False)


@pytest.mark.parametrize("name", metered)
def test_what_is_enough_is_far_from_what_is_wasteful(name):
    """Else the bound would tell nothing, or refuse another good answer."""
    asked = exercise(name)
    case = asked.cases[0]
    plain, least = (
        World(1, memory=True).run(asked.play, f, case).peak_bytes[0]
        for f in (asked.plain, asked.sparing)
    )
    assert MIB > plain > 1.5 * least


@pytest.mark.parametrize("name", NAMES)
def test_task_and_verdicts_fit_the_page(name):
    assert all(len(line) <= 92 for line in repr(exercise(name)).split("\n"))
    assert check(name, RIGHT[name][0]) == check(name, RIGHT[name][0])
