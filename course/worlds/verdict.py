"""From what the ranks of a failed run report to one sentence for the reader.

Pure functions over `protocol` outcomes, so that every sentence can be tested
without a process.
"""

from __future__ import annotations

import re
import signal
from itertools import groupby

from course.worlds import parcel
from course.worlds.places import describe
from course.worlds.protocol import (
    OK,
    Died,
    Hung,
    Left,
    Raised,
    Ready,
    Returned,
    Unsendable,
)
from course.worlds.run import RankError

# What gloo and NCCL say on the ranks whose peer is gone.
_CONSEQUENCE = re.compile(
    "connection closed by peer|connection reset|broken pipe|socket closed"
    "|connection refused|remote process exited",
    re.IGNORECASE,
)
_KILLED = {
    "SIGKILL": "by the system, perhaps, because memory ran out, or by hand",
    "SIGSEGV": "native code reached for memory that is not its own",
    "SIGABRT": "native code gave up; its reason is in the output above",
    "SIGTERM": "somebody asked it to end",
}


def is_consequence(outcome) -> bool:
    """Whether a rank only saw that a peer was gone."""
    return isinstance(outcome, Raised) and bool(_CONSEQUENCE.search(outcome.text))


def failed(outcomes: dict) -> bool:
    return not all(isinstance(outcome, OK) for outcome in outcomes.values())


def verdict(outcomes: dict, timeout_s: float) -> RankError:
    """The error for a run of which at least one rank failed."""
    rank = min(outcomes, key=lambda r: (_blame(outcomes[r]), r))
    outcome = outcomes[rank]
    if isinstance(outcome, Hung):
        return _late(outcomes, timeout_s)
    text = f"rank {rank} {_sentence(outcome)}"
    same = [r for r in outcomes if r != rank and outcomes[r] == outcome]
    if same:
        text += f"\n  and so did {names(same)}"
    return RankError(text, rank, _cause(outcome))


def _blame(outcome) -> int:
    """Small for what may have caused the rest, large for what follows from it."""
    if is_consequence(outcome):
        return 2
    order = {Died: 0, Left: 1, Raised: 1, Unsendable: 1, Hung: 3}
    return order.get(type(outcome), 4)


def _cause(outcome):
    if not isinstance(outcome, Raised) or outcome.cause is None:
        return None
    try:
        return parcel.unpack(outcome.cause)
    except Exception:  # a class whose __init__ wants more than its message
        return None


def _sentence(outcome) -> str:
    match outcome:
        case Raised(kind, text, places):
            return f"raised {kind}: {text}" + _lines(places)
        case Left(code, places):
            return f"left the run by sys.exit({code!r})" + _lines(places)
        case Unsendable(kind, text):
            return (
                f"returned a {kind}, which cannot be sent back: {text}. "
                "Return numbers, tensors, or lists and dicts of them"
            )
        case Died(exitcode):
            return _death(exitcode)
    raise AssertionError(outcome)


def _lines(places) -> str:
    return "".join("\n  " + describe(place) for place in places)


def _death(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"ended its process with exit code {exitcode}, before the run was over"
    name = signal.Signals(-exitcode).name
    why = f" ({_KILLED[name]})" if name in _KILLED else ""
    return f"was killed by signal {name}{why}"


def _late(outcomes: dict, timeout_s: float) -> RankError:
    """Time was up: who waits for whom, and where."""
    waiting = [r for r, o in outcomes.items() if _waits(o)]
    busy = [r for r, o in outcomes.items() if isinstance(o, Hung) and r not in waiting]
    returned = [r for r, o in outcomes.items() if isinstance(o, Returned)]
    blamed = busy[0] if len(busy) == 1 else None
    head = f"the run did not end within {timeout_s:g} s (timeout_s)"
    if waiting and returned and not busy:
        head += f": {names(waiting)} waited for ranks that had returned"
    elif waiting and blamed is not None:
        head += f": {names(waiting)} waited, and rank {blamed} did not come"
    elif waiting and not busy:
        head += ": all ranks waited for each other"
    return RankError("\n".join([head, *_states(outcomes)]), blamed)


def _waits(outcome) -> bool:
    return isinstance(outcome, Hung) and bool(outcome.place) and outcome.place.waits


def _states(outcomes: dict) -> list[str]:
    """One line for each group of ranks in the same state, by lowest rank."""
    states: dict[tuple, list[int]] = {}
    for rank in sorted(outcomes):
        states.setdefault(_state(outcomes[rank]), []).append(rank)
    lines = []
    for (one, many, rest), ranks in states.items():
        lines.append(f"  {names(ranks)} {many if len(ranks) > 1 else one}{rest}")
    return lines


def _state(outcome) -> tuple[str, str, str]:
    """What a rank does: the verb for one, the verb for many, and the rest."""
    match outcome:
        case Returned():
            return "returned", "returned", ""
        case Ready():
            return "was ready to begin", "were ready to begin", ""
        case Hung(None):
            rest = " no answer, so it is in native code that holds Python's lock"
            return "gave", "gave", rest
        case Hung(place) if place.waits:
            return "waits", "wait", f" in {place.call}, {describe(place)}"
        case Hung(place) if place.call:
            return "is", "are", f" in {place.call}, {describe(place)}"
        case Hung(place):
            return "is", "are", f" at {describe(place)}"
    raise AssertionError(outcome)


def names(ranks: list[int]) -> str:
    """ "rank 2", "ranks 1 and 4", "ranks 0-2, 5 and 7"."""
    parts = []
    for _, run in groupby(enumerate(sorted(ranks)), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in run]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(r) for r in run]
    many = "s" if len(ranks) > 1 else ""
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return f"rank{many} {listed}"
