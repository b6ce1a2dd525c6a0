"""Bytes and bandwidths as they are counted and reported: per rank, total, algbw, busbw.

Three pairs that are easily mixed up, and are kept apart here:
sent and received (a port does both at once), one rank and all ranks, and the
bandwidth of the algorithm (algbw) and of the wires (busbw).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course.costs.collectives import Cost, check_ranks
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


def _even(ranks: int, nbytes: float) -> Traffic:
    return Traffic((nbytes,) * ranks, (nbytes,) * ranks)


def _out_of_root(ranks: int, nbytes: float) -> Traffic:
    others = ranks - 1
    return Traffic((others * nbytes,) + (0,) * others, (0,) + (nbytes,) * others)


def _into_root(ranks: int, nbytes: float) -> Traffic:
    out = _out_of_root(ranks, nbytes)
    return Traffic(out.received, out.sent)


def _chain(ranks: int, nbytes: float) -> Traffic:
    others = ranks - 1
    return Traffic((nbytes,) * others + (0,), (0,) + (nbytes,) * others)


def _sum(a: Traffic, b: Traffic) -> Traffic:
    pairs = (zip(a.sent, b.sent, strict=True), zip(a.received, b.received, strict=True))
    return Traffic(*(tuple(x + y for x, y in p) for p in pairs))


def traffic(collective: str, algorithm: str, ranks: int, nbytes: float) -> Traffic:
    """Bytes that every rank sends and receives, rank 0 the root, pieces of nbytes / ranks.

    nbytes: the whole buffer, as in `course.costs.collectives`.
    Source: nccl-tests doc/PERFORMANCE.md; the naive ones by counting.
    """
    check_ranks(ranks)
    n, m, piece = ranks, nbytes, nbytes / ranks
    choices = {
        ("all_reduce", "ring"): lambda: _even(n, 2 * (n - 1) * piece),
        ("all_reduce", "naive"): lambda: _sum(_into_root(n, m), _out_of_root(n, m)),
        ("reduce_scatter", "ring"): lambda: _even(n, (n - 1) * piece),
        ("reduce_scatter", "naive"): lambda: _sum(_into_root(n, m), _out_of_root(n, piece)),
        ("all_gather", "ring"): lambda: _even(n, (n - 1) * piece),
        ("all_gather", "naive"): lambda: _sum(_into_root(n, piece), _out_of_root(n, m)),
        ("all_to_all", "naive"): lambda: _even(n, (n - 1) * piece),
        ("broadcast", "naive"): lambda: _out_of_root(n, m),
        ("broadcast", "ring"): lambda: _chain(n, m),
        ("reduce", "naive"): lambda: _into_root(n, m),
        ("scatter", "naive"): lambda: _out_of_root(n, piece),
        ("gather", "naive"): lambda: _into_root(n, piece),
    }
    if (collective, algorithm) not in choices:
        known = [f"{c}, {a}" for c, a in choices]
        raise ValueError(
            f"collective, algorithm must be one of {known}, not {collective}, {algorithm}"
        )
    return choices[collective, algorithm]()


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
    Errors count relative to the time measured, else the longest would decide alone.
    alpha is not let below 0. Raises ValueError where no bandwidth can be told.
    """
    if len(costs) != len(seconds) or len(costs) < 2:
        raise ValueError(
            f"need 2 or more pairs, not {len(costs)} costs, {len(seconds)} seconds"
        )
    times = np.asarray(seconds, dtype=float)
    if not (times > 0).all():
        raise ValueError("seconds must all be positive")
    terms = np.array([[c.steps, c.bytes_sent] for c in costs], dtype=float)
    alpha, per_byte = _least_squares(terms / times[:, None])
    if alpha < 0:
        alpha, (per_byte,) = 0.0, _least_squares(terms[:, 1:] / times[:, None])
    if per_byte <= 0:
        raise ValueError(
            "seconds must grow with bytes_sent, or there is no bandwidth to fit"
        )
    return Link(name, float(alpha), 1 / float(per_byte))


def _least_squares(relative: np.ndarray) -> np.ndarray:
    """Coefficients that bring every row's sum nearest to 1, columns scaled alike."""
    scale = np.abs(relative).max(axis=0)
    scale[scale == 0] = 1.0
    solution, *_ = np.linalg.lstsq(relative / scale, np.ones(len(relative)), rcond=None)
    return solution / scale
