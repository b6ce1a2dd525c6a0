"""Where torch is told that each thread is a rank. All that is private to torch's own
process-group bookkeeping stands here and in simulated_group.py.

torch keeps the process groups of a process in one object, `distributed_c10d._world`.
While a run lasts, that object is one that keeps them per thread.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import warnings

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from course.worlds.quiet import ignore_new_names
from course.worlds.simulated_group import SimulatedGroup
from course.worlds.simulated_loss import loss_is_parallel, set_loss_parallel

GC_OBJECTS = 20_000  # new objects between two collections, while ranks run

_here = threading.local()  # .simulation and .rank, on the threads of ranks


def simulation_here():
    """(simulation, rank) of the calling thread, or None where it is no rank's."""
    simulation = getattr(_here, "simulation", None)
    return None if simulation is None else (simulation, _here.rank)


class _WorldOfThread(threading.local):
    """torch's `_World`, with one set of tables per thread."""

    def __init__(self):
        self.default_pg = None
        self.group_count = 0
        self.pg_map, self.pg_names, self.pg_group_ranks = {}, {}, {}
        self.pg_backend_config, self.tags_to_pg, self.pg_to_tag = {}, {}, {}
        self.pg_coalesce_state, self.comms, self.pg_config_info = {}, [], []


def _create(options, backend_options=None) -> SimulatedGroup:
    """torch calls this for every group that the calling rank is in."""
    here = simulation_here()
    if here is None:
        raise ValueError(
            'the backend "simulated" exists only inside World(...).run; '
            'write World(4).run(function), or use backend="gloo"'
        )
    simulation, rank = here
    members = list(options.global_ranks_in_group) or list(range(simulation.ranks))
    shared = simulation.group(options.group_id, members, rank)
    return SimulatedGroup(simulation, shared, rank)


dist.Backend.register_backend("simulated", _create, extended_api=True, devices=["cpu"])


def _set_guard_once() -> None:
    """torch sets a process-wide stand-in for missing GPUs at each use of fake tensors.

    A CUDA build of 2.11 without a GPU crashes where a second thread does so. Once is
    enough: this thread does it, and then nobody.
    """
    name = "_ensureCUDADeviceGuardSet"
    if torch.version.cuda and not torch.cuda.is_available() and hasattr(torch._C, name):
        getattr(torch._C, name)()
        setattr(torch._C, name, lambda: None)


_set_guard_once()


@contextlib.contextmanager
def threads_are_ranks():
    """For the time of a run: process groups per thread, and one torch thread for all."""
    world, threads, hook = c10d._world, torch.get_num_threads(), sys.excepthook
    random_state, in_loss = torch.default_generator.get_state(), loss_is_parallel()
    wait_all, thresholds = torch.futures.wait_all, gc.get_threshold()
    c10d._world = _WorldOfThread()
    # calls and works live briefly: looking for cycles among them costs a tenth of a run
    gc.set_threshold(thresholds[0] and max(thresholds[0], GC_OBJECTS), *thresholds[1:])
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    torch.set_num_threads(1)
    # torch's own waits in C++, where no other rank can go on
    torch.futures.wait_all = lambda futures: [future.wait() for future in futures]
    try:
        with warnings.catch_warnings():
            ignore_new_names()
            yield
    finally:
        c10d._world = world
        sys.excepthook = hook  # init_process_group puts its own there
        torch.futures.wait_all = wait_all
        gc.set_threshold(*thresholds)
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        torch.set_num_threads(threads)
        torch.default_generator.set_state(random_state)
        set_loss_parallel(in_loss)


@contextlib.contextmanager
def thread_is_rank(simulation, rank: int, store):
    """For the time of a rank's function: torch.distributed is set up on this thread."""
    _here.simulation, _here.rank = simulation, rank
    torch.set_num_threads(1)
    # backward runs on the thread that calls it, where the rank's groups are
    torch._C._set_multithreading_enabled(False)
    try:
        dist.init_process_group(
            "simulated", rank=rank, world_size=simulation.ranks, store=store
        )
        yield
    finally:
        c10d._world.default_pg = None
        _here.simulation = None
