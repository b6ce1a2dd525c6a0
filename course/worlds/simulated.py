"""The simulated world: ranks that live in the notebook, on a cluster that is described.

What is modelled
- One rank runs at a time; runs are the same to the last digit. Each rank has its own
  copy of the function and its arguments, its own process groups and random generator.
- A message of M bytes takes alpha + M / B of the link between its two ranks. It holds
  the sender's port out and the receiver's port in for M / B: a GPU's own ports inside a
  node, network cards between nodes. Transfers that want a busy port wait their turn.
- A built-in collective starts when its last rank has called it, and takes the time of
  the formula in `costs/collectives.py` for the algorithm named in `algorithms`. It holds
  the ports of all its ranks for that time.
- Compute is free, or charged by a roofline per torch operation (compute="roofline").
- Each rank has a compute lane and a communication lane. `wait()` joins them.
  `torch.cpu.Stream`s are lanes too: torch code that overlaps by streams does so here.

What is not
- How NCCL shares a link between two transfers: here one goes after the other, which ends
  at the same time for the last of them.
- Kernel launches, memory that fragments, adding inside a collective, caches.
- Python's `random` and NumPy's generator, and module globals: ranks share them.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading

import torch.distributed as dist

from course.costs.topology import Cluster, cluster_for
from course.costs.traffic import ALGORITHMS
from course.worlds import parcel
from course.worlds import simulated_reports as reports
from course.worlds.run import Event, Message, RankError, Run
from course.worlds.places import Place, short_file
from course.worlds.simulated_run import Simulation
from course.worlds.simulated_torch import thread_is_rank, threads_are_ranks

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
    "reduce_scatter", "all_to_all", "barrier",
)  # fmt: skip
# The world's process-wide tables are torch's own: one simulated run at a time.
_one_run = threading.Lock()


class SimulatedRanks:
    """The engine behind World(..., on="simulated")."""

    def __init__(
        self, ranks: int, *, timeout_s: float = 60, cluster: Cluster | None = None,
        compute: str = "free", tensors: str = "real", mirror: bool = False,
        memory: bool = False, algorithms: dict[str, str] | None = None,
    ):  # fmt: skip
        self.ranks, self.timeout_s = ranks, timeout_s
        self.cluster = cluster or cluster_for(ranks)
        self.compute, self.tensors = compute, tensors
        self.mirror, self.memory = mirror, memory
        self.algorithms = dict.fromkeys(COLLECTIVES, "ring") | (algorithms or {})
        self._check()

    def _check(self) -> None:
        if self.cluster.ranks < self.ranks:
            raise ValueError(
                f"cluster must have a GPU for each of the {self.ranks} ranks: "
                f"{self.cluster.name} has {self.cluster.ranks}"
            )
        _one_of("compute", self.compute, ("free", "roofline"))
        _one_of("tensors", self.tensors, ("real", "fake"))
        for collective, algorithm in self.algorithms.items():
            _one_of("algorithms", collective, COLLECTIVES)
            _one_of(f"algorithms[{collective!r}]", algorithm, ALGORITHMS)

    def run(self, function, args: tuple, record: bool = False) -> Run:
        """Call function(*args) on every rank, in virtual time."""
        work = parcel.pack_work(function, args)
        simulation = Simulation(
            self.ranks, self.cluster, self.algorithms,
            moves_data=self.tensors == "real", mirror=self.mirror,
        )  # fmt: skip
        results = [None] * self.ranks
        store = dist.HashStore()

        def body(rank: int) -> None:
            with thread_is_rank(simulation, rank, store):
                function, args = parcel.unpack(work)
                results[rank] = function(*args)

        if not _one_run.acquire(blocking=False):
            raise RuntimeError("a simulated run is under way: one can run at a time")
        try:
            with threads_are_ranks(), _printed_by_rank() as printed:
                self._go(simulation, body)
                simulation.check_nothing_open()
        finally:
            _one_run.release()
            _show(printed)
        return _record(simulation, results)

    def _go(self, simulation: Simulation, body) -> None:
        clock = simulation.clock
        try:
            clock.run(body, stall_s=self.timeout_s)
        except TimeoutError:
            frame = sys._current_frames().get(clock.threads[clock.running].ident)
            raise reports.stalled(clock.running, self.timeout_s, frame) from None
        except RankError:
            raise
        except Exception as error:
            if clock.failed_rank is None:
                raise
            raise reports.raised(clock.failed_rank, error) from None

    def close(self) -> None:
        pass


def _one_of(name: str, value, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, not {value!r}")


# --- What ranks print ------------------------------------------------------------------


class _ByThread(io.TextIOBase):
    """Gives what a rank's thread writes to that rank, and the rest to the old stream."""

    def __init__(self, stream, printed: dict[str, list[str]]):
        self._stream, self._printed = stream, printed

    def write(self, text: str) -> int:
        mine = self._printed.get(threading.current_thread().name)
        if mine is None:
            return self._stream.write(text)
        mine.append(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


class _Printed(dict):
    """{"rank 2": [text, ...]}, with a place for each rank that asks."""

    def get(self, name: str, default=None):
        return self.setdefault(name, []) if name.startswith("rank ") else default


@contextlib.contextmanager
def _printed_by_rank():
    printed = _Printed()
    with (
        contextlib.redirect_stdout(_ByThread(sys.stdout, printed)),
        contextlib.redirect_stderr(_ByThread(sys.stderr, printed)),
    ):
        yield printed


def _show(printed: dict[str, list[str]]) -> None:
    for name in sorted(printed, key=lambda name: int(name.split()[1])):
        for line in "".join(printed[name]).splitlines():
            print(f"[{name}] {line}")


# --- The record ------------------------------------------------------------------------


def _record(simulation: Simulation, results: list) -> Run:
    ranks = simulation.ranks
    sent, received = [0] * ranks, [0] * ranks
    for (source, destination), size in simulation.bytes_per_link.items():
        sent[source] += size
        received[destination] += size
    where: dict = {}
    events = [
        Event(*event[:-1], _where(event[-1], where))
        for event in sorted(simulation.events, key=lambda e: (e[3], e[0], e[4]))
    ]
    return Run(
        "simulated",
        results,
        seconds=max(simulation.clock.clock),
        seconds_per_rank=tuple(simulation.clock.clock),
        _events=tuple(events),
        _messages=tuple(
            Message(*m) for m in sorted(simulation.messages, key=lambda m: m[3])
        ),
        _bytes_sent=tuple(sent),
        _bytes_received=tuple(received),
        _bytes_per_link=dict(sorted(simulation.bytes_per_link.items())),
    )


def _where(line: tuple | None, known: dict) -> str:
    if line is None:
        return ""
    if line not in known:
        known[line] = f"{short_file(line[0].co_filename)} line {line[1]}"
    return known[line]
