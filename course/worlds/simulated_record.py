"""A run that is over, as the plain data of a `Run`."""

from __future__ import annotations

from functools import partial

from course.worlds.places import short_file
from course.worlds.run import Event, Message, Run
from course.worlds.simulated_run import Simulation


def record_of(simulation: Simulation, results: list) -> Run:
    """The Run of a simulation. Mirror images get what rank 0 has."""
    seconds = tuple(simulation.seconds(rank) for rank in range(len(results)))
    sent, received = _totals(simulation, len(results))
    copies = simulation.ranks // len(results)
    return Run(
        "simulated",
        results * copies,
        seconds=max(seconds),
        seconds_per_rank=seconds * copies,
        _events=partial(_events_of, simulation.events),
        _spans=partial(_events_of, simulation.spans),
        _messages=partial(_messages_of, simulation.messages),
        _bytes_sent=tuple(sent) * copies,
        _bytes_received=tuple(received) * copies,
        _bytes_per_link=dict(sorted(simulation.bytes_per_link.items())),
        **_memory(simulation, len(results), copies),
    )


def _events_of(notes: list[tuple]) -> tuple[Event, ...]:
    where: dict = {}
    notes = sorted(notes, key=lambda e: (e[3], e[0], e[4]))
    return tuple(Event(*note[:-1], _where(note[-1], where)) for note in notes)


def _messages_of(notes: list[tuple]) -> tuple[Message, ...]:
    return tuple(Message(*m) for m in sorted(notes, key=lambda m: (m[3], m[0], m[1])))


def _totals(simulation: Simulation, ranks: int) -> tuple[list[int], list[int]]:
    """Bytes sent and received by each rank that ran."""
    sent, received = [0] * simulation.ranks, [0] * simulation.ranks
    for (source, destination), size in simulation.bytes_per_link.items():
        sent[source] += size
        received[destination] += size
    if ranks < simulation.ranks:  # a mirror image receives what it sends
        received = sent
    return sent[:ranks], received[:ranks]


def _memory(simulation: Simulation, ranks: int, copies: int) -> dict:
    memories = [simulation.memories.get(rank) for rank in range(ranks)]
    if not all(memories):
        return {}
    return {
        "_peak_bytes": tuple(m.peak_bytes for m in memories) * copies,
        "_peak_kinds": tuple(m.peak_kinds() for m in memories) * copies,
        "_memory_curve": tuple(m.curve() for m in memories) * copies,
    }


def _where(line: tuple | None, known: dict) -> str:
    if line is None:
        return ""
    if line not in known:
        known[line] = f"{short_file(line[0].co_filename)} line {line[1]}"
    return known[line]
