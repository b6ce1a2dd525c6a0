"""The exercises of chapter 10: what is right passes, what is wrong is told why."""

import pytest

from course.checks import check, exercises
from course.checks.pipeline_orders import held, item_of, stands_at, units, words_of
from course.parallel.pipeline_messages import with_messages, with_messages_naively
from course.parallel.schedules import gpipe, one_f_one_b
from tests import pipeline_answers
from tests.graded import Graded
from tests.pipeline_answers import RIGHT

asked = exercises("10")


class TestGraders(Graded):
    asked, answers = asked, pipeline_answers
    in_wrong = ("case: ",)


def test_there_are_three():
    assert len(asked) == 3


@pytest.mark.parametrize("name", asked)
def test_an_answer_that_changes_what_it_was_given_is_graded_all_the_same(name):
    def empties(*orders):
        answer = RIGHT[name][0](*orders)
        for order in orders[0] if isinstance(orders[0], list) else []:
            order.clear()
        return answer

    assert check(name, empties).passed


@pytest.mark.parametrize("p, m", [(2, 2), (4, 8), (8, 16)])
def test_the_bounds_of_1f1b_are_met_exactly(p, m):
    orders = words_of(one_f_one_b(p, m).orders)
    assert [held(order) for order in orders] == [p - s for s in range(p)]
    assert units(orders, m) == 3 * (m + p - 1)


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize("adds", [with_messages, with_messages_naively])
def test_words_mean_what_they_were_made_from(make, adds):
    for rank, order in enumerate(adds(make(3, 4))):
        assert [item_of(word, rank) for word in words_of([order])[0]] == list(order)


def test_words_that_mean_nothing():
    assert [item_of(w, 1) for w in ("F", "F-1", "F01", "X1", "sendF1", "send W1", "")] == [
        None
    ] * 7


def test_messages_to_nobody_are_waited_for_for_ever():
    assert stands_at([["receive F0", "F0"], ["F0", "send F0"]]) == [0, 1]
