"""The exercises of chapter 11: what is right passes, what is wrong is told why."""

import pytest
import torch

from course import World
from course.checks import check, exercise, exercises
from course.checks.alone import Alone
from course.checks.grading import _cluster, _on_rank
from course.checks.traffic import steps_of
from tests import moe_answers
from tests.graded import Graded
from tests.moe_answers import RIGHT

asked = exercises("11")
each_alone = pytest.mark.parametrize(
    "name", [name for name in asked if isinstance(exercise(name), Alone)]
)


class TestGraders(Graded):
    asked, answers = asked, moe_answers
    least_wrong = 8


def test_there_are_four():
    assert len(asked) == 4


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
