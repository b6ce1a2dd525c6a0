"""The processes behind one world: start them, give them a job, end them.

A crew serves until something fails. Then the world ends it and takes a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import weakref
from multiprocessing import forkserver
from multiprocessing.connection import wait
from types import ModuleType

from course.worlds.protocol import OK, Died, Hung, Job, Ready, Seat, Stopped
from course.worlds.verdict import is_consequence

START_S = 60  # for a crew of a few ranks to start, on a busy machine
START_S_PER_RANK = 1
GRACE_S = 0.5  # after one rank failed, for others to report what they saw
CONSEQUENCE_GRACE_S = 2  # the same where the first report is a mere consequence
PRELOAD = ["torch", "torch.distributed", "cloudpickle", "course.worlds.rank_process"]

_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


def _become_rank(*args) -> None:
    """In the new process. Here, so that the notebook need not import torch for it."""
    from course.worlds.rank_process import main

    main(*args)


class Crew:
    """`ranks` processes that know each other."""

    def __init__(self, ranks: int, backend: str, timeout_s: float):
        self.directory = tempfile.mkdtemp(prefix="ring-to-rack-")
        self.processes, self.jobs, self.controls = [], [], []
        self.end = weakref.finalize(
            self,
            _end,
            os.getpid(),
            self.directory,
            self.processes,
            [self.jobs, self.controls],
        )
        _crews.add(self)
        self._start_s = START_S + START_S_PER_RANK * ranks
        try:
            for rank in range(ranks):
                self._start(self._seat(rank, ranks, backend, timeout_s))
        except BaseException:
            self.end()
            raise

    def _seat(self, rank, ranks, backend, timeout_s) -> Seat:
        return Seat(
            rank=rank,
            ranks=ranks,
            backend=backend,
            meeting=os.path.join(self.directory, "meeting"),
            output=self.output(rank),
            # Never before the world's own deadline, which explains more.
            timeout_s=max(timeout_s, self._start_s) + 5,
            environ=dict(os.environ),
        )

    def output(self, rank: int) -> str:
        """The file that holds what a rank printed."""
        return os.path.join(self.directory, f"rank-{rank}.out")

    def _start(self, seat: Seat) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        job, its_job = context.Pipe()
        control, its_control = context.Pipe()
        process = context.Process(
            target=_become_rank,
            args=(seat, its_job, its_control, os.getpid()),
            name=f"rank-{seat.rank}",
        )
        with _main_module_hidden():
            process.start()
        its_job.close()
        its_control.close()
        self.processes.append(process)
        self.jobs.append(job)
        self.controls.append(control)

    def wait_until_ready(self) -> dict:
        return self._collect(self._start_s)

    def stop(self) -> None:
        """End the processes, but keep what they printed until `end`."""
        _stop(self.processes)

    def alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def perform(self, job: Job, timeout_s: float) -> dict:
        """Outcomes, {rank: one of protocol's}. All ranks start at the same moment."""
        deadline = time.monotonic() + timeout_s
        self._tell(job)
        outcomes = self._collect(deadline - time.monotonic())
        if any(not isinstance(o, Ready) for o in outcomes.values()):
            return outcomes
        self._tell("go")
        return self._collect(deadline - time.monotonic())

    def _tell(self, message) -> None:
        packed = pickle.dumps(message)  # once, not once a rank
        for job in self.jobs:
            with contextlib.suppress(OSError):  # a dead rank is noticed in _collect
                job.send_bytes(packed)

    def _collect(self, seconds: float) -> dict:
        """One answer from every rank, or what can be said when time is up."""
        outcomes: dict = {}
        limit, failed = time.monotonic() + seconds, False
        while len(outcomes) < len(self.processes):
            if (left := limit - time.monotonic()) <= 0:
                break
            for rank in self._speaking(outcomes, left):
                outcomes[rank] = outcome = self._hear(rank, rank in outcomes)
                if not isinstance(outcome, OK):
                    grace = CONSEQUENCE_GRACE_S if is_consequence(outcome) else GRACE_S
                    limit, failed = min(limit, time.monotonic() + grace), True
        silent = [r for r in range(len(self.processes)) if r not in outcomes]
        return outcomes | ({r: Stopped() for r in silent} if failed else self._ask(silent))

    def _speaking(self, outcomes: dict, seconds: float) -> set[int]:
        """Ranks that have something to read, or have ended."""
        signs = {
            process.sentinel: rank
            for rank, process in enumerate(self.processes)
            if not isinstance(outcomes.get(rank), Died)
        }
        signs |= {job: rank for rank, job in enumerate(self.jobs) if rank not in outcomes}
        return {signs[sign] for sign in wait(list(signs), seconds)}

    def _hear(self, rank: int, answered: bool):
        with contextlib.suppress(EOFError, OSError):
            if not answered and self.jobs[rank].poll():
                return self.jobs[rank].recv()
        self.processes[rank].join(1)
        return Died(self.processes[rank].exitcode)

    def _ask(self, ranks: list[int], seconds: float = 1) -> dict:
        """Where these ranks stand. One that does not say gets Hung(None)."""
        outcomes = {rank: Hung(None) for rank in ranks}
        controls = {self.controls[rank]: rank for rank in ranks}
        for control in controls:
            with contextlib.suppress(OSError):
                control.send("where")
        limit = time.monotonic() + seconds
        while controls and (ready := wait(list(controls), limit - time.monotonic())):
            for control in ready:
                rank = controls.pop(control)
                with contextlib.suppress(EOFError, OSError):
                    outcomes[rank] = Hung(control.recv())
        return outcomes


@contextlib.contextmanager
def _main_module_hidden():
    """Keep a new process from running the notebook's or script's __main__ again.

    multiprocessing does so in order to unpickle from it; cloudpickle has no need.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _end(owner, directory, processes, connections) -> None:
    if os.getpid() != owner:
        return  # a fork of the notebook's process: the ranks are not its own
    _stop(processes)
    for group in connections:
        for connection in group:
            connection.close()
    shutil.rmtree(directory, ignore_errors=True)


def _stop(processes) -> None:
    for process in processes:
        _kill(process)
    for process in processes:
        process.join(2)


def _kill(process) -> None:
    """End one rank and what it started. Its group has the rank's own number."""
    if not process.is_alive():
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # too young to have made its group
        process.kill()


def _end_all() -> None:
    for crew in list(_crews):
        crew.end()


# Registered after multiprocessing's own handler, hence run before it: that one waits
# for processes that nobody has ended.
atexit.register(_end_all)


def warm_up() -> None:
    """Let the forkserver start to import torch, without waiting for it."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise ValueError(
            "real ranks need Linux or macOS: on Windows, run JupyterLab inside WSL, "
            "or write World(4), the simulated world"
        )
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()
