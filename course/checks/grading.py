"""Run an answer on every case, compare every element, then look at the meter."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import torch.distributed as dist

from course.checks.compare import Fault, first_difference
from course.checks.exercise import Case, OnRanks
from course.checks.memory import Held, memory_complaint, memory_summary
from course.checks.slips import named
from course.checks.traffic import complaint, summary
from course.checks.verdict import Verdict, of_error, right, wrong
from course.costs.topology import Cluster
from course.facts import DGX_H100, Link, Node
from course.worlds import Run, World

# On such wires bytes cost nothing, so that the seconds of a run are its steps: the
# messages on the longest chain in which each must wait for the one before.
_STEP = Link("one second a message", latency_s=1.0, bytes_per_s=1e18)
_TIMEOUT_S = 20  # of real time without a call: an endless loop, on a busy machine


def grade(exercise: OnRanks, function: Callable) -> Verdict:
    """Values on all cases first, then memory, rules, traffic: the first fault is told."""
    runs: list[tuple[Case, Run]] = []
    for case in exercise.cases:
        try:
            run = _run(exercise, function, case, quiet=bool(runs))
        except Exception as error:
            return of_error(error, case.describe())
        fault = _value_fault(run, case, exercise)
        if fault:
            return wrong(*fault, case.describe())
        runs.append((case, run))
    for case, run in runs:
        fault = memory_complaint(run, case, exercise) or complaint(run, case, exercise)
        if fault:
            return wrong(*fault, case.describe())
    shown = runs[0][1]
    return right(f"right: {summary(shown)}{memory_summary(shown)}", _cases(exercise.cases))


def _value_fault(run: Run, case: Case, exercise: OnRanks) -> Fault | None:
    """The first wrong value, and what slip gives such values, where one is known."""
    left = [r.left if isinstance(r, Held) else r for r in run.results]
    expected = exercise.expected(case)
    fault = first_difference(left, expected)
    if fault and exercise.slips and fault[0] == "wrong values":
        return fault[0], fault[1] + named(left, expected, exercise.slips(case))
    return fault


def _run(exercise: OnRanks, function: Callable, case: Case, quiet: bool) -> Run:
    """One case on a simulated world. What later cases print is not shown again."""
    with contextlib.ExitStack() as stack:
        if quiet:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        options = {"cluster": _cluster(case), "memory": exercise.memory}
        world = stack.enter_context(World(case.ranks, timeout_s=_TIMEOUT_S, **options))
        return world.run(_on_rank, exercise.play, function, case)


def _on_rank(play: Callable, function: Callable, case: Case):
    return play(function, case, dist.get_rank())


def _cluster(case: Case) -> Cluster:
    gpus = case.gpus or case.ranks
    return Cluster(Node("node", DGX_H100.gpu, gpus, _STEP, _STEP, gpus), case.nodes)


def _cases(cases: tuple[Case, ...]) -> str:
    more = sorted({case.ranks for case in cases[1:]} - {cases[0].ranks})
    *most, last = map(str, more)
    return f"case: {cases[0].describe()}; right also on {', '.join(most)} and {last} ranks"
