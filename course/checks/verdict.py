"""What a reader is told about an answer."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from course.worlds.places import describe, is_readers, of_traceback
from course.worlds.run import Deadlock, RankError

KINDS = (
    "not attempted", "raised", "deadlock", "wrong shape", "wrong values",
    "too little traffic", "against the rules", "too much traffic", "too slow",
    "too little memory", "too much memory", "right",
)  # fmt: skip
_OURS = "course/checks/"
_LINES_SHOWN = 2


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check.

    kind:    one of KINDS
    text:    what `check` printed
    passed:  whether the answer is right
    """

    kind: str
    text: str
    passed: bool

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {list(KINDS)}, not {self.kind!r}")

    def _ipython_display_(self) -> None:
        """Nothing: `check` has printed the text already."""


def wrong(kind: str, sentence: str, case: str = "") -> Verdict:
    """An answer that did not pass, and the case that shows it."""
    return Verdict(kind, f"{sentence}\n  case: {case}" if case else sentence, False)


def right(sentence: str, more: str = "") -> Verdict:
    return Verdict("right", f"{sentence}\n  {more}" if more else sentence, True)


def of_error(error: Exception, case: str = "") -> Verdict:
    """The verdict on an answer that did not come to an end."""
    cause = error.cause if isinstance(error, RankError) else error
    if isinstance(error, Deadlock):
        return wrong("deadlock", _without_ours(str(error)), case)
    if cause is None:
        return wrong("raised", _without_ours(str(error)), case)
    if _is_stub(cause):
        return wrong("not attempted", "not attempted")
    who = f"rank {error.rank} " if isinstance(error, RankError) else ""
    return wrong("raised", _short(cause, who), case)


def _is_stub(cause: BaseException) -> bool:
    """Whether the reader's own line says NotImplementedError, not one of torch's."""
    if not isinstance(cause, NotImplementedError):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    return bool(frames) and is_readers(frames[-1].f_code.co_filename)


def _short(cause: BaseException, who: str) -> str:
    """Type, first line of the message, and the reader's last lines."""
    message = (str(cause).splitlines() or ["(no message)"])[0]
    lines = [describe(place) for place in of_traceback(cause.__traceback__)]
    lines = [line for line in lines if not line.startswith(_OURS)][-_LINES_SHOWN:]
    return "\n  ".join([f"{who}raised {type(cause).__name__}: {message}", *lines])


def _without_ours(report: str) -> str:
    lines = report.splitlines()
    return "\n".join(line for line in lines if not line.strip().startswith(_OURS))
