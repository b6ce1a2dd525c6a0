"""The exercises of chapter 10: what is right passes, what is wrong is told why."""

import pytest

from course.checks import check, exercise, exercises
from course.checks.pipeline_orders import held, item_of, stands_at, units, words_of
from course.parallel.pipeline_messages import with_messages, with_messages_naively
from course.parallel.schedules import gpipe, one_f_one_b
from tests.pipeline_answers import RIGHT, WRONG, stub

asked = exercises("10")
right_answers = [(name, f) for name, answers in RIGHT.items() for f in answers]
wrong_answers = [(name, *answer) for name, answers in WRONG.items() for answer in answers]
each_exercise = pytest.mark.parametrize("name", asked)


def names_of(answers):
    return [f"{answer[0]}: {answer[1].__name__}" for answer in answers]


def test_every_exercise_has_answers():
    assert set(asked) == set(RIGHT) == set(WRONG) and len(asked) == 3
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
    assert "case: " in verdict.text and "course/checks" not in verdict.text


@each_exercise
def test_the_stub_is_not_attempted(name, capsys):
    assert check(name, stub).kind == "not attempted"
    assert capsys.readouterr().out == "not attempted\n"


@each_exercise
def test_the_task_fits_the_page(name):
    text = repr(exercise(name))
    assert all(len(line) <= 92 for line in text.split("\n"))
    assert exercise(name).signature in text


@each_exercise
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
