"""Chapter 07's graders accept what is right, and name what is wrong with what is not."""

import pytest

from course.checks import check, exercise, exercises
from course.checks.chapter_07 import OnOneRank
from course.facts import MIB
from course.worlds import World
from tests import memory_answers
from tests.graded import Graded
from tests.memory_answers import RIGHT

NAMES = exercises("07")
metered = [name for name in NAMES if isinstance(exercise(name), OnOneRank)]


class TestGraders(Graded):
    asked, answers = NAMES, memory_answers


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
def test_a_verdict_is_the_same_again(name):
    assert check(name, RIGHT[name][0]) == check(name, RIGHT[name][0])
