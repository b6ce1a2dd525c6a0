"""Ranks that raise, leave, loop or are interrupted: the run ends and names the one."""

from __future__ import annotations

import signal
import threading

import pytest
import torch
import torch.distributed as dist

from course import World
from course.worlds import Deadlock, RankError
from tests.rank_functions import mistakes

WAIT_S = 1.0  # timeout_s of the worlds whose ranks never end by themselves


def report(function, ranks: int = 2, **options) -> RankError:
    with pytest.raises(RankError) as caught:
        World(ranks, **options).run(function)
    return caught.value


def total() -> float:
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


# --- A rank raises --------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        mistakes.raises_in_finally,
        mistakes.catches_everything_for_ever,
    ],
)
def test_the_first_error_is_reported_whatever_others_do(function):
    error = report(function)
    assert (error.rank, str(error.cause)) == (1, "the first")
    assert str(error).startswith("rank 1 raised ValueError: the first\n")


def test_error_on_its_way_is_told_where_a_call_in_finally_hides_it():
    text = str(report(mistakes.calls_in_finally))
    assert "rank 0 calls all_reduce" in text and "rank 1 calls barrier" in text
    assert "while it handles ValueError: the first" in text


def test_error_of_a_rank_while_others_wait():
    error = report(mistakes.raises_while_the_other_waits, 4)
    assert isinstance(error.cause, ValueError)
    assert "rank 1 raised ValueError: my own mistake" in str(error)
    assert 'raise ValueError("my own mistake")' in str(error)
    assert "deadlock" not in str(error)


def test_first_cause_of_an_error_is_told():
    error = report(mistakes.raises_from_another)
    assert "rank 0 raised RuntimeError: could not go on" in str(error)
    assert "because of KeyError: 'missing'" in str(error)


def test_timeout_error_of_the_reader_is_no_stall():
    assert "raised TimeoutError: of the reader's own" in str(
        report(mistakes.raises_a_timeout)
    )


def test_exit_in_a_rank():
    error = report(mistakes.leaves_by_exit)
    assert error.rank == 1
    assert "rank 1 left the run by sys.exit(3)" in str(error)
    assert "sys.exit(3)" in str(error).splitlines()[1]


# --- A rank does not end --------------------------------------------------------------


def test_endless_loop_without_calls():
    error = report(mistakes.endless_loop, timeout_s=WAIT_S)
    assert error.rank == 1
    assert "rank 1 has run for 1 s without a call to its peers" in str(error)
    assert "timeout_s=1 is over" in str(error)
    assert "in endless_loop: " in str(error)
    assert World(2).run(total).results == [2.0, 2.0]


@pytest.mark.parametrize(
    "function",
    [mistakes.polls_for_what_never_comes, mistakes.both_poll_for_what_never_comes],
)
def test_polling_for_what_never_comes_is_a_deadlock(function):
    error = report(function)
    assert isinstance(error, Deadlock)
    assert "rank 0 asks again and again after its recv from rank 1" in str(error)
    assert "while not work.is_completed():" in str(error) or "time.sleep" in str(error)


def test_polling_is_no_deadlock_while_the_poller_can_still_act():
    looks, x = World(2).run(mistakes.polls_then_acts).results[0]
    assert looks == 0 and x.tolist() == [2.0, 2.0]


def interrupted(function) -> None:
    """Run it, and press Ctrl-C half a second later."""
    main = threading.main_thread().ident
    timer = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    try:
        World(2).run(function)
    finally:
        timer.cancel()


@pytest.mark.parametrize(
    "function", [mistakes.endless_loop, mistakes.endless_loop_of_calls]
)
def test_interrupt(function):
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        interrupted(function)
    assert World(2).run(total).results == [2.0, 2.0]
    assert not set(threading.enumerate()) - before


# --- Runs in runs ---------------------------------------------------------------------


def test_run_inside_a_run():
    error = report(mistakes.nested_run)
    assert "a rank cannot start ranks of its own" in str(error)


started, go_on = threading.Event(), threading.Event()


def waits_for_the_test() -> int:
    started.set()
    go_on.wait(30)
    return dist.get_rank()


def test_two_runs_at_once():
    results = []
    thread = threading.Thread(
        target=lambda: results.extend(World(2).run(waits_for_the_test).results)
    )
    thread.start()
    assert started.wait(30)
    with pytest.raises(RuntimeError, match="a simulated run is under way"):
        World(2).run(total)
    go_on.set()
    thread.join(30)
    assert results == [0, 1]
    assert World(2).run(total).results == [2.0, 2.0]


# --- Functions of notebook cells --------------------------------------------------------

CELL = """
import torch, torch.distributed as dist
from course import World

def step(x):
    if dist.get_rank() == 0:
        dist.all_reduce(x)
    dist.barrier()

def crash():
    if dist.get_rank() == 1:
        raise ValueError("in a cell")
"""


@pytest.fixture
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    yield shell
    shell.reset()
    InteractiveShell.clear_instance()


def test_functions_of_a_notebook_cell(shell):
    shell.run_cell(CELL, store_history=True).raise_error()
    found = shell.run_cell("World(2).run(step, torch.ones(2))", store_history=True)
    text = str(found.error_in_exec)
    assert "cell In[1] line 6, in step: dist.all_reduce(x)" in text
    assert "cell In[1] line 7, in step: dist.barrier()" in text
    assert "ipykernel" not in text and "site-packages" not in text
    found = shell.run_cell("World(2).run(crash)", store_history=True)
    assert 'cell In[1] line 11, in crash: raise ValueError("in a cell")' in str(
        found.error_in_exec
    )
