"""Who sends how many bytes to whom in one collective, by algorithm. No torch.

Ranks here are group ranks, 0 to n - 1. M is the whole buffer, as in costs/collectives.py.
Bytes are whole numbers: a buffer that does not divide is cut as evenly as can be.
"""

from __future__ import annotations

from collections.abc import Iterator

from course.costs.collectives import algorithms

Sent = tuple[int, int, int]  # source, destination, bytes

ALGORITHMS = ("ring", "naive", "tree")


def pieces(nbytes: int, n: int) -> list[int]:
    """nbytes cut into n parts that differ by at most one byte, the larger ones first."""
    small, larger = divmod(int(nbytes), n)
    return [small + (r < larger) for r in range(n)]


def traffic(
    collective: str, algorithm: str, n: int, nbytes: int, root: int = 0
) -> Iterator[Sent]:
    """Every (source, destination, bytes) of one collective.

    algorithm:  "ring", "naive" (through one rank) or "tree" (binary, rank 0 on top,
                for all_reduce and barrier)
    Raises ValueError for a pair that is not known.
    """
    if algorithm not in ALGORITHMS or algorithm not in algorithms(collective):
        raise ValueError(f"traffic of {collective} by {algorithm!r} is not known")
    if n == 1:
        return
    if collective == "barrier":
        nbytes = 0
    if collective in ("all_reduce", "barrier"):
        yield from _ALL_REDUCE[algorithm](n, nbytes)
    elif algorithm == "tree":
        raise ValueError(f"traffic of {collective} by 'tree' is not known")
    elif algorithm == "naive" and collective in ("all_gather", "reduce_scatter"):
        inward, outward = ("gather", "broadcast"), ("reduce", "scatter")
        for part in inward if collective == "all_gather" else outward:
            yield from traffic(part, "naive", n, nbytes)
    else:
        yield from _OTHERS[collective](n, nbytes, root, algorithm)


def _ring_half(n: int, nbytes: int, kept: int) -> Iterator[Sent]:
    """n - 1 steps: each rank sends on every piece but one, that of rank r + kept."""
    sizes = pieces(nbytes, n)
    for r in range(n):
        yield r, (r + 1) % n, nbytes - sizes[(r + kept) % n]


def _ring_all_reduce(n: int, nbytes: int) -> Iterator[Sent]:
    # After the first half rank r owns piece r + 1, which it does not send in that half
    yield from _ring_half(n, nbytes, 1)
    yield from _ring_half(n, nbytes, 2)


def _naive_all_reduce(n: int, nbytes: int) -> Iterator[Sent]:
    for r in range(1, n):
        yield r, 0, nbytes
        yield 0, r, nbytes


def _tree_all_reduce(n: int, nbytes: int) -> Iterator[Sent]:
    for r in range(1, n):
        parent = (r - 1) // 2
        yield r, parent, nbytes
        yield parent, r, nbytes


_ALL_REDUCE = {
    "ring": _ring_all_reduce,
    "naive": _naive_all_reduce,
    "tree": _tree_all_reduce,
}


def _broadcast(n: int, nbytes: int, root: int, algorithm: str) -> Iterator[Sent]:
    for k in range(1, n):
        here, before = (root + k) % n, (root + k - 1) % n
        yield root if algorithm == "naive" else before, here, nbytes


def _reduce(n: int, nbytes: int, root: int, algorithm: str) -> Iterator[Sent]:
    for source, destination, sent in _broadcast(n, nbytes, root, algorithm):
        yield destination, source, sent


def _scatter(n: int, nbytes: int, root: int, algorithm: str) -> Iterator[Sent]:
    sizes = pieces(nbytes, n)
    for r in range(n):
        if r != root:
            yield root, r, sizes[r]


def _gather(n: int, nbytes: int, root: int, algorithm: str) -> Iterator[Sent]:
    for source, destination, sent in _scatter(n, nbytes, root, algorithm):
        yield destination, source, sent


def _all_gather(n: int, nbytes: int, root: int, algorithm: str) -> Iterator[Sent]:
    yield from _ring_half(n, nbytes, 1)


def _reduce_scatter(n: int, nbytes: int, root: int, algorithm: str) -> Iterator[Sent]:
    yield from _ring_half(n, nbytes, 0)


def _all_to_all(n: int, nbytes: int, root: int, algorithm: str) -> Iterator[Sent]:
    for r in range(n):
        for other, sent in enumerate(pieces(nbytes, n)):
            if other != r:
                yield r, other, sent


_OTHERS = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "scatter": _scatter,
    "gather": _gather,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
