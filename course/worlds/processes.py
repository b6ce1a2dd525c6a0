"""Real ranks: processes that stay, one per rank, on gloo or nccl.

The parent's side. `crew` starts and ends the processes, `rank_process` is what they
run, `verdict` words what went wrong, `parcel` carries functions and tensors.
"""

from __future__ import annotations

import os
import sys

from course.worlds import crew, parcel
from course.worlds.profile_events import merge
from course.worlds.protocol import Job, Returned
from course.worlds.run import RankError, Run
from course.worlds.verdict import failed, verdict

OUTPUT_LIMIT = 1_000_000  # characters shown of each rank's output


class ProcessRanks:
    """The engine of `World(n, on="gloo")` and `World(n, on="nccl")`."""

    def __init__(self, ranks: int, backend: str, timeout_s: float):
        if "course.worlds.rank_process" in sys.modules:
            raise RuntimeError(
                "a rank cannot start ranks of its own: make the World in the notebook, "
                "outside the function that ranks run"
            )
        crew.warm_up()
        self.ranks, self.backend, self.timeout_s = ranks, backend, timeout_s
        self._crew = self._new_crew()
        self._shown = [0] * ranks

    def _new_crew(self):
        self._ready = False
        return crew.Crew(self.ranks, self.backend, self.timeout_s)

    def run(self, function, args: tuple, record: bool) -> Run:
        work = parcel.pack_work(function, args)
        job = Job(work, record, os.getcwd(), tuple(sys.path))
        try:
            self._make_ready()
            outcomes = self._crew.perform(job, self.timeout_s)
        except BaseException:  # an interrupt, too: half a run is no use to the next
            self._replace_later()
            raise
        if failed(outcomes):
            self._replace_later()
            raise verdict(outcomes, self.timeout_s)
        self._show_output()
        if not all(outcome.fresh for outcome in outcomes.values()):
            self._replace_later()
        return self._run(outcomes)

    def _make_ready(self) -> None:
        if self._crew and not self._crew.alive():
            print("a rank has ended since the last run: all ranks start anew")
            self._crew.end()
            self._crew = None
        if self._crew is None:
            self._crew, self._shown = self._new_crew(), [0] * self.ranks
        if not self._ready:
            outcomes = self._crew.wait_until_ready()
            if failed(outcomes):
                error = verdict(outcomes, crew.START_S)
                raise RankError(f"the ranks could not start: {error}", error.rank)
            self._ready = True

    def _replace_later(self) -> None:
        """End all ranks. The next run starts new ones."""
        if self._crew:
            self._crew.stop()
            self._show_output()
            self._crew.end()
        self._crew = None

    def _show_output(self) -> None:
        """Print what each rank has printed since last time, rank by rank."""
        for rank in range(self.ranks):
            text, self._shown[rank] = _read(self._crew.output(rank), self._shown[rank])
            if text:
                print(_prefixed(rank, text), end="")

    def _run(self, outcomes: dict[int, Returned]) -> Run:
        ordered = [outcomes[rank] for rank in range(self.ranks)]
        seconds = tuple(outcome.seconds for outcome in ordered)
        return Run(
            world=self.backend,
            results=[parcel.unpack(outcome.value) for outcome in ordered],
            seconds=max(seconds),
            seconds_per_rank=seconds,
            **_recorded(ordered),
        )

    def close(self) -> None:
        if self._crew:
            self._crew.end()
            self._crew = None


def _recorded(outcomes: list[Returned]) -> dict:
    """What a recorded run knows more. Its clock starts with the first rank."""
    traces = [outcome.trace for outcome in outcomes]
    if None in traces:
        return {}
    start_ns = min(outcome.started_ns for outcome in outcomes)
    return {
        "_events": merge(traces, start_ns),
        "_spans": merge(traces, start_ns, "spans"),
        "_bytes_sent": tuple(trace.sent for trace in traces),
        "_bytes_received": tuple(trace.received for trace in traces),
        "_bytes_per_link": {
            (rank, to): n for rank, t in enumerate(traces) for to, n in t.sent_to.items()
        },
    }


def _read(path: str, start: int) -> tuple[str, int]:
    """What a file holds from a byte on, not more than is fit to show; and its end."""
    if not os.path.exists(path):
        return "", start
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(OUTPUT_LIMIT)
        end = file.seek(0, os.SEEK_END)
    left = end - start - len(data)
    text = data.decode(errors="replace")
    return text + (f"\n... and {left} bytes more" if left else ""), end


def _prefixed(rank: int, text: str) -> str:
    return "".join(f"[rank {rank}] {line}\n" for line in text.splitlines())
