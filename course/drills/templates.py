"""Fill {expression:unit} in prompts and worked lines: {2 * (ranks - 1)} or {nbytes:GB}."""

from __future__ import annotations

import re

from course import quantities
from course.drills.expressions import evaluate

_FIELD = re.compile(r"\{([^{}:]+)(?::([^{}]+))?\}")


def shown(value: float, unit: str) -> str:
    """A base-unit value in a shown unit, to four digits: shown(49e9, "GB") is "49 GB"."""
    return quantities.write(value / quantities.unit(unit).factor, unit, digits=4)


def plain(value) -> str:
    """A number to four digits, whole numbers in full; words as they are."""
    if isinstance(value, str):
        return value
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def fill(template: str, names: dict) -> str:
    """The template with every {expression} or {expression:unit} worked out.

    Raises ValueError for an unknown name or unit.
    """

    def one(found: re.Match) -> str:
        value = evaluate(found[1], names)
        return shown(value, found[2].strip()) if found[2] else plain(value)

    return _FIELD.sub(one, template)
