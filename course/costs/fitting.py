"""Do alpha and B explain measured times? Tested on sizes that the fit has not seen.

    times  {name: {nbytes: seconds}}     costs  {name: {nbytes: Cost}}, the same keys

Two ways to count what an algorithm costs, to be fitted side by side:
`course.costs.collectives.cost`, the critical path, where each rank has wires and a core
of its own; and `all_messages`, where the ranks share one machine's cores and memory.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from course.costs.bandwidth import fit_link
from course.costs.collectives import Cost, check_nbytes, check_ranks, core, rounds
from course.facts import Link

Times = Mapping[str, Mapping[int, float]]
Costs = Mapping[str, Mapping[int, Cost]]
LEAST_POINTS = 2  # of a line


@dataclass(frozen=True)
class Fit:
    """Alpha and B, found from some sizes and tried on the others.

    links:      of one regime, or of several from small messages to large
    starts:     the size in bytes from which each link holds, the first one 0
    fitted_on:  sizes in bytes that the links were found from
    ratios:     {(name, nbytes): predicted / measured} of the sizes held out
    """

    links: tuple[Link, ...]
    starts: tuple[int, ...]
    fitted_on: tuple[int, ...]
    ratios: dict[tuple[str, int], float]

    @property
    def link(self) -> Link:
        """The only link. Raises ValueError where there are several."""
        if len(self.links) > 1:
            raise ValueError("this fit has several links: use link_for(nbytes)")
        return self.links[0]

    @property
    def error(self) -> float:
        """The median of |predicted / measured - 1| over the sizes held out."""
        return statistics.median(abs(r - 1) for r in self.ratios.values())

    def link_for(self, nbytes: float) -> Link:
        return _at(self.links, self.starts, nbytes)

    def predict(self, costs: Costs) -> dict[str, dict[int, float]]:
        """Seconds of every cost."""
        return {
            name: {m: c.seconds(self.link_for(m)) for m, c in curve.items()}
            for name, curve in costs.items()
        }


def fit_half(costs: Costs, times: Times) -> Fit:
    """One alpha and B for all names together, from every second size.

    The smallest size is fitted, the next one held out, and so on.
    Raises ValueError for fewer than 3 sizes, and where `fit_link` does.
    """
    fitted_on, _ = _halves(times)
    link = _fit(costs, times, fitted_on)
    return Fit((link,), (0,), fitted_on, _ratios(costs, times, (link,), (0,)))


def fit_regimes(costs: Costs, times: Times) -> Fit:
    """As `fit_half` with two links, and the border that suits the fitted sizes best.

    Every regime keeps 2 fitted sizes or more. Where no border can be fitted, because
    noise hides that time grows with size, this is `fit_half`.
    """
    fitted_on, _ = _halves(times)
    tried = [_two_lines(costs, times, fitted_on, cut) for cut in _cuts(fitted_on)]
    found = [lines for lines in tried if lines is not None]
    if not found:
        return fit_half(costs, times)
    _, links, starts = min(found, key=lambda lines: lines[0])
    return Fit(links, starts, fitted_on, _ratios(costs, times, links, starts))


def _cuts(sizes) -> range:
    """Where a row of sizes can be cut so that both parts make a line."""
    return range(LEAST_POINTS, len(sizes) - LEAST_POINTS + 1)


def _two_lines(costs: Costs, times: Times, sizes, cut: int):
    """(misfit, links, starts), or None where no bandwidth can be told from a part."""
    parts = sizes[:cut], sizes[cut:]
    try:
        links = tuple(_fit(costs, times, part) for part in parts)
    except ValueError:
        return None
    misfit = sum(_misfit(costs, times, *pair) for pair in zip(links, parts, strict=True))
    return misfit, links, (0, parts[1][0])


def _halves(times: Times) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(sizes to fit, sizes held out)."""
    sizes = sorted({m for curve in times.values() for m in curve})
    if len(sizes) < LEAST_POINTS + 1:
        raise ValueError(f"times must hold 3 or more sizes, not {len(sizes)}")
    return tuple(sizes[::2]), tuple(sizes[1::2])


def _fit(costs: Costs, times: Times, sizes) -> Link:
    pairs = [(costs[n][m], c[m]) for n, c in times.items() for m in sizes if m in c]
    return fit_link([c for c, _ in pairs], [s for _, s in pairs])


def _misfit(costs: Costs, times: Times, link: Link, sizes) -> float:
    """Squares of the relative errors."""
    return sum(
        (costs[n][m].seconds(link) / c[m] - 1) ** 2
        for n, c in times.items()
        for m in sizes
        if m in c
    )


def _ratios(costs: Costs, times: Times, links, starts) -> dict[tuple[str, int], float]:
    _, held_out = _halves(times)
    return {
        (n, m): costs[n][m].seconds(_at(links, starts, m)) / c[m]
        for n, c in times.items()
        for m in held_out
        if m in c
    }


def _at(links, starts, nbytes: float) -> Link:
    """The last link that has started."""
    return [k for k, start in zip(links, starts, strict=True) if start <= nbytes][-1]


# --- Who is fastest, and where that changes ---------------------------------------------


def fastest_of(times: Times) -> dict[int, str]:
    """{nbytes: the name with the least time}; the first one where equal."""
    sizes = sorted({m for curve in times.values() for m in curve})
    return {m: min((n for n in times if m in times[n]), key=lambda n: times[n][m])
            for m in sizes}  # fmt: skip


def break_even_bytes(first: Cost, second: Cost, link: Link) -> float | None:
    """The M at which both take as long, or None where one is never slower.

    first, second: costs of ONE byte; both grow in proportion to M.
    steps1 alpha + bytes1 M / B = steps2 alpha + bytes2 M / B, solved for M.
    """
    steps = first.steps - second.steps
    per_byte = second.bytes_sent - first.bytes_sent
    if steps * per_byte <= 0:
        return None
    return steps * link.latency_s * link.bytes_per_s / per_byte


def crossings(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Sizes in bytes at which measured times change their order, smallest first.

    Between two measured sizes: where straight lines on log axes meet. Noise makes
    several crossings of one; a curve that is always below has none.
    """
    sizes = sorted(set(first) & set(second))
    lead = {m: math.log(first[m] / second[m]) for m in sizes}
    found = []
    for low, high in zip(sizes, sizes[1:], strict=False):
        if lead[low] * lead[high] < 0:
            share = lead[low] / (lead[low] - lead[high])
            found.append(low * (high / low) ** share)
    return found


# --- Everything that one machine has to carry -------------------------------------------


def all_messages(algorithm: str, ranks: int, nbytes: float) -> Cost:
    """Messages and bytes of an all-reduce, of all ranks together, as a Cost.

    algorithm: "ring", "tree", "recursive_doubling" or "halving_doubling", by hand as in
               `course.parallel`; the simulated world counts the same (tests)
    alpha is then what one message costs the whole machine, B what all its ranks move
    in a second.
    """
    check_ranks(ranks)
    check_nbytes(nbytes)
    n, p = ranks, core(ranks)
    fold = 2 * (n - p)  # messages of all of M, from surplus ranks and back to them
    counts = {
        "ring": (2 * n * (n - 1), 2 * (n - 1)),
        "tree": (2 * (n - 1), 2 * (n - 1)),
        "recursive_doubling": (p * rounds(p) + fold, p * rounds(p) + fold),
        "halving_doubling": (2 * p * rounds(p) + fold, 2 * (p - 1) + fold),
    }
    if algorithm not in counts:
        raise ValueError(f"algorithm must be one of {list(counts)}, not {algorithm!r}")
    messages, buffers = counts[algorithm]
    return Cost(messages, buffers * nbytes)
