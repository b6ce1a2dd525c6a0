"""The sentence for each way in which a run fails, without starting a rank."""

import pytest

from course.worlds.places import Place
from course.worlds.protocol import Died, Hung, Left, Raised, Returned, Stopped
from course.worlds.verdict import names, verdict

BACK = Returned(b"", 0.1, 0)
GONE = Raised("RuntimeError", "[tcp] Connection closed by peer [127.0.0.1]:1", ())
WAITS = Hung(Place("lab.py", 3, "step", "all_reduce", waits=True))
WORKS = Hung(Place("lab.py", 9, "step"))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2"),
        ([1, 4], "ranks 1 and 4"),
        ([0, 1, 2, 5, 7], "ranks 0-2, 5 and 7"),
        (range(64), "ranks 0-63"),
    ],
)
def test_names(ranks, text):
    assert names(list(ranks)) == text


def test_the_dead_are_blamed_before_those_who_saw_them_go():
    error = verdict({0: GONE, 1: Died(-9), 2: GONE}, 5)
    assert error.rank == 1 and "SIGKILL" in str(error)


def test_a_real_exception_is_blamed_before_a_consequence_of_lower_rank():
    error = verdict({0: GONE, 1: Stopped(), 2: Raised("KeyError", "'x'", ())}, 5)
    assert str(error) == "rank 2 raised KeyError: 'x'"


def test_a_consequence_alone_is_told_as_it_is():
    assert "Connection closed" in str(verdict({0: GONE, 1: BACK}, 5))


def test_a_rank_that_left_is_blamed_though_others_wait():
    error = verdict({0: Stopped(), 1: Left(0)}, 5)
    assert str(error) == "rank 1 left the run by sys.exit(0)"


def test_the_one_who_does_not_wait_is_blamed():
    error = verdict({0: WAITS, 1: WAITS, 2: WORKS, 3: WAITS}, 2.5)
    lines = str(error).splitlines()
    assert lines == [
        "the run did not end within 2.5 s (timeout_s): ranks 0, 1 and 3 waited, "
        "and rank 2 did not come",
        "  ranks 0, 1 and 3 wait in all_reduce, lab.py line 3, in step",
        "  rank 2 is at lab.py line 9, in step",
    ]
    assert error.rank == 2


def test_several_at_work_are_not_blamed():
    error = verdict({0: WORKS, 1: WORKS, 2: BACK}, 5)
    first = str(error).splitlines()[0]
    assert first == "the run did not end within 5 s (timeout_s)"
    assert error.rank is None


def test_those_who_wait_for_ranks_that_returned():
    error = verdict({0: BACK, 1: WAITS}, 5)
    assert "rank 1 waited for ranks that had returned" in str(error)
