"""The first slider: its numbers are those of the costs, in the curve and in the words."""

import pytest

from course.costs.collectives import cost
from course.facts import AWS_P4D, DGX_H100, GIB, KIB, MIB
from course.figures.first_look import all_reduce_time, ring_seconds


def test_on_one_node_it_is_the_formula():
    for nbytes in (KIB, GIB):
        formula = cost("all_reduce", "ring", 8, nbytes).seconds(DGX_H100.fabric)
        assert ring_seconds(8, nbytes) == pytest.approx(formula, rel=1e-12)


def test_the_mark_stands_on_the_curve():
    figure, _ = all_reduce_time(16, GIB, AWS_P4D)
    curve, mark = figure.data
    at = min(range(len(curve.x)), key=lambda i: abs(curve.x[i] - GIB))
    assert curve.x[at] == pytest.approx(GIB)
    assert mark.y[0] == pytest.approx(curve.y[at])
    assert (mark.x[0], mark.y[0]) == (GIB, ring_seconds(16, GIB, AWS_P4D))


def test_words_and_title_say_what_the_costs_say():
    figure, text = all_reduce_time(8, MIB)
    assert figure.layout.title.text == "8 ranks add up 1 MiB in 51.7 µs"
    assert text == (
        "one node of 8 GPUs. 14 steps take 47.6 µs whatever the size; the 1.75 MiB that "
        "each rank sends take 4.08 µs."
    )
    assert all_reduce_time(64, MIB)[1].startswith("8 nodes of 8 GPUs. 126 steps take ")


@pytest.mark.parametrize(
    ("ranks", "nbytes", "says"),
    [(1, MIB, "ranks must be 2 or more, not 1"), (8, 1, "nbytes must be 1024 to")],
)
def test_what_cannot_be_drawn_is_refused(ranks, nbytes, says):
    with pytest.raises(ValueError, match=says):
        all_reduce_time(ranks, nbytes)
