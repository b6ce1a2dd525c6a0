"""What a rank does under a name: `Run.spans`, in the simulated world and on real ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.profiler import record_function

from course import World, spend
from course.worlds import Event
from course.worlds.run import NotMetered
from course.worlds.window import after


def named_work() -> None:
    rank = dist.get_rank()
    with record_function("outer"):
        spend(0.25 * (1 + rank))
        with record_function("inner"):
            spend(0.125)
    dist.all_reduce(torch.ones(2))


def rows(spans) -> list[tuple]:
    return [(s.rank, s.name, s.start_s, s.end_s) for s in spans]


def test_spans_by_the_virtual_clock():
    run = World(2).run(named_work)
    assert rows(run.spans) == [
        (0, "outer", 0.0, 0.375),
        (1, "outer", 0.0, 0.625),
        (0, "inner", 0.25, 0.375),
        (1, "inner", 0.5, 0.625),
    ]
    assert all(s.lane == "compute" and "test_spans.py" in s.where for s in run.spans)
    assert {"outer", "inner"}.isdisjoint(e.name for e in run.events)


def test_a_span_ends_where_its_rank_fails():
    def fails():
        with record_function("around"):
            raise KeyError("no")

    def caught():
        try:
            fails()
        except KeyError:
            spend(1.0)

    assert rows(World(1).run(caught).spans) == [(0, "around", 0.0, 0.0)]


def test_outside_of_a_run_record_function_is_torchs_own():
    before = record_function.__enter__
    World(1).run(named_work)
    assert record_function.__enter__ is before
    with record_function("here"):
        pass


def test_spans_of_real_ranks():
    ranks = 2
    with World(ranks, on="gloo") as world:
        world.run(named_work)
        run = world.run(named_work, record=True)
        with pytest.raises(NotMetered, match="record=True"):
            _ = world.run(named_work).spans
    assert len(run.spans) == 2 * ranks
    for rank in range(ranks):
        outer, inner = [s for s in run.spans if s.rank == rank]
        assert (outer.name, inner.name) == ("outer", "inner")
        assert outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s
        assert outer.seconds >= 0.25 * (1 + rank) + 0.125 and inner.seconds >= 0.125
        assert isinstance(outer, Event)


def in_two_parts() -> None:
    with record_function("before"):
        spend(1.0)
    dist.barrier()
    with record_function("after"):
        spend(1.0)


def test_a_window_keeps_the_spans_that_begin_in_it():
    window = after(World(2).run(in_two_parts), "barrier")
    assert [(s.rank, s.name, s.seconds) for s in window.spans] == [
        (0, "after", 1.0),
        (1, "after", 1.0),
    ]
    assert min(s.start_s for s in window.spans) == 0.0
