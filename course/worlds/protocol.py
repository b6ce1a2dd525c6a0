"""What a world and its rank processes tell each other. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from course.worlds.places import Place


@dataclass(frozen=True)
class Seat:
    """All that a new process must know to become one rank.

    meeting:   the file through which the ranks find each other, so that no TCP
               port has to be agreed on
    output:    the file that takes what the rank prints
    timeout_s: of the process group
    environ:   the parent's environment variables
    """

    rank: int
    ranks: int
    backend: str
    meeting: str
    output: str
    timeout_s: float
    environ: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class Job:
    """One run. `work` is (function, args), packed by `parcel`."""

    work: bytes
    record: bool
    directory: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Ready:
    """The rank has started, or has unpacked its job: it waits for the word to go."""


@dataclass(frozen=True)
class Returned:
    """The function came back.

    value:      what it returned, packed
    seconds:    inside the function
    started_ns: when it was called, by this machine's clock (ns since 1970)
    trace:      what `profile.read_trace` made of it, where the run was recorded
    fresh:      whether this rank can serve another run
    """

    value: bytes
    seconds: float
    started_ns: int
    trace: Any = None
    fresh: bool = True


@dataclass(frozen=True)
class Raised:
    """The function raised. `places` are the reader's lines, innermost last."""

    kind: str
    text: str
    places: tuple[Place, ...]
    cause: bytes | None = None


@dataclass(frozen=True)
class Unsendable:
    """What the function returned cannot be pickled."""

    kind: str
    text: str


@dataclass(frozen=True)
class Left:
    """The function called sys.exit(code)."""

    code: Any
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Died:
    """The process is gone. `exitcode` is minus the signal that killed it."""

    exitcode: int | None


@dataclass(frozen=True)
class Hung:
    """The deadline came. `place` is where the rank stood, None where it did not say."""

    place: Place | None


@dataclass(frozen=True)
class Stopped:
    """Still at work when another rank failed."""


OK = (Ready, Returned)
