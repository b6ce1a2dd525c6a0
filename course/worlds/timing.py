"""How long a call takes on the ranks of any world, measured so that it can be compared.

Each repeat times every function once, so that a busy moment hits all alike, and begins
with another one each time. A call starts after a barrier and takes as long as its
slowest rank. The first repeats warm up and are dropped; of the others the middle one
counts. On GPUs the clock is the GPU's own (CUDA events): a call there returns as soon as
its work is queued. In the simulated world the clock is virtual, and one repeat is enough.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course.costs.bandwidth import busbw
from course.quantities import write_bytes, write_rate, write_seconds

# {name: {nbytes: value}}, the value being seconds or bytes per second
Curves = dict[str, dict[int, float]]
ITEM_BYTES = 4  # buffers hold float32


@dataclass(frozen=True)
class Timing:
    """One function at one size. seconds: of the slowest rank, one per repeat."""

    name: str
    nbytes: int
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


def measure(
    world,
    functions: Mapping[str, Callable],
    sizes: Sequence[int],
    *,
    repeats: int = 9,
    warm_up: int = 2,
) -> list[Timing]:
    """Time every function at every size on a World of any kind.

    functions: {name: what one rank does to a buffer}, the buffer is float32 and all zeros
    sizes:     of the buffer on each rank, in bytes, multiples of 4
    warm_up:   repeats before those that count

    Raises ValueError for what cannot be timed, RankError where a rank fails.
    """
    _check(functions, sizes, repeats, warm_up)
    if world.on == "simulated":
        pairs = [(name, nbytes) for nbytes in sizes for name in functions]
        return [
            Timing(n, m, (world.run(call_once, functions[n], m).seconds,)) for n, m in pairs
        ]
    timings = []
    for nbytes in sizes:  # a run for each, so that the world's deadline is for one size
        run = world.run(time_calls, dict(functions), [nbytes], repeats, warm_up)
        timings += run.results[0]
    return timings


def call_once(function: Callable, nbytes: int) -> None:
    """What one rank does: the function, on a buffer of so many bytes."""
    function(torch.zeros(nbytes // ITEM_BYTES))


def time_calls(
    functions: Mapping[str, Callable],
    sizes: Sequence[int],
    repeats: int = 9,
    warm_up: int = 2,
) -> list[Timing]:
    """What one rank of a real world does to measure; all ranks get the same answer.

    For `measure`, and for programs that torchrun starts. Arguments as there.
    """
    _check(functions, sizes, repeats, warm_up)
    timings = []
    for nbytes in sizes:
        seconds = _seconds_of_slowest(functions, nbytes, repeats + warm_up)[warm_up:]
        for name, own in zip(functions, seconds.T.tolist(), strict=True):
            timings.append(Timing(name, nbytes, tuple(own)))
    return timings


def _seconds_of_slowest(functions, nbytes: int, repeats: int) -> torch.Tensor:
    """Shape (repeats, functions), float64."""
    buffer = torch.zeros(nbytes // ITEM_BYTES)  # sums of zeros never overflow
    calls = list(functions.values())
    seconds = torch.zeros(repeats, len(calls), dtype=torch.float64)
    for repeat in range(repeats):
        for turn in range(len(calls)):
            which = (repeat + turn) % len(calls)
            dist.barrier()
            seconds[repeat, which] = seconds_of(calls[which], buffer)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.cpu()


def seconds_of(function, buffer: torch.Tensor) -> float:
    """Seconds of one call on this rank, by the clock of the device that holds the buffer.

    On a GPU: from when its queue reaches the call until it has done all that was queued.
    """
    if buffer.is_cuda:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        function(buffer)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000  # elapsed_time is in milliseconds
    began = time.perf_counter()
    function(buffer)
    return time.perf_counter() - began


def _check(functions, sizes, repeats: int, warm_up: int) -> None:
    if not functions:
        raise ValueError("functions must hold at least one function")
    for nbytes in sizes:
        if nbytes < 0 or nbytes % ITEM_BYTES:
            raise ValueError(f"sizes must be multiples of {ITEM_BYTES}, not {nbytes}")
    if repeats < 1:
        raise ValueError(f"repeats must be 1 or more, not {repeats}")
    if warm_up < 0:
        raise ValueError(f"warm_up must be 0 or more, not {warm_up}")


# --- Reading the timings --------------------------------------------------------------


def medians(timings: Sequence[Timing]) -> Curves:
    """{name: {nbytes: seconds}}, the middle repeat of each."""
    curves: Curves = {}
    for timing in timings:
        curves.setdefault(timing.name, {})[timing.nbytes] = timing.median_s
    return curves


def bests(timings: Sequence[Timing]) -> Curves:
    """{name: {nbytes: seconds}}, the shortest repeat of each: what the machine could do.

    Whatever else runs can only add time, so this one moves least with a machine's load.
    """
    curves: Curves = {}
    for timing in timings:
        curves.setdefault(timing.name, {})[timing.nbytes] = min(timing.seconds)
    return curves


def bus_bandwidths(seconds: Curves, ranks: int, collective: str = "all_reduce") -> Curves:
    """{name: {nbytes: bytes/s}}: `course.costs.bandwidth.busbw` of every time."""
    return {
        name: {m: busbw(collective, ranks, m, s) for m, s in curve.items()}
        for name, curve in seconds.items()
    }


def table(seconds: Curves, ranks: int, collective: str = "all_reduce") -> str:
    """Time and bus bandwidth by message size, as lines of text."""
    rates = bus_bandwidths(seconds, ranks, collective)
    sizes = sorted({m for curve in seconds.values() for m in curve})
    head = ["size", *seconds, *(f"{name} busbw" for name in seconds)]
    rows = [
        [write_bytes(m)]
        + [write_seconds(c[m]) if m in c else "-" for c in seconds.values()]
        + [write_rate(c[m]) if m in c else "-" for c in rates.values()]
        for m in sizes
    ]
    return lines_of([head, *rows])


def lines_of(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, every column to the right and as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def time_lines(what: str, seconds: dict[str, float], beside: str) -> str:
    """A row for each name: its time, and the ratio to the time of `beside`."""
    rows = [[what, "time", f"ratio to {beside}"]]
    for name, s in seconds.items():
        rows.append([name, write_seconds(s), f"{s / seconds[beside]:.2f}"])
    return lines_of(rows)
