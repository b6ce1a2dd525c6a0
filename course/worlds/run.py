"""What a run leaves behind: the same record in every world.

No torch here: a `Run` is plain data, so it can be drawn, graded and compared
by code that never starts a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LANES = ("compute", "communication")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that one rank did.

    rank:     who did it, counted from 0 in the whole world
    lane:     "compute" or "communication"
    name:     "send", "recv", "all_reduce", "mm", ...
    start_s:  seconds since the run began
    end_s:    seconds since the run began, not before start_s
    bytes:    of the call, before any algorithm multiplies it: the message, or the
              whole buffer M of the collective as in costs/collectives.py
    peer:     the other rank of a send or recv, the root of a rooted collective, or None
    where:    "file.py:12", the line that made the call, or "" where it is not known
    """

    rank: int
    lane: str
    name: str
    start_s: float
    end_s: float
    bytes: int = 0
    peer: int | None = None
    where: str = ""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes that crossed from one rank to another, and when."""

    source: int
    destination: int
    bytes: int
    start_s: float
    end_s: float
    name: str = "send"


class RankError(RuntimeError):
    """A run failed. The message names the rank, what happened, and the reader's line.

    rank:   the first rank that failed, or None where no single rank is to blame
    cause:  the exception of that rank, where it had one
    """

    def __init__(self, message: str, rank: int | None = None, cause=None):
        super().__init__(message)
        self.rank = rank
        self.cause = cause

    def _render_traceback_(self) -> list[str]:
        """IPython asks an error how to show it: the reader's lines, then the message."""
        from course.worlds.places import describe, of_traceback

        called = [describe(place) for place in of_traceback(self.__traceback__)]
        return [*called, f"{type(self).__name__}: {self}"]


class Deadlock(RankError):
    """Nobody can go on: every rank that still runs waits for another."""


class Mismatch(RankError):
    """Ranks of one group made different calls where all must make the same."""


class NotMetered(ValueError):
    """A run does not hold this number, since it was not asked to measure it."""


@dataclass(frozen=True)
class Run:
    """The outcome of `World.run`.

    world:            "simulated", "gloo" or "nccl"
    results:          what the function returned, one per rank
    seconds:          of the slowest rank (virtual in the simulated world)
    seconds_per_rank: one per rank
    """

    world: str
    results: list[Any]
    seconds: float
    seconds_per_rank: tuple[float, ...] = ()
    # these three may be functions that make them, called once
    _events: tuple[Event, ...] | Callable[[], tuple[Event, ...]] | None = None
    _messages: tuple[Message, ...] | Callable[[], tuple[Message, ...]] | None = None
    _spans: tuple[Event, ...] | Callable[[], tuple[Event, ...]] | None = None
    _bytes_sent: tuple[int, ...] | None = None
    _bytes_received: tuple[int, ...] | None = None
    _bytes_per_link: dict[tuple[int, int], int] | None = None
    _peak_bytes: tuple[int, ...] | None = None
    # one dict per rank: bytes at the peak by kind ("parameters", "gradients", ...)
    _peak_kinds: tuple[dict[str, int], ...] | None = None
    # one list per rank of (seconds, live bytes), for the memory curve
    _memory_curve: tuple[list[tuple[float, int]], ...] | None = None
    _notes: dict[str, Any] = field(default_factory=dict)

    def _metered(self, name: str, how: str):
        value = getattr(self, "_" + name)
        if value is None:
            raise NotMetered(f"this run has no {name}: {how}")
        if callable(value):  # made when first asked for: a long run has many
            value = value()
            object.__setattr__(self, "_" + name, value)
        return value

    @property
    def ranks(self) -> int:
        return len(self.results)

    @property
    def events(self) -> tuple[Event, ...]:
        """Every event of every rank, by start time, then rank."""
        return self._metered("events", "run it with record=True")

    @property
    def spans(self) -> tuple[Event, ...]:
        """What was done under a name, `with torch.profiler.record_function(name)`.

        By start time, then rank. A span is on the lane "compute", and holds the events
        that happened meanwhile. torch names some of its own work so, too.
        """
        return self._metered("spans", "run it with record=True")

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message that a rank sent to another by itself, by start time.

        What a built-in collective sends is in `bytes_per_link`, not here.
        """
        return self._metered("messages", 'only World(..., on="simulated") sees them')

    @property
    def bytes_sent(self) -> tuple[int, ...]:
        """Bytes that each rank sent."""
        return self._metered("bytes_sent", "run it with record=True")

    @property
    def bytes_received(self) -> tuple[int, ...]:
        """Bytes that each rank received."""
        return self._metered("bytes_received", "run it with record=True")

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Most tensor bytes that each rank held at once."""
        return self._metered("peak_bytes", "make the world with memory=True")

    @property
    def peak_kinds(self) -> tuple[dict[str, int], ...]:
        """What `peak_bytes` was made of, one dict per rank."""
        return self._metered("peak_kinds", "make the world with memory=True")

    @property
    def memory_curve(self) -> tuple[list[tuple[float, int]], ...]:
        """(seconds, live tensor bytes) after each change, one list per rank."""
        return self._metered("memory_curve", "make the world with memory=True")

    @property
    def bytes_per_link(self) -> dict[tuple[int, int], int]:
        """Bytes from one rank to another, {(source, destination): bytes}.

        The messages of built-in collectives are in it too: on real ranks all-to-alls with
        the sizes that they were given, others as a ring would send them.
        """
        return self._metered("bytes_per_link", "run it with record=True")

    def __repr__(self) -> str:
        return f"Run({self.world}, {self.ranks} ranks, {self.seconds:.3g} s)"
