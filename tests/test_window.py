"""A part of a run: cut where all ranks met, on a clock of its own."""

import pytest
import torch
import torch.distributed as dist

from course import World
from course.facts import KIB
from course.parallel.collectives import ring_all_reduce
from course.worlds.run import Event, Run
from course.worlds.spend import spend
from course.worlds.window import after


def late_ring(nbytes):
    """Rank r comes r ms late to a barrier, then all walk the ring."""
    spend(0.001 * dist.get_rank())
    dist.barrier()
    ring_all_reduce(torch.zeros(nbytes // 4))


def ring(nbytes):
    ring_all_reduce(torch.zeros(nbytes // 4))


def what(run):
    return [(e.rank, e.name, e.bytes, e.peer) for e in run.events]


def test_what_came_after_the_barrier_is_the_run_without_it():
    world = World(4)
    cut, whole = after(world.run(late_ring, 64 * KIB)), world.run(ring, 64 * KIB)
    assert what(cut) == what(whole)
    assert cut.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert min(e.start_s for e in cut.events) == pytest.approx(0, abs=1e-15)


def test_real_ranks_are_cut_where_they_met():
    with World(2, on="gloo") as world:
        run = world.run(late_ring, 64 * KIB, record=True)
    cut = after(run)
    talk = [e for e in cut.events if e.lane == "communication"]
    assert sorted(e.name for e in talk) == ["recv"] * 4 + ["send"] * 4
    assert min(e.start_s for e in talk) >= 0
    assert cut.seconds < run.seconds and len(cut.seconds_per_rank) == 2


def test_the_clock_starts_with_the_first_to_leave():
    events = (
        Event(0, "communication", "barrier", 0.0, 2.0),
        Event(0, "compute", "mm", 2.5, 3.0),
        Event(1, "compute", "mm", 0.0, 1.0),
        Event(1, "communication", "barrier", 1.0, 4.0),
        Event(1, "compute", "mm", 4.0, 6.0),
    )
    cut = after(Run("gloo", [None, None], 9.0, (9.0, 9.0), events))
    found = [(e.rank, e.start_s, e.end_s) for e in cut.events]
    assert found == [(0, 0.5, 1.0), (1, 2.0, 4.0)]
    assert (cut.seconds, cut.seconds_per_rank) == (4.0, (1.0, 4.0))


def test_a_rank_that_did_not_come_is_named():
    run = Run("gloo", [None], 1.0, (1.0,), (Event(0, "compute", "mm", 0.0, 1.0),))
    with pytest.raises(ValueError, match="rank 0 has no 'barrier'"):
        after(run)
