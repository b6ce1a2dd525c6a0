"""Bytes and bandwidths as they are counted and reported: per rank, total, algbw, busbw.

Three pairs that are easily mixed up, and are kept apart here:
sent and received (a port does both at once), one rank and all ranks, and the
bandwidth of the algorithm (algbw) and of the wires (busbw).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course.costs.collectives import Cost, check_nbytes, check_ranks
from course.costs.traffic import traffic as messages
from course.facts import Link


@dataclass(frozen=True)
class Traffic:
    """Bytes of one collective. Each tuple has one number per rank."""

    sent: tuple[float, ...]
    received: tuple[float, ...]

    @property
    def total(self) -> float:
        """Bytes that crossed any wire, each counted once (not as sent and as received)."""
        return sum(self.sent)

    def both_directions(self, rank: int) -> float:
        """Sent plus received by one rank. Divide this by no one-way bandwidth."""
        return self.sent[rank] + self.received[rank]


def traffic(collective: str, algorithm: str, ranks: int, nbytes: int) -> Traffic:
    """Bytes that every rank sends and receives, added up; rank 0 is the root.

    nbytes: the whole buffer, as in `course.costs.collectives`.
    Raises ValueError for a pair that `course.costs.traffic` does not know.
    """
    check_ranks(ranks)
    check_nbytes(nbytes)
    sent, received = [0] * ranks, [0] * ranks
    for source, destination, part in messages(collective, algorithm, ranks, nbytes):
        sent[source] += part
        received[destination] += part
    return Traffic(tuple(sent), tuple(received))


# nccl-tests doc/PERFORMANCE.md: what a wire carries for each byte of the buffer.
_BUSBW = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send": lambda n: 1.0,
}


def busbw_factor(collective: str, ranks: int) -> float:
    """busbw / algbw: 2(n-1)/n for all-reduce, and so on (nccl-tests PERFORMANCE.md)."""
    check_ranks(ranks)
    if collective not in _BUSBW:
        raise ValueError(f"collective must be one of {list(_BUSBW)}, not {collective!r}")
    return _BUSBW[collective](ranks)


def algbw(nbytes: float, seconds: float) -> float:
    """Bytes per second as the caller sees it: the whole buffer over the time."""
    if seconds <= 0:
        raise ValueError(f"seconds must be positive, not {seconds}")
    return nbytes / seconds


def busbw(collective: str, ranks: int, nbytes: float, seconds: float) -> float:
    """Bytes per second and direction on the busiest wire of an ideal algorithm.

    Compare this one with the bandwidth of the link. A switch that adds (NVLS) needs
    fewer bytes, so there it may exceed the link.
    """
    return algbw(nbytes, seconds) * busbw_factor(collective, ranks)


def fit_link(costs: Sequence[Cost], seconds: Sequence[float], name: str = "fitted") -> Link:
    """The alpha and B that explain measured times best, by least squares.

    costs, seconds: one of each per measurement, two or more of different sizes.
    Errors count relative to the time measured, else the longest would decide alone. They
    do where noise in the short times hides that time grows with bytes. alpha is not let
    below 0. Raises ValueError where no bandwidth can be told.
    """
    if len(costs) != len(seconds) or len(costs) < 2:
        raise ValueError(
            f"need 2 or more pairs, not {len(costs)} costs, {len(seconds)} seconds"
        )
    times = np.asarray(seconds, dtype=float)
    if not (times > 0).all():
        raise ValueError("seconds must all be positive")
    terms = np.array([[c.steps, c.bytes_sent] for c in costs], dtype=float)
    alpha, per_byte = _fit(terms, times, weights=1 / times)
    if per_byte <= 0:
        alpha, per_byte = _fit(terms, times, weights=np.ones_like(times))
    if per_byte <= 0:
        raise ValueError(
            "seconds must grow with bytes_sent, or there is no bandwidth to fit"
        )
    return Link(name, float(alpha), 1 / float(per_byte))


def _fit(terms: np.ndarray, times: np.ndarray, weights: np.ndarray) -> tuple:
    """(alpha, seconds per byte) for weighted errors, alpha 0 where it would be less."""
    alpha, per_byte = _least_squares(terms, times, weights)
    if alpha < 0:
        alpha, (per_byte,) = 0.0, _least_squares(terms[:, 1:], times, weights)
    return alpha, per_byte


def _least_squares(terms: np.ndarray, times: np.ndarray, weights: np.ndarray):
    """The coefficients with terms @ coefficients nearest to times, columns scaled alike."""
    rows = terms * weights[:, None]
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    solution, *_ = np.linalg.lstsq(rows / scale, times * weights, rcond=None)
    return solution / scale
