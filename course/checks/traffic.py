"""What the meter of a run says about an answer whose values are right."""

from __future__ import annotations

from course.checks.compare import Fault
from course.checks.exercise import Case, Limits, OnRanks
from course.worlds import Run

_BY_HAND = ("send", "recv")


def steps_of(run: Run) -> int:
    """Messages on the longest chain: the run's seconds, where each takes one."""
    return round(run.seconds)


def collective_calls(run: Run, rank: int = 0) -> list[str]:
    """The built-in collectives that a rank called."""
    events = [e for e in run.events if e.rank == rank and e.lane == "communication"]
    return [e.name for e in events if e.name not in _BY_HAND]


def summary(run: Run) -> str:
    """ "each rank sent 48 bytes in 6 steps"."""
    sent, steps = run.bytes_sent, steps_of(run)
    took = f"in {steps} step{'s' * (steps != 1)}"
    if len(set(sent)) == 1:
        return f"each rank sent {sent[0]} bytes {took}"
    busiest = sent.index(max(sent))
    return f"rank {busiest} sent most, {sent[busiest]} bytes, {took}"


def complaint(run: Run, case: Case, exercise: OnRanks) -> Fault | None:
    """The first rule or bound that a run breaks."""
    limits = exercise.limits(case)
    return (
        _too_little(run, limits)
        or _not_by_hand(run, exercise)
        or _out_of_nodes(run, case, limits)
        or _too_much(run, limits)
        or _no_ring(run, exercise)
        or _too_slow(run, limits)
    )


def _too_little(run: Run, limits: Limits) -> Fault | None:
    """Values that nobody sent were not computed from the other ranks' tensors."""
    # a built-in collective's bytes are rounded, by less than one a rank
    for rank, (got, need) in enumerate(zip(run.bytes_received, limits.needs, strict=True)):
        if got + 1 < need:
            says = f"rank {rank} received {got} bytes where it needs at least {need}"
            return "too little traffic", f"right values, but {says}"
    total = sum(run.bytes_sent)
    if total + run.ranks < limits.total:
        says = f"all ranks together sent {total} bytes where at least {limits.total}"
        return "too little traffic", f"right values, but {says} are needed"
    return None


def _not_by_hand(run: Run, exercise: OnRanks) -> Fault | None:
    for rank in range(run.ranks if exercise.by_hand else 0):
        called = collective_calls(run, rank)
        if called:
            says = f"rank {rank} calls {called[0]}: write this one with send and recv"
            return "against the rules", f"right values, but {says}"
    return None


def _no_ring(run: Run, exercise: OnRanks) -> Fault | None:
    for message in run.messages if exercise.ring else ():
        distance = (message.destination - message.source) % run.ranks
        if distance not in (1, run.ranks - 1):
            says = f"rank {message.source} sent to rank {message.destination}"
            rule = "in a ring a rank sends to its neighbours only"
            return "against the rules", f"right values, but {says}: {rule}"
    return None


def _out_of_nodes(run: Run, case: Case, limits: Limits) -> Fault | None:
    if limits.node_sent is None:
        return None
    cards = [0] * run.ranks  # each rank has a network card of its own
    for (source, destination), nbytes in run.bytes_per_link.items():
        if source // case.gpus != destination // case.gpus:
            cards[source] += nbytes
    for node in range(case.nodes):
        out = sum(cards[node * case.gpus : (node + 1) * case.gpus])
        if out > limits.node_sent:
            says = f"{out} bytes left node {node} where {limits.node_sent} are enough"
            return "too much traffic", f"right, but {says}"
    busiest = max(range(run.ranks), key=lambda rank: cards[rank])
    if cards[busiest] > limits.card_sent:
        says = f"the network card of rank {busiest} carried {cards[busiest]} bytes"
        rest = f"where {limits.card_sent} are enough: let every card carry its share"
        return "too much traffic", f"right, but {says} {rest}"
    return None


def _too_much(run: Run, limits: Limits) -> Fault | None:
    ways = (
        ("sent", run.bytes_sent, limits.sent),
        ("received", run.bytes_received, limits.received),
    )
    for way, each, enough in ways:
        for rank, nbytes in enumerate(each):
            if nbytes > enough:
                says = f"rank {rank} {way} {nbytes} bytes where {enough} are enough"
                return "too much traffic", f"right, but {says}"
    total = sum(run.bytes_sent)
    if limits.total_most is not None and total > limits.total_most:
        says = f"all ranks together sent {total} bytes where {limits.total_most}"
        return "too much traffic", f"right, but {says} are enough"
    return None


def _too_slow(run: Run, limits: Limits) -> Fault | None:
    steps = steps_of(run)
    if limits.steps is None or steps <= limits.steps:
        return None
    calls = len(collective_calls(run))
    how = f" ({calls} collectives)" if calls > 1 else ""
    says = f"{steps} steps{how} one after another where {limits.steps} are enough"
    return "too slow", f"right, but it took {says}: each pays a latency"
