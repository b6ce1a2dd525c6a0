"""The exercises of chapter 08: what is right passes, what is wrong is told why."""

import pytest
import torch

from course import World
from course.checks import check, exercise, exercises
from course.checks.grading import _cluster, _on_rank
from course.checks.memory import Scale, held_by
from tests import zero_answers
from tests.zero_answers import RIGHT, WRONG, reduced_at_the_end, stub

asked = exercises("08")
right_answers = [(name, f) for name, answers in RIGHT.items() for f in answers]
wrong_answers = [(name, *answer) for name, answers in WRONG.items() for answer in answers]
each_exercise = pytest.mark.parametrize("name", asked)


NAMES = {id(value): name for name, value in vars(zero_answers).items()}


def names_of(answers):
    return [f"{answer[0]}: {NAMES[id(answer[1])]}" for answer in answers]


def test_every_exercise_has_answers():
    assert set(asked) == set(RIGHT) == set(WRONG) and len(asked) == 3


@pytest.mark.parametrize("name, answer", right_answers, ids=names_of(right_answers))
def test_a_right_answer_passes(name, answer):
    verdict = check(name, answer)
    assert (verdict.kind, verdict.passed) == ("right", True), verdict.text
    assert "held at most" in verdict.text
    assert "right also on 1, 2, 3, 5 and 8 ranks" in verdict.text


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


# --- The bounds are neither loose nor beyond reach ------------------------------------


def played(name, answer, case=None):
    case = case or exercise(name).cases[0]
    world = World(case.ranks, cluster=_cluster(case), memory=True)
    return world.run(_on_rank, exercise(name).play, answer, case)


@each_exercise
def test_traffic_of_the_case_that_is_shown_is_met_exactly(name):
    limits = exercise(name).limits(exercise(name).cases[0])
    run = played(name, RIGHT[name][0])
    assert max(run.bytes_sent) == limits.sent
    assert max(run.bytes_received) == limits.received
    assert sum(run.bytes_sent) >= limits.total


@each_exercise
def test_memory_is_bounded_closely(name):
    """Some right answer needs about two thirds of what may be held, or half of it."""
    limits = exercise(name).limits(exercise(name).cases[0])
    for moment, enough in limits.held.items():
        most = max(held_by(played(name, f))[0][moment] for f in RIGHT[name])
        assert most > (0.45 if name == "reduce-scatter in the hook" else 0.66) * enough


def test_a_gradient_more_is_too_much():
    """Whole gradients of the model are far above the bound, with many layers."""
    name = "reduce-scatter in the hook"
    for case in exercise(name).cases:
        if case.ranks > 2 and case.layers > 3:
            most = held_by(played(name, reduced_at_the_end, case))[0]["during backward"]
            assert most > exercise(name).limits(case).held["during backward"]


@each_exercise
def test_cases_are_of_many_kinds(name):
    cases = exercise(name).cases
    assert {1, 2, 3, 8} < {case.ranks for case in cases}
    assert any(case.elements < case.ranks for case in cases)
    assert any(case.elements % case.ranks for case in cases)


def test_the_first_gradients_matter_as_much_as_the_last():
    """None has faded to less than a comparison would see."""
    for name in ("reduce-scatter in the hook", "free after use"):
        for case in exercise(name).cases:
            for shards in zip(*exercise(name).expected(case), strict=True):
                assert torch.cat(shards).abs().max() > 1e-3


# --- The scale ------------------------------------------------------------------------


def weighs() -> list[int]:
    before = torch.zeros(10)
    scale = Scale()
    kept = torch.zeros(5)
    torch.zeros(100)
    held = [scale.now(), scale.most()]
    scale.mark()
    torch.zeros(7)
    del before
    return [*held, scale.most(), scale.now() + 0 * len(kept)]


def test_a_scale_counts_from_its_mark_and_above_its_tare():
    run = World(2, memory=True).run(weighs)
    assert run.results == [[20, 20 + 400, 20 + 28, 20 - 40]] * 2
