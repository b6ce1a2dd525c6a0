"""Every grader accepts what is right, and says what is wrong with what is not."""

import re

import pytest
import torch
import torch.distributed as dist

from course import World, checks
from course.checks import Verdict, check, exercise, exercises
from course.checks.compare import InPlace, first_difference
from course.checks.exercise import OnRanks
from course.checks.grading import _cluster, _on_rank
from course.checks.traffic import steps_of
from course.checks.verdict import KINDS
from tests import exercise_answers
from tests.exercise_answers import RIGHT, WRONG, recurses, stub
from tests.graded import Graded
from tests.zero_answers import WRONG as WRONG_IN_08

wrong_answers = [(name, *answer) for name, answers in WRONG.items() for answer in answers]
# Exercises of labs have their own tests, beside the lab's.
asked = [name for chapter in ("02", "03", "04") for name in exercises(chapter)]
on_ranks = [name for name in asked if isinstance(exercise(name), OnRanks)]


class TestGraders(Graded):
    asked, answers = asked, exercise_answers


def test_each_exercise_stands_once():
    assert len(asked) == len(set(asked)) == 12 and set(asked) <= set(exercises())


def test_all_kinds_of_verdict_are_given_by_some_answer():
    given = {kind for _, _, kind, _ in wrong_answers} | {"right", "not attempted"}
    given |= {kind for answers in WRONG_IN_08.values() for _, kind, _ in answers}
    assert given == set(KINDS)


# --- The bounds are neither loose nor beyond reach ------------------------------------


def played(name, case):
    world = World(case.ranks, cluster=_cluster(case))
    return world.run(_on_rank, exercise(name).play, RIGHT[name][0], case)


@pytest.mark.parametrize("name", on_ranks)
def test_bounds_of_the_case_that_is_shown_are_met_exactly(name):
    """One byte or one step less would be too little for a right answer."""
    case = exercise(name).cases[0]
    limits, run = exercise(name).limits(case), played(name, case)
    assert max(run.bytes_sent) == limits.sent
    assert sum(run.bytes_sent) >= limits.total
    assert limits.steps in (None, steps_of(run))
    assert limits.total_most in (None, sum(run.bytes_sent))


@pytest.mark.parametrize("name", on_ranks)
def test_cases_are_of_many_kinds(name):
    """One rank, odd counts, more ranks than elements, and inputs that all differ."""
    cases = exercise(name).cases
    assert {1, 2} < {case.ranks for case in cases}
    assert max(case.ranks for case in cases) >= 8 and len(set(cases)) == len(cases)
    in_pieces = exercise(name).chapter != "02"
    assert not in_pieces or any(case.elements < case.ranks for case in cases)
    assert not in_pieces or any(case.elements % case.ranks for case in cases)


@pytest.mark.parametrize("name", on_ranks)
def test_ranks_and_cases_have_different_inputs(name):
    seen = []

    def look(*args):
        tensor = args[0][0] if isinstance(args[0], list) else args[0]
        seen.append(tuple(tensor.flatten().tolist()))
        return args[0]

    for case in exercise(name).cases:
        for rank in range(case.ranks):
            if case.gpus is None and case.elements > 3:
                exercise(name).play(look, case, rank)
    assert len(seen) == len(set(seen))


# --- What an answer that fails shows ----------------------------------------------------


def text_of(name, answer):
    return check(name, answer).text


def test_an_error_names_rank_line_and_message():
    def third_rank_stumbles(tensor):
        if dist.get_rank() == 2:
            tensor.reshape(3, 3)

    text = text_of("ring all-reduce", third_rank_stumbles)
    line = "tests/test_checks.py line [0-9]+, in third_rank_stumbles: tensor.reshape"
    assert text.startswith("rank 2 raised RuntimeError: shape '[3, 3]' is invalid")
    assert re.search(line, text)
    assert text.endswith("case: 4 ranks, 8 elements")


def test_a_deep_error_stays_short():
    assert len(text_of("ring all-reduce", recurses).splitlines()) <= 4


def test_a_wrong_signature_is_told():
    text = text_of("broadcast", lambda tensor: tensor)
    assert "rank 0 raised TypeError" in text and "takes 1 positional argument" in text


def test_a_message_that_nobody_takes_is_told():
    def sends_only(tensor, root):
        if dist.get_rank() == root:
            dist.isend(tensor, (root + 1) % 4)

    verdict = check("broadcast", sends_only)
    assert verdict.kind == "raised" and "never received" in verdict.text


def test_not_implemented_inside_torch_is_no_stub():
    def inside_torch(tensor):
        torch.utils.data.IterableDataset().__iter__()

    assert check("ring all-reduce", inside_torch).kind == "raised"


def test_what_an_answer_prints_is_shown_once(capsys):
    def talks(tensor):
        print("hello")
        RIGHT["ring all-reduce"][0](tensor)

    assert check("ring all-reduce", talks).passed
    assert (
        capsys.readouterr().out.count("hello") == exercise("ring all-reduce").cases[0].ranks
    )


def test_the_same_answer_has_the_same_text():
    _, answer, _, _ = next(a for a in wrong_answers if a[0] == "ring all-reduce")
    assert check("ring all-reduce", answer) == check("ring all-reduce", answer)


# --- Names and texts ------------------------------------------------------------------


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match="name must be one of .*'ring reduce-scatter'"):
        check("ring reduce", stub)
    with pytest.raises(ValueError, match="chapter must be one of .*'03'"):
        exercises("3")


def test_a_call_instead_of_a_function_is_told():
    with pytest.raises(ValueError, match="function must be something to call, not None"):
        check("broadcast", None)


def test_an_exercise_tells_task_signature_size_and_target():
    text = repr(exercise("ring reduce-scatter"))
    assert "def my_reduce_scatter(tensor): return piece" in text
    assert "Size: about 10 lines." in text
    assert "no rank sends more than 24 bytes, in 3 steps" in " ".join(text.split())


def test_a_verdict_has_a_kind_that_exists():
    with pytest.raises(ValueError, match="kind must be one of"):
        Verdict("fine", "", True)
    assert set(checks.__all__) == {"Verdict", "check", "exercise", "exercises"}


# --- Comparing ------------------------------------------------------------------------


def test_the_last_element_of_the_last_rank_counts():
    right = [torch.zeros(5)] * 3
    wrong = [torch.zeros(5), torch.zeros(5), torch.tensor([0.0, 0, 0, 0, 1e-3])]
    kind, text = first_difference(wrong, right)
    assert kind == "wrong values"
    assert "first at rank 2, element 4: 0.001, should be 0" in text


def test_other_dtypes_and_nan_are_seen():
    assert first_difference([torch.zeros(2).double()], [torch.zeros(2)]) == (
        "wrong shape", "wrong shape: rank 0 has torch.float64, should be torch.float32",
    )  # fmt: skip
    nan = torch.tensor([float("nan")])
    assert first_difference([nan], [torch.zeros(1)])[0] == "wrong values"
    left = InPlace(torch.zeros(2), returned=torch.ones(2))
    assert "unchanged" in first_difference([left], [torch.ones(2)])[1]
