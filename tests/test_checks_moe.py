"""The exercises of chapter 11: what is right passes, what is wrong is told why."""

import pytest
import torch

from course import World
from course.checks import check, exercise, exercises
from course.checks.alone import Alone
from course.checks.grading import _cluster, _on_rank
from course.checks.traffic import steps_of
from tests import moe_answers
from tests.moe_answers import RIGHT, WRONG, stub

asked = exercises("11")
right_answers = [(name, f) for name, answers in RIGHT.items() for f in answers]
wrong_answers = [(name, *answer) for name, answers in WRONG.items() for answer in answers]
each_exercise = pytest.mark.parametrize("name", asked)
each_alone = pytest.mark.parametrize(
    "name", [name for name in asked if isinstance(exercise(name), Alone)]
)
NAMES = {id(value): name for name, value in vars(moe_answers).items()}


def names_of(answers):
    return [f"{answer[0]}: {NAMES[id(answer[1])]}" for answer in answers]


def test_every_exercise_has_answers():
    assert set(asked) == set(RIGHT) == set(WRONG) and len(asked) == 4
    assert all(len(answers) >= 8 for answers in WRONG.values())


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


@each_exercise
def test_the_stub_is_not_attempted(name):
    assert check(name, stub).kind == "not attempted"


@each_exercise
def test_an_exercise_fits_on_the_page(name):
    assert all(len(line) <= 92 for line in repr(exercise(name)).split("\n"))


@each_alone
def test_every_known_slip_is_named_for_what_it_is(name):
    """In the first case that shows the slip, and by its own name."""
    asks = exercise(name)
    for words in asks.slips(*asks.given(asks.cases[0])):
        verdict = check(name, lambda *given, w=words: asks.slips(*given)[w])
        assert verdict.kind == "wrong values" and verdict.text.split("\n")[0].endswith(
            words
        )


@each_alone
def test_an_answer_may_change_what_it_is_given(name):
    def careless(*given):
        answer = RIGHT[name][0](*given)
        for tensor in given:
            if isinstance(tensor, torch.Tensor):
                tensor.zero_()
        return answer

    assert check(name, careless).passed


def test_traffic_of_the_dispatch_is_met_exactly():
    """All counts to all, and each row once: the bound is what the second answer sends."""
    asks = exercise("dispatch order")
    for case in asks.cases:
        world = World(case.ranks, cluster=_cluster(case))
        run = world.run(_on_rank, asks.play, RIGHT[asks.name][1], case)
        limits = asks.limits(case)
        assert max(run.bytes_sent) == limits.sent and steps_of(run) == limits.steps
        assert max(run.bytes_received) == limits.received


def test_dispatch_is_asked_of_many_kinds_of_ranks():
    cases = exercise("dispatch order").cases
    assert {1, 2, 3, 4, 8} == {case.ranks for case in cases}
    assert any(len(case.x(0)) == 0 for case in cases)
    received = [len(rows) for c in cases for rows in exercise("dispatch order").expected(c)]
    assert 0 in received
    for case in cases:
        tensors = [case.x(r).flatten().tolist() for r in range(case.ranks)]
        assert (
            case.shape[0] * case.shape[1] < 3 or len(set(map(tuple, tensors))) == case.ranks
        )
