"""What the reader is told when ranks cannot go on together."""

from __future__ import annotations

import sys

from course.worlds.places import describe, of_traceback
from course.worlds.run import Deadlock, Mismatch, RankError
from course.worlds.simulated_calls import Call, MismatchedCalls, place_of, readers_line
from course.worlds.verdict import names


def at(line: tuple | None, indent: str = "      ") -> str:
    return "" if line is None else f"\n{indent}{describe(place_of(line))}"


# --- A rank raised ------------------------------------------------------------------


def raised(rank: int, error: BaseException) -> RankError:
    """The error of one rank, with the reader's lines."""
    lines = "".join(f"\n  {describe(p)}" for p in of_traceback(error.__traceback__))
    what = f"{type(error).__name__}: {error}".rstrip()
    return RankError(f"rank {rank} raised {what}{lines}{_cause(error)}", rank, error)


def _cause(error: BaseException) -> str:
    """Where the error came from in the first place, when one was raised from another."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return "" if first is error else f"\n  because of {type(first).__name__}: {first}"


def fake(rank: int, rule: str, error: BaseException) -> RankError:
    """The error of a rank that wanted more of a fake tensor than it has."""
    places = of_traceback(error.__traceback__)
    lines = "".join(f"\n  {describe(p)}" for p in places)
    what = str(error).splitlines()[0]
    return RankError(
        f"rank {rank} needs the values of a fake tensor ({what}){lines}\n  Rule: {rule}.",
        rank,
        error,
    )


def stalled(rank: int, seconds: float, frame) -> RankError:
    line = readers_line(frame)
    return RankError(
        f"rank {rank} has run for {seconds:g} s without a call to its peers, which wait "
        f"for it; timeout_s={seconds:g} is over{at(line, '  ')}",
        rank,
    )


# --- Calls that do not fit ----------------------------------------------------------


def mismatch(wrong: MismatchedCalls) -> Mismatch:
    first, second = sorted((wrong.first, wrong.second), key=lambda c: c.rank)
    if wrong.first.kind in ("send", "recv"):
        head = f"the message from rank {wrong.first.rank} to rank {wrong.second.rank}"
        head += " does not fit what is received"
        first, second = wrong.first, wrong.second
    else:
        group = names(first.group.members)
        head = f"different calls where {group} must make the same one"
        head += f" (their collective number {first.sequence + 1})"
    rule = wrong.rule or "every rank of a group makes the same calls, in the same order"
    return Mismatch(
        f"{head}{_call_lines(first)}{_call_lines(second)}\n  Rule: {rule}.", second.rank
    )


def _call_lines(call: Call) -> str:
    return f"\n  rank {call.rank} calls {call.describe()}{at(call.line)}"


def unanswered(call: Call) -> str:
    other = "receives it" if call.kind == "send" else "sends it"
    return (
        f"the run is over, but a {call.kind} was left open: nobody {other}"
        f"{_call_lines(call)}\n  Rule: each send needs one recv with the same peer, "
        "group and tag, and wait() on both."
    )


def unfinished(collective, shared) -> str:
    missing = [shared.members[r] for r, call in enumerate(collective.calls) if call is None]
    return (
        f"the run is over, but {names(missing)} never joined a collective"
        f"{_call_lines(collective.first)}\n  Rule: every rank of a group makes "
        "the same calls."
    )


def wrong_group(rank: int, first: list[int], second: list[int]) -> str:
    return (
        f"rank {rank} calls new_group for {names(second)} where another rank calls it "
        f"for {names(first)}\n  Rule: every rank of the world calls new_group for every "
        "group, also for groups it is not in, in the same order."
    )


# --- Nobody can go on ---------------------------------------------------------------


def deadlock(simulation) -> Deadlock:
    """Who waits for what, and in which line."""
    clock = simulation.clock
    frames = sys._current_frames()
    lines, calls = [], []
    for rank, state in enumerate(clock.state):
        call = clock.waiting[rank]
        if state == "returned":
            lines.append(f"  rank {rank} has returned")
            continue
        calls.append(call)
        where = readers_line(frames.get(clock.threads[rank].ident))
        lines.append(f"  rank {rank} waits in {call.describe()}{at(where or call.line)}")
    text = "deadlock: nobody can go on\n" + "\n".join(_shortened(lines))
    for hint in _hints(calls):
        text += f"\n  {hint}"
    return Deadlock(text)


def _shortened(lines: list[str], most: int = 16) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[:most], f"  and {len(lines) - most} more ranks"]


def _hints(calls: list[Call]) -> list[str]:
    hints = []
    for call in calls:
        if call.kind not in ("send", "recv"):
            hint = _missing_hint(call)
            if hint not in hints:
                hints.append(hint)
    if calls and all(call.kind == "send" for call in calls):
        hints.append(
            "Each of them waits in a send until its peer receives. "
            "Let one side receive first, or use isend and wait later."
        )
    if calls and all(call.kind == "recv" for call in calls):
        hints.append("Each of them waits to receive, and nobody sends.")
    hints += _near_misses(calls)
    return hints


def _missing_hint(call: Call) -> str:
    shared = call.group.shared
    open_ = shared.collectives.get(call.sequence)
    if open_ is None:
        return ""
    missing = [shared.members[r] for r, c in enumerate(open_.calls) if c is None]
    return (
        f"{call.kind} of {names(shared.members)} is not called by {names(missing)}."
        " A collective needs every rank of its group."
    )


def _near_misses(calls: list[Call]) -> list[str]:
    """Sends and receives that would meet but for their tag or their group."""
    open_calls = {id(c): c for call in calls for c in call.group.simulation.open_messages()}
    sends = [c for c in open_calls.values() if c.kind == "send"]
    receives = [c for c in open_calls.values() if c.kind == "recv" and c.peer is not None]
    hints = []
    for send in sends:
        for receive in receives:
            if receive.rank != send.group.members[send.peer]:
                continue
            if receive.group.members[receive.peer] != send.rank:
                continue
            if send.tag != receive.tag:
                what = f"tag {send.tag}, rank {receive.rank} receives tag {receive.tag}"
            else:
                what = (
                    f"the group of {names(send.group.members)}, rank {receive.rank} "
                    f"receives in the group of {names(receive.group.members)}"
                )
            hints.append(f"rank {send.rank} sends with {what}: they never meet.")
    return hints
