"""Exercise of lab 11: alpha and B by hand, from a few times of a ring all-reduce.

t(M) = 2(n-1) alpha + 2(n-1)/n M/B, exactly, so that any two points will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from course.checks.exercise import Exercise
from course.checks.verdict import Verdict, of_error, right, wrong
from course.costs.collectives import cost
from course.facts import KIB, MIB, Link
from course.quantities import write_rate, write_seconds

# ranks, alpha in seconds, B in bytes/s, four sizes in bytes
CASES = (
    (4, 10e-6, 10e9, (4 * KIB, 64 * KIB, MIB, 16 * MIB)),
    (2, 100e-6, 1e9, (16 * MIB, 4 * KIB, 256 * KIB, MIB)),
    (3, 5e-6, 25e9, (12, 12_000, 1_200_000, 12_000_000)),
    (8, 3.4e-6, 450e9, (KIB, 32 * KIB, 4 * MIB, 64 * MIB)),
    (16, 14e-6, 50e9, (4 * KIB, MIB, 32 * MIB, 1024 * MIB)),
)
TOLERANCE = 1e-3  # relative; the times are exact


@dataclass(frozen=True, repr=False)
class FitByHand(Exercise):
    """Two numbers back; a known slip in either is told by its name."""

    name: str = "fit by hand"
    chapter: str = "lab 11"
    signature: str = "def my_fit(ranks, times): return alpha, B"
    task: str = (
        "`times` is {nbytes: seconds}: four ring all-reduces of `ranks` ranks, M = nbytes, "
        "sizes in any order, without noise. Return alpha, the seconds of one step, and B, "
        "the bytes per second of one rank's wire in one direction."
    )
    lines: int = 6
    target: str = "both within 0.1 % on 2, 3, 4, 8 and 16 ranks"

    def grade(self, function: Callable) -> Verdict:
        for case in CASES:
            shown = f"{case[0]} ranks, times {times_of(*case)}"
            try:
                answer = function(case[0], times_of(*case))
            except Exception as error:
                return of_error(error, shown)
            fault = _fault(answer, *case)
            if fault:
                return wrong(*fault, shown)
        counts = sorted(case[0] for case in CASES)
        *most, last = map(str, counts)
        return right(f"right: alpha and B on {', '.join(most)} and {last} ranks")


def times_of(ranks: int, alpha_s: float, bytes_per_s: float, sizes) -> dict[int, float]:
    """Seconds of ring all-reduces, by the formula."""
    link = Link("wire", alpha_s, bytes_per_s)
    return {m: cost("all_reduce", "ring", ranks, m).seconds(link) for m in sizes}


def _fault(answer, ranks: int, alpha_s: float, bytes_per_s: float, sizes):
    """(kind, sentence) of what is wrong with an answer, or None."""
    if not isinstance(answer, tuple | list) or len(answer) != 2 or not _numbers(answer):
        says = f"wrong shape: {answer!r} was returned, should be two numbers, (alpha, B)"
        return "wrong shape", says
    alpha, rate = map(float, answer)
    truth = ranks, alpha_s, bytes_per_s, sizes
    if not _near(rate, bytes_per_s):
        slip = _slip_in_rate(rate, *truth)
        says = f"B is {_rate(rate)}, should be {write_rate(bytes_per_s)}{slip}"
        return "wrong values", f"wrong values: {says}"
    if not _near(alpha, alpha_s):
        slip = _slip_in_alpha(alpha, *truth)
        says = f"alpha is {_time(alpha)}, should be {write_seconds(alpha_s)}{slip}"
        return "wrong values", f"wrong values: {says}"
    return None


def _numbers(answer) -> bool:
    try:
        return all(math.isfinite(float(value)) for value in answer)
    except (TypeError, ValueError):
        return False


def _near(found: float, wanted: float) -> bool:
    return abs(found / wanted - 1) <= TOLERANCE


def _rate(value: float) -> str:
    return write_rate(value) if value >= 1 else f"{value:.3g}"


def _time(value: float) -> str:
    return write_seconds(value) if 0 < value < 1e3 else f"{value:.3g}"


def _slip_in_rate(
    rate: float, ranks: int, alpha_s: float, bytes_per_s: float, sizes
) -> str:
    factor = 2 * (ranks - 1) / ranks
    times = times_of(ranks, alpha_s, bytes_per_s, sizes)
    slips = {
        1 / bytes_per_s: "that is 1 / B: the slope is in seconds per byte",
        factor / bytes_per_s: "that is the slope itself, in seconds per byte",
        alpha_s: "that is alpha: return alpha first, then B",
        bytes_per_s / factor: "a rank sends 2(n-1)/n bytes for each byte of M",
        bytes_per_s * factor: "2(n-1)/n is in the slope already: multiply by it once",
        bytes_per_s * factor**2: "multiply by 2(n-1)/n, once",
    }
    slips |= {
        m / t: "M / t also counts the latency, and not the bytes sent"
        for m, t in times.items()
    }
    slips |= {
        m * factor / t: "a busbw still holds the latency: take a difference of two times"
        for m, t in times.items()
    }
    return _named(rate, slips)


def _slip_in_alpha(
    alpha: float, ranks: int, alpha_s: float, bytes_per_s: float, sizes
) -> str:
    steps = 2 * (ranks - 1)
    times = times_of(ranks, alpha_s, bytes_per_s, sizes)
    slips = {
        steps * alpha_s: "that is the latency of all 2(n-1) steps",
        min(times.values()): "that is the smallest time: its bytes, and all its steps",
        min(times.values()) / steps: "the bytes of the smallest message still count",
        alpha_s * 2: "a ring all-reduce has 2(n-1) steps, not n-1",
        alpha_s * steps / ranks: "a ring all-reduce has 2(n-1) steps, not n",
    }
    return _named(alpha, slips)


def _named(value: float, slips: dict[float, str]) -> str:
    for slip, words in slips.items():
        if _near(value, slip):
            return f"; {words}"
    return ""


EXERCISES = (FitByHand(),)
