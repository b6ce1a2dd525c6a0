"""Spans of the simulated world: what ranks name by torch.profiler.record_function."""

from __future__ import annotations

import contextlib
import sys
from unittest import mock

from torch.profiler import record_function

from course.worlds.simulated_calls import readers_line
from course.worlds.simulated_torch import simulation_here


@contextlib.contextmanager
def spans_are_noted():
    """For the time of a run: a rank's spans, by its virtual clock, go to `spans`."""
    enter, leave = record_function.__enter__, record_function.__exit__

    def __enter__(span):
        here = simulation_here()
        if here:
            span.began = here[0].clock.clock[here[1]], readers_line(sys._getframe(1))
        return enter(span)

    def __exit__(span, *error):
        here = simulation_here()
        if here and hasattr(span, "began"):
            (start_s, line), (simulation, rank) = span.began, here
            end_s = simulation.clock.clock[rank]
            note = (rank, "compute", span.name, start_s, end_s, 0, None, line)
            simulation.spans.append(note)
        return leave(span, *error)

    with mock.patch.multiple(record_function, __enter__=__enter__, __exit__=__exit__):
        yield
