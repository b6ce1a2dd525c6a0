"""Run an answer on every case, compare every element, then look at the meter."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import torch.distributed as dist

from course.checks.compare import first_difference
from course.checks.exercise import Case, OnRanks
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
    """Values on all cases first, then rules and traffic: the first fault is told."""
    runs: list[tuple[Case, Run]] = []
    for case in exercise.cases:
        try:
            run = _run(exercise, function, case, quiet=bool(runs))
        except Exception as error:
            return of_error(error, case.describe())
        fault = first_difference(run.results, exercise.expected(case))
        if fault:
            return wrong(*fault, case.describe())
        runs.append((case, run))
    for case, run in runs:
        fault = complaint(run, case, exercise)
        if fault:
            return wrong(*fault, case.describe())
    return right(f"right: {summary(runs[0][1])}", _cases(exercise.cases))


def _run(exercise: OnRanks, function: Callable, case: Case, quiet: bool) -> Run:
    """One case on a simulated world. What later cases print is not shown again."""
    with contextlib.ExitStack() as stack:
        if quiet:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        world = stack.enter_context(
            World(case.ranks, cluster=_cluster(case), timeout_s=_TIMEOUT_S)
        )
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
