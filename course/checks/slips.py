"""Which known slip gives the values that an answer has."""

from __future__ import annotations

from typing import Any

from course.checks.compare import InPlace, first_difference


def named(results: list, expected: list, slips: dict[str, list]) -> str:
    """ "; these are sums, not means" where the first wrong rank has a slip's values.

    slips: {what to say: results by rank}. "" where no slip is like it
    """
    for rank, right in enumerate(expected):
        if first_difference([results[rank]], [right]):
            return _of_rank(results[rank], right, {w: of[rank] for w, of in slips.items()})
    return ""


def _of_rank(result: Any, right: Any, slips: dict[str, Any]) -> str:
    left = result.left if isinstance(result, InPlace) else result
    for words, values in slips.items():
        differs = first_difference([values], [right])  # else it is no slip on this rank
        if differs and not first_difference([left], [values]):
            return f"; {words}"
    return ""
