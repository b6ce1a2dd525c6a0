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
- Memory is that of live storages, told apart by what torch says of them (memory=True).
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
import threading

import torch.distributed as dist

from course.costs.topology import Cluster, cluster_for
from course.costs.traffic import ALGORITHMS
from course.worlds import parcel
from course.worlds import simulated_reports as reports
from course.worlds.run import RankError, Run
from course.worlds.simulated_clock import Stalled
from course.worlds.simulated_fake import FakeCollectives, as_fake, fake_mode, fake_rule
from course.worlds.simulated_fsdp import pieces_on_demand
from course.worlds.simulated_memory import RankMemory, torch_tells
from course.worlds.simulated_meter import RankMeter
from course.worlds.simulated_mirror import MirroredSimulation
from course.worlds.simulated_output import printed_by_rank, show
from course.worlds.simulated_record import record_of
from course.worlds.simulated_run import Simulation
from course.worlds.simulated_spans import spans_are_noted
from course.worlds.simulated_streams import streams_are_simulated
from course.worlds.simulated_torch import simulation_here, thread_is_rank, threads_are_ranks

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter",
    "reduce_scatter", "all_to_all", "barrier",
)  # fmt: skip
# The world's process-wide tables are torch's own: one simulated run at a time.
_one_run = threading.Lock()


class SimulatedRanks:
    """The engine behind World(..., on="simulated").

    cluster:    `costs.topology.Cluster` with a GPU for each rank, default DGX H100 nodes
    compute:    "free", or "roofline": each torch operation takes the longer of its FLOPs
                and its bytes on the cluster's GPU
    memory:     True meters live tensor bytes: Run.peak_bytes, peak_kinds, memory_curve
    tensors:    "real", or "fake": shapes and sizes without values, for models of any size
    mirror:     True runs rank 0 alone and takes every peer for its mirror image
    algorithms: {collective: "ring", "naive" or "tree"}, how built-in ones are charged
    timeout_s:  so long may a rank run without a sign of life

    Raises ValueError for a cluster that is too small and for unknown choices.
    """

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
        threads = 1 if self.mirror else self.ranks
        kind = MirroredSimulation if self.mirror else Simulation
        simulation = kind(
            self.ranks, threads, self.cluster, self.algorithms, self.tensors == "real"
        )
        results = [None] * threads
        store = dist.HashStore()

        def body(rank: int) -> None:
            with (
                thread_is_rank(simulation, rank, store),
                self._meters(simulation, rank) as fake,
            ):
                function, args = parcel.unpack(work)
                results[rank] = function(*(as_fake(fake, args) if fake else args))

        _take_the_turn()
        try:
            with self._around(), printed_by_rank() as printed:
                self._go(simulation, body)
                simulation.check_nothing_open()
        finally:
            _one_run.release()
            show(printed)
        return record_of(simulation, results)

    @contextlib.contextmanager
    def _around(self):
        """What is different in this process while a run lasts."""
        with threads_are_ranks(), contextlib.ExitStack() as more:
            more.enter_context(streams_are_simulated())
            more.enter_context(spans_are_noted())
            if self.memory or self.compute == "roofline":
                more.enter_context(torch_tells())
            if self.mirror:
                more.enter_context(pieces_on_demand())
            yield

    @contextlib.contextmanager
    def _meters(self, simulation: Simulation, rank: int):
        """What sees or fakes the operations of one rank; the fake mode or None."""
        fake = fake_mode() if self.tensors == "fake" else None
        if self.memory:
            simulation.memories[rank] = RankMemory(lambda: simulation.clock.clock[rank])
        gpu = self.cluster.node.gpu if self.compute == "roofline" else None
        with contextlib.ExitStack() as modes:
            if fake:
                modes.enter_context(fake)
            if fake or gpu or self.memory:
                meter = RankMeter(
                    simulation, rank, gpu, simulation.memories.get(rank),
                    FakeCollectives() if fake else None,
                )  # fmt: skip
                modes.enter_context(meter)
            yield fake

    def _go(self, simulation: Simulation, body) -> None:
        clock = simulation.clock
        try:
            clock.run(body, stall_s=self.timeout_s)
        except Stalled as late:
            raise reports.stalled(late.rank, self.timeout_s, late.stack) from None
        except RankError:
            raise
        except (Exception, SystemExit) as error:
            if clock.failed_rank is None:
                raise
            if self.tensors == "fake" and (rule := fake_rule(error)):
                raise reports.fake(clock.failed_rank, rule, error) from None
            raise reports.raised(clock.failed_rank, error) from None

    def close(self) -> None:
        pass


def _take_the_turn() -> None:
    if simulation_here():
        raise RuntimeError(
            "a rank cannot start ranks of its own: run the World in the notebook, "
            "outside the function that ranks run"
        )
    if not _one_run.acquire(blocking=False):
        raise RuntimeError("a simulated run is under way: one can run at a time")


def _one_of(name: str, value, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, not {value!r}")
