"""Numbers with units, as people write them: "49 GB", "45.6 GiB", "1.2 ms", "400 Gb/s".

`read` turns what a reader typed into a plain number of base units (bytes, seconds,
bytes per second, FLOP, FLOP per second, or a bare count); `write` goes the other way.
GB is 1e9 bytes, GiB is 2**30. No torch here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_SI = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_LONG_SECONDS = {"min": 60.0, "h": 3600.0, "day": 86400.0, "days": 86400.0}
_SECOND_WORDS = {
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
}
_COUNTS = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "%": 0.01, "x": 1.0}
BASE = {"bytes": "B", "seconds": "s", "rate": "B/s", "flop": "FLOP", "flops": "FLOP/s"}


@dataclass(frozen=True)
class Unit:
    """One unit: what it measures, and how many base units it is.

    A unit that is not in the tables ("messages", "tokens") counts things, one by one.
    """

    name: str
    measures: str
    factor: float


def unit(name: str) -> Unit:
    """The unit of that name; an unknown word is a count of such things.

    Raises ValueError where the name is not text.
    """
    if not isinstance(name, str):
        raise ValueError(f'unit must be text such as "GB", not {name!r}')
    return _find(name.strip()) or Unit(name.strip(), "count", 1.0)


def _find(name: str) -> Unit | None:
    name = name.replace("μ", "µ")
    if name in ("x", "%"):
        return Unit(name, "count", _COUNTS[name])
    for measures, factors in _TABLES.items():
        if name in factors:
            return Unit(name, measures, factors[name])
    return None


def _bytes() -> dict[str, float]:
    table = {p + "B": f for p, f in {**_SI, **_BINARY}.items()}
    # "gb" in small letters is a hasty GB; "Gb" is gigabits, as on a network card
    table |= {p.lower() + "b": f for p, f in _SI.items() if p}
    bits = {p: f for p, f in _SI.items() if p and p not in "kK"}
    table |= {p + "b": f / 8 for p, f in bits.items()}
    table |= {p + "bit": f / 8 for p, f in _SI.items()}
    return table | {"byte": 1.0, "bytes": 1.0, "bits": 1 / 8}


def _rates(table: dict[str, float]) -> dict[str, float]:
    per_second = {f"{name}/s": factor for name, factor in table.items()}
    bits = {p + "bps": f / 8 for p, f in _SI.items() if p}
    return per_second | bits


def _flop() -> dict[str, float]:
    return {p + word: f for p, f in _SI.items() for word in ("FLOP", "FLOPs")}


def _flops() -> dict[str, float]:
    return {p + word: f for p, f in _SI.items() for word in ("FLOP/s", "FLOPs/s", "FLOPS")}


_TABLES = {
    "bytes": _bytes(),
    "seconds": _SECONDS | _LONG_SECONDS | _SECOND_WORDS,
    "rate": _rates(_bytes()),
    "flop": _flop(),
    "flops": _flops(),
}

_NUMBER = re.compile(
    r"""\s*(?P<sign>[+-]?)\s*
    (?P<digits>\d[\d,_]*(?:\.\d*)?|\.\d+)
    (?P<exponent>[eE][+-]?\d+)?
    (?:\s*(?P<op>\*\*|\^|/)\s*(?P<second>-?\d+(?:\.\d+)?))?
    \s*(?P<unit>[^\d\s].*)?$""",
    re.VERBOSE,
)


def read(text: str | float, asked: str = "") -> float:
    """What was typed, in base units: bytes, seconds, bytes/s, FLOP, FLOP/s or a count.

    A plain number without a unit is in the asked unit; one in scientific notation or
    a power is in base units: "49" and "49e9" are both 49 GB where GB is asked for.
    Raises ValueError, with an example, for what cannot be read.
    """
    target = unit(asked)
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return _finite(float(text) * target.factor, text, asked)
    match = _NUMBER.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a number: write it as {_example(asked)}")
    return _finite(_value(match, text, asked) * _factor(match, text, target), text, asked)


def in_unit(text: str | float, asked: str = "") -> float:
    """What was typed, as a number of the asked unit. Raises ValueError as `read` does."""
    return read(text, asked) / unit(asked).factor


def _finite(value: float, text, asked: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number: write it as {_example(asked)}")
    return value


def _value(match: re.Match, text: str, asked: str) -> float:
    digits = match["digits"].replace(",", "").replace("_", "")
    value = float(match["sign"] + digits + (match["exponent"] or ""))
    if not match["op"]:
        return value
    second = float(match["second"])
    try:
        return value / second if match["op"] == "/" else float(value**second)
    except (ZeroDivisionError, OverflowError, TypeError) as error:
        message = f"{text!r} is not a finite number: write it as {_example(asked)}"
        raise ValueError(message) from error


def _factor(match: re.Match, text: str, target: Unit) -> float:
    word = (match["unit"] or "").strip().rstrip(".")
    if not word:
        scientific = match["exponent"] or match["op"] in ("^", "**")
        return 1.0 if scientific else target.factor
    if target.measures == "count":
        return _count_factor(word, text, target)
    found = _find(word) or _find(word.replace(" ", ""))
    if found is None:
        raise ValueError(f"{text!r}: unit {word!r} is not known: use {target.name}")
    if found.measures != target.measures:
        raise ValueError(
            f"{text!r} is in {found.measures}: the question asks for {target.name}"
        )
    return found.factor


def _count_factor(word: str, text: str, target: Unit) -> float:
    """7B parameters, 1.5k, 12 %, 3 messages: a large count with or without its noun."""
    head, _, noun = word.partition(" ")
    if word == target.name or word in _plural(target.name):
        return target.factor
    if head in _COUNTS and (not noun or noun in _plural(target.name)):
        return _COUNTS[head]
    raise ValueError(f"{text!r}: write a number of {target.name or 'units'}, not {word!r}")


def _plural(name: str) -> tuple[str, ...]:
    return (name, name + "s", name.removesuffix("s")) if name else ("",)


def _example(asked: str) -> str:
    return f'"12.5 {asked}"' if asked else '"12.5"'


def write(value: float, asked: str = "", digits: int = 3) -> str:
    """A number of the asked unit, to so many significant digits: "49.3 GB"."""
    shown = f"{value:.{digits}g}"
    if "e" in shown and 1e-4 <= abs(value) < 1e15:
        shown = (
            f"{float(shown):,.0f}" if abs(value) >= 1 else f"{float(shown):f}".rstrip("0")
        )
    gap = "" if asked in ("", "x") else " "
    return f"{shown}{gap}{asked}"


def write_bytes(nbytes: float) -> str:
    """In powers of two, as message sizes are named: "4 KiB", "1.5 MiB", "512 B"."""
    return _scaled(
        nbytes, [("B", 1)] + [(p + "B", f) for p, f in _BINARY.items()], step=1024
    )


def write_seconds(seconds: float) -> str:
    """In the unit that keeps the number short: "3.4 µs", "12 ms", "2.5 s"."""
    steps = [("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)]
    return _scaled(seconds, steps, step=1000)


def write_rate(bytes_per_s: float) -> str:
    """In powers of ten, as bandwidths are named: "450 GB/s"."""
    steps = [(p + "B/s", f) for p, f in _SI.items() if p != "K"]
    return _scaled(bytes_per_s, steps, step=1000)


def _scaled(value: float, steps: list[tuple[str, float]], step: int) -> str:
    name, factor = steps[0]
    for name, factor in steps:  # noqa: B007  the step that was reached is used below
        if abs(value) / factor < step * (1 - 5e-4):
            break
    if value == 0:
        name, factor = next(s for s in steps if s[1] == 1)
    number = (
        f"{value / factor:.3g}" if abs(value / factor) < 1000 else f"{value / factor:.0f}"
    )
    return f"{number} {name}"
