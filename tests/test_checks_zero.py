"""The exercises of chapter 08: what is right passes, what is wrong is told why."""

import pytest
import torch

from course import World
from course.checks import exercise, exercises
from course.checks.grading import _cluster, _on_rank
from course.checks.memory import Scale, held_by
from tests import zero_answers
from tests.graded import Graded
from tests.zero_answers import RIGHT, reduced_at_the_end

asked = exercises("08")
each_exercise = pytest.mark.parametrize("name", asked)


class TestGraders(Graded):
    asked, answers = asked, zero_answers
    in_right = ("held at most", "right also on 1, 2, 3, 5 and 8 ranks")


def test_there_are_three():
    assert len(asked) == 3


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
