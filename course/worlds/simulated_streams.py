"""Streams of the simulated world: `torch.cpu.Stream` with a clock of its own.

torch keeps stand-ins for CUDA's streams and events in `torch.cpu`, which do nothing.
During a run they are replaced by these, so code that overlaps by streams (FSDP2 does)
overlaps in virtual time. As with CUDA, work of one stream is in order, streams wait for
each other only where they are told to, and the Python that launches it takes no time.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import torch

from course.worlds.simulated_torch import simulation_here


class Stream:
    """A lane of one rank. clock_s: when the work given to it so far is done."""

    def __init__(self, device=None, priority: int = 0):
        here = simulation_here()
        self.clock_s = 0.0
        self.is_main = here is None  # made before the rank runs: the stream it starts on
        if here is not None:
            simulation, rank = here
            simulation.streams[rank].append(self)

    def wait_stream(self, stream: Stream) -> None:
        _advance(self, _now(stream))

    def wait_event(self, event: Event) -> None:
        _advance(self, event.time_s)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        _advance(current_stream(), _now(self))

    def query(self) -> bool:
        return True


class Event:
    """A moment in a stream."""

    def __init__(self, *args, **kwargs):
        self.time_s = 0.0

    def record(self, stream: Stream | None = None) -> Event:
        self.time_s = _now(stream or current_stream())
        return self

    def wait(self, stream: Stream | None = None) -> None:
        _advance(stream or current_stream(), self.time_s)

    def synchronize(self) -> None:
        _advance(current_stream(), self.time_s)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds, as torch.cuda.Event gives them."""
        return (end.time_s - self.time_s) * 1e3


def current_stream(device=None) -> Stream:
    simulation, rank = simulation_here()
    return simulation.current[rank]


@contextlib.contextmanager
def stream(chosen: Stream | None):
    """What is called inside is work of that stream."""
    if chosen is None:
        yield
        return
    before = current_stream()
    _switch(chosen)
    try:
        yield
    finally:
        _switch(before)


def synchronize(device=None) -> None:
    simulation, rank = simulation_here()
    for each in simulation.streams[rank]:
        _advance(current_stream(), _now(each))


def _switch(chosen: Stream) -> None:
    # The clock of a rank is the clock of the stream that it works on
    simulation, rank = simulation_here()
    simulation.current[rank].clock_s = simulation.clock.clock[rank]
    simulation.current[rank] = chosen
    simulation.clock.clock[rank] = chosen.clock_s


def _now(of: Stream) -> float:
    simulation, rank = simulation_here()
    return simulation.clock.clock[rank] if of is simulation.current[rank] else of.clock_s


def _advance(of: Stream, time_s: float) -> None:
    simulation, rank = simulation_here()
    if of is simulation.current[rank]:
        simulation.clock.clock[rank] = max(simulation.clock.clock[rank], time_s)
    else:
        of.clock_s = max(of.clock_s, time_s)


def streams_are_simulated():
    """A context: torch.cpu's streams are ours."""
    return mock.patch.multiple(
        torch.cpu, Stream=Stream, Event=Event, current_stream=current_stream, stream=stream,
        synchronize=synchronize,
    )  # fmt: skip
