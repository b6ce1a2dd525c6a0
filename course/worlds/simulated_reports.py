"""What the reader is told when ranks cannot go on together."""

from __future__ import annotations

import sys

from course.worlds.places import describe, of_traceback
from course.worlds.run import Deadlock, Mismatch, RankError
from course.worlds.simulated_calls import (
    Call,
    GroupCalls,
    MismatchedCalls,
    is_readers_code,
    place_of,
    readers_line,
)
from course.worlds.verdict import names


def at(line: tuple | None, indent: str = "      ") -> str:
    return "" if line is None else f"\n{indent}{describe(place_of(line))}"


# --- A rank raised ------------------------------------------------------------------


def raised(rank: int, error: BaseException) -> RankError:
    """The error of one rank, with the reader's lines."""
    lines = "".join(f"\n  {describe(p)}" for p in of_traceback(error.__traceback__))
    if isinstance(error, SystemExit):
        what = f"left the run by sys.exit({error.code!r})"
    else:
        what = f"raised {type(error).__name__}: {error}".rstrip()
    return RankError(f"rank {rank} {what}{lines}{_cause(error)}", rank, error)


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


def stalled(rank: int, seconds: float, stack: list) -> RankError:
    line = next((line for line in stack if is_readers_code(line[0])), None)
    return RankError(
        f"rank {rank} has run for {seconds:g} s without a call to its peers, which wait "
        f"for it; timeout_s={seconds:g} is over{at(line, '  ')}",
        rank,
    )


# --- Calls that do not fit ----------------------------------------------------------

_SAME_CALLS = "every rank of a group makes the same calls, in the same order"
_RULES = {
    "op": "all ranks give the same op",
    "root": "all ranks name the same root, by its rank in the world",
    "dtype": "all ranks bring tensors of the same dtype",
    "shape": "all ranks bring tensors of the same shape",
}


def mismatch(wrong: MismatchedCalls) -> Mismatch:
    if wrong.first.kind in ("send", "recv"):
        first, second = wrong.first, wrong.second
        head = f"the message from rank {first.rank} to rank {second.rank} does not fit"
    elif wrong.first.kind == "all_to_all" and wrong.rule:
        first, second = wrong.first, wrong.second
        head = "the pieces of an all_to_all do not fit"
    else:
        first, second = sorted((wrong.first, wrong.second), key=lambda c: c.rank)
        head = f"different calls where {names(first.group.members)} must make the same one"
        head += f" (their collective number {first.sequence + 1})"
    lines = [_call_lines(call) for call in dict.fromkeys((first, second))]
    rule = wrong.rule or _broken_rule(first, second)
    return Mismatch(f"{head}{''.join(lines)}\n  Rule: {rule}.", second.rank)


def _broken_rule(first: Call, second: Call) -> str:
    """The first thing in which two calls of one collective differ."""
    if first.kind != second.kind:
        return _SAME_CALLS
    for name, rule in _RULES.items():
        if getattr(first, name) != getattr(second, name):
            return rule
    return _SAME_CALLS


def _call_lines(call: Call) -> str:
    return f"\n  rank {call.rank} calls {call.describe()}{at(call.line)}{_during(call)}"


def _during(call: Call) -> str:
    """The error that the rank was about to raise when it made the call."""
    error = call.during
    if error is None:
        return ""
    return f"\n      while it handles {type(error).__name__}: {error}"


def unanswered(call: Call) -> str:
    what = "a message was never received" if call.kind == "send" else "a recv got nothing"
    return (
        f"the run is over, but {what}{_call_lines(call)}\n  Rule: each send needs one "
        "recv with the same peer, group and tag, and each recv one send."
    )


def unfinished(collective, shared: GroupCalls) -> str:
    missing = [shared.members[r] for r, call in enumerate(collective.calls) if call is None]
    return (
        f"the run is over, but {names(missing)} never joined a collective"
        f"{_call_lines(collective.first)}\n  Rule: {_SAME_CALLS}."
    )


def wrong_group(known: GroupCalls, rank: int, members: list[int], line) -> str:
    maker, made_at = next(iter(known.makers.items()))
    return (
        "different calls of new_group where all ranks must make the same one"
        f"\n  rank {maker} calls it for {names(known.members)}{at(made_at)}"
        f"\n  rank {rank} calls it for {names(members)}{at(line)}"
        f"\n  Rule: {_NEW_GROUP}."
    )


_NEW_GROUP = (
    "every rank of the world calls new_group for every group, also for groups it is "
    "not in, in the same order"
)


def not_made(shared: GroupCalls) -> str:
    """Some members called new_group, and some did not."""
    maker, line = next(iter(shared.makers.items()))
    return (
        f"{names(shared.not_made_by())} never called new_group for {shared}, which "
        f"rank {maker} did{at(line)}\n  Rule: {_NEW_GROUP}."
    )


# --- Nobody can go on ---------------------------------------------------------------


def deadlock(simulation) -> Deadlock:
    """Who waits for what, and in which line."""
    clock = simulation.clock
    frames = sys._current_frames()
    lines, calls = [], []
    for rank, state in enumerate(clock.state):
        call = clock.waiting[rank] or clock.polled[rank]
        if state == "returned":
            lines.append(f"  rank {rank} has returned")
            continue
        calls.append(call)
        how = "waits in" if clock.waiting[rank] else "asks again and again after its"
        line = readers_line(frames.get(clock.threads[rank].ident)) or call.line
        lines.append(f"  rank {rank} {how} {call.describe()}{at(line)}{_during(call)}")
    text = "nobody can go on\n" + "\n".join(_shortened(lines))
    returned = [rank for rank, state in enumerate(clock.state) if state == "returned"]
    return Deadlock("\n  ".join([text, *_hints(calls, returned)]))


def _shortened(lines: list[str], most: int = 16) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[:most], f"  and {len(lines) - most} more ranks"]


def _hints(calls: list[Call], returned: list[int]) -> list[str]:
    """What to look for, from the calls in which ranks wait."""
    messages = [call for call in calls if call.kind in ("send", "recv")]
    others = [call for call in calls if call not in messages]
    hints = [_missing_hint(call, others) for call in others]
    hints += [_gone_hint(call, returned) for call in messages]
    if len(messages) > 1 and not any(hints):
        hints.append(_all_alike(messages))
    hints += _near_misses(calls)
    return list(dict.fromkeys(filter(None, hints)))


def _gone_hint(call: Call, returned: list[int]) -> str:
    """The peer of a send or recv will not come any more."""
    if call.peer is None:
        return f"rank {call.rank} waits for a message from any rank, and nobody sends one."
    peer = call.group.members[call.peer]
    if peer not in returned:
        return ""
    never = "receiving from" if call.kind == "send" else "sending to"
    return f"rank {peer} has returned without {never} rank {call.rank}."


def _all_alike(messages: list[Call]) -> str:
    kinds = {call.kind for call in messages}
    if kinds == {"send"}:
        return (
            "Each of them waits in a send until its peer receives. "
            "Let one side receive first, or use isend and wait later."
        )
    if kinds == {"recv"}:
        return "Each of them waits to receive, and nobody sends. Let one side send first."
    return ""


def _missing_hint(call: Call, others: list[Call]) -> str:
    shared = call.group.shared
    open_ = shared.collectives.get(call.sequence)
    if open_ is None:
        return ""
    if shared.not_made_by():
        return not_made(shared)
    missing = [shared.members[r] for r, c in enumerate(open_.calls) if c is None]
    crossed = [c for c in others if c.rank in missing and c.group.shared is not shared]
    if crossed and crossed[0].group.shared.not_made_by():
        return ""  # the other group's hint says it all
    if crossed:
        return _crossed_hint(call, crossed[0])
    return (
        f"{call.kind} of {names(shared.members)} is not called by {names(missing)}."
        " A collective needs every rank of its group."
    )


def _crossed_hint(*calls: Call) -> str:
    """Two ranks wait for each other in two groups."""
    first, second = sorted(calls, key=lambda call: call.rank)
    text = "They use their groups in different orders:"
    for call in (first, second):
        shared = call.group.shared
        made = at(shared.makers.get(call.rank)) if shared.number else ""
        text += f"\n    rank {call.rank} is in {shared}{', made here' * bool(made)}{made}"
    return text + "\n  Rule: ranks that share groups use them in the same order."


def _near_misses(calls: list[Call]) -> list[str]:
    """Sends and receives that would meet but for their peer, tag or group."""
    open_calls = {id(c): c for call in calls for c in call.group.simulation.open_messages()}
    sends = [c for c in open_calls.values() if c.kind == "send"]
    receives = [c for c in open_calls.values() if c.kind == "recv" and c.peer is not None]
    hints = []
    for send in sends:
        for receive in receives:
            if receive.rank != send.group.members[send.peer]:
                continue
            source = receive.group.members[receive.peer]
            if source != send.rank:
                what = f"to rank {receive.rank}, which waits for rank {source}"
            elif send.tag != receive.tag:
                what = (
                    f"with tag {send.tag}, rank {receive.rank} receives tag {receive.tag}"
                )
            else:
                what = (
                    f"in {send.group.shared}, rank {receive.rank} receives in "
                    f"{receive.group.shared}"
                )
            hints.append(f"rank {send.rank} sends {what}: they never meet.")
    return hints
