"""One rank as a process of its own: start, then run what the world sends.

The forkserver has imported this module before any rank exists, so a new rank is a
fork of a process that holds torch already.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import wait

import torch
import torch.distributed as dist

from course.worlds import parcel, places, profile
from course.worlds.protocol import Job, Left, Raised, Ready, Returned, Seat, Unsendable
from course.worlds.quiet import ignore_new_names

_C = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def main(seat: Seat, jobs, control, parent_pid: int) -> None:
    """The life of a rank.

    jobs:    connection on which runs come and outcomes go back
    control: connection on which the world asks where this rank stands; where it
             ends, the rank ends
    """
    os.setsid()  # out of reach of the terminal's Ctrl-C: the world decides
    _die_with_the_world(seat, control, parent_pid)
    _send_output_to(seat.output)
    jobs.send(_attempt(_take_seat, seat))
    with contextlib.suppress(EOFError, OSError):
        while True:
            outcome = _serve(jobs.recv(), jobs)
            _flush()
            jobs.send(outcome)
    _end(seat)


# -- to die when the notebook dies ------------------------------------------


def _die_with_the_world(seat: Seat, control, parent_pid: int) -> None:
    """Two ways, since each has a hole.

    A thread sees the pipe to the world close; it cannot run while native code holds
    Python's lock. The kernel's parent-death signal needs no lock; but our parent is
    the forkserver, and it lives on while a rank holds its "alive" pipe: so let go.
    """
    signs = [control]
    if hasattr(os, "pidfd_open"):  # a fork of the notebook may keep our pipe open
        signs.append(os.pidfd_open(parent_pid))
    main_thread = threading.main_thread().ident

    def answer():
        with contextlib.suppress(EOFError, OSError):
            while wait(signs) == [control]:
                control.recv()
                control.send(places.of_frame(sys._current_frames()[main_thread]))
        _end(seat)

    threading.Thread(target=answer, daemon=True).start()
    if sys.platform == "linux":
        _C.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _let_go_of_the_forkserver()


def _let_go_of_the_forkserver() -> None:
    server = forkserver._forkserver
    if isinstance(getattr(server, "_forkserver_alive_fd", None), int):
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def _end(seat: Seat) -> None:
    """Leave at once, with every process that this rank has started."""
    shutil.rmtree(os.path.dirname(seat.output), ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


# -- to become a rank ---------------------------------------------------------


def _send_output_to(path: str) -> None:
    """File descriptors, not only sys.stdout, so that prints of C code are caught."""
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = open(fd, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _flush() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    _C.fflush(None)


def _take_seat(seat: Seat) -> Ready:
    os.environ.clear()
    os.environ.update(seat.environ)
    os.environ.update(
        RANK=str(seat.rank), WORLD_SIZE=str(seat.ranks), LOCAL_RANK=str(seat.rank)
    )
    torch.set_num_threads(max(1, _cores() // seat.ranks))
    ignore_new_names()
    _meet(seat)
    return Ready()


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _meet(seat: Seat) -> None:
    """Find the other ranks through a file and build the default process group."""
    device = None
    if seat.backend == "nccl":
        device = torch.device("cuda", seat.rank)
        torch.cuda.set_device(device)
        torch.set_default_device(device)
        parcel.land_on(str(device))
    else:
        # Without this, gloo looks up the host's name, which may not resolve.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    dist.init_process_group(
        seat.backend,
        init_method=f"file://{seat.meeting}",
        rank=seat.rank,
        world_size=seat.ranks,
        timeout=timedelta(seconds=seat.timeout_s),
        device_id=device,
    )


# -- to run what the world sends ------------------------------------------------


def _serve(job: Job, jobs):
    """One run: unpack, say so, wait for the word that all ranks have, go."""
    work = _attempt(_open, job)
    if isinstance(work, (Raised, Left)):
        return work
    jobs.send(Ready())
    jobs.recv()
    return _attempt(_perform, *work, job.record)


def _open(job: Job):
    """(function, args), with the notebook's working directory and import path."""
    os.chdir(job.directory)
    sys.path[:] = job.path
    return parcel.unpack(job.work)


def _perform(function, args, record: bool):
    group = dist.group.WORLD
    with profile.recording(record) as recorded:
        started_ns, start = time.time_ns(), time.perf_counter()
        value = function(*args)
        _synchronize()
        seconds = time.perf_counter() - start
    try:
        packed = parcel.pack(value)
    except Exception as error:
        return Unsendable(type(value).__name__, str(error))
    fresh = dist.is_initialized() and dist.group.WORLD is group
    return Returned(packed, seconds, started_ns, recorded.trace, fresh)


def _synchronize() -> None:
    """Wait for the GPU, whose work is only queued when a function returns."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _attempt(function, *args):
    try:
        return function(*args)
    except SystemExit as error:
        return Left(error.code, places.of_traceback(error.__traceback__))
    except BaseException as error:
        return _raised(error)


def _raised(error: BaseException) -> Raised:
    where = places.of_traceback(error.__traceback__)
    try:
        cause = parcel.pack(error.with_traceback(None))
    except Exception:
        cause = None
    return Raised(type(error).__name__, str(error), where, cause)
