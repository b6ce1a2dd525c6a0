"""Controls: what a reader can turn. Each is a list of choices and the one that is set.

A slider, a dropdown and a checkbox are the same thing here: positions 0 to n-1, each
with a value and a text. The page only ever sends positions, so that no value is typed,
rounded or parsed on the way, and a test can visit every one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from course.quantities import write_bytes, write_seconds

MOST_POSITIONS = 1001


@dataclass(frozen=True)
class Control:
    """One control.

    kind:   "slider", "choice" or "checkbox"
    values: the value at each position
    texts:  what the reader sees at each position, with its unit
    start:  the position at first
    label:  the name beside it ("" = the argument's name)
    about:  one line under it that says what it changes
    """

    kind: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    start: int = 0
    label: str = ""
    about: str = ""

    def __post_init__(self):
        if not self.values:
            raise ValueError("values must hold at least one value")
        if len(self.values) > MOST_POSITIONS:
            raise ValueError(
                f"a control has at most {MOST_POSITIONS} positions: use a larger step"
            )

    def position_of(self, value: Any) -> int:
        """The position of that value. Raises ValueError where the control has no such."""
        for position, own in enumerate(self.values):
            if own is value or own == value or _close(own, value):
                return position
        raise ValueError(f"{value!r} is not one of {self.label or 'the control'}'s values")


def _close(a: Any, b: Any) -> bool:
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float))
    return numbers and math.isclose(a, b, rel_tol=1e-9)


def slider(
    low: float, high: float, step: float = 1, *, value=None, unit="", label="", about=""
) -> Control:
    """A slider from low to high, both included where the step meets them."""
    if step <= 0:
        raise ValueError(f"step must be positive, not {step}")
    if high < low:
        raise ValueError(f"high must be {low} or more, not {high}")
    count = int((high - low) / step + 1e-9) + 1
    values = [_tidy(low + i * step) for i in range(min(count, MOST_POSITIONS + 1))]
    return stops(values, value=value, unit=unit, label=label, about=about)


def log_slider(
    low: float, high: float, *, base: float = 2, value=None, unit="", label="", about=""
) -> Control:
    """A slider over low, low x base, low x base^2, ... up to high."""
    if not 0 < low <= high:
        raise ValueError(f"low and high must be 0 < low <= high, not {low} and {high}")
    if base <= 1:
        raise ValueError(f"base must be more than 1, not {base}")
    count = int(math.log(high / low) / math.log(base) + 1e-9) + 1
    values = [_tidy(low * base**i) for i in range(count)]
    return stops(values, value=value, unit=unit, label=label, about=about)


def stops(
    values: Iterable[float],
    *,
    value=None,
    unit="",
    label="",
    about="",
    text: Callable = None,
) -> Control:
    """A slider that stops at these values only. unit "bytes" and "s" scale themselves."""
    values = tuple(values)
    text = text or (lambda v: _write(v, unit))
    control = Control("slider", values, tuple(map(text, values)), 0, label, about)
    return _started(control, value)


def choice(options: Iterable | dict, *, value=None, label="", about="") -> Control:
    """A dropdown of values, or of {text: value}."""
    options = options if isinstance(options, dict) else {str(o): o for o in options}
    control = Control("choice", tuple(options.values()), tuple(options), 0, label, about)
    return _started(control, value)


def checkbox(value: bool = False, *, label="", about="") -> Control:
    """On or off."""
    return Control("checkbox", (False, True), ("off", "on"), int(bool(value)), label, about)


def control(given: Any) -> Control:
    """The control that a short form stands for.

    True or False: a checkbox. range(2, 9), (low, high) or (low, high, step): a slider.
    A list of numbers: a slider that stops there. Any other list, or {text: value}: a
    dropdown. Raises ValueError for anything else.
    """
    if isinstance(given, Control):
        return given
    if isinstance(given, bool):
        return checkbox(given)
    if isinstance(given, range):
        return stops(given)
    if isinstance(given, tuple) and _numbers(given) and len(given) in (2, 3):
        return slider(*given) if len(given) == 3 else slider(*given, _step(*given))
    if isinstance(given, list) and given and _numbers(given):
        return stops(given)
    if isinstance(given, (list, dict)) and given:
        return choice(given)
    raise ValueError(
        f"a control is a bool, range, (low, high[, step]), list or dict, not {given!r}"
    )


def controls_for(function: Callable, given: dict[str, Any]) -> dict[str, Control]:
    """The controls by argument name, each set to the function's own default if it has one.

    Raises ValueError where a name is not an argument of the function, or an argument
    without a default has no control.
    """
    arguments = inspect.signature(function).parameters
    takes_any = any(a.kind is a.VAR_KEYWORD for a in arguments.values())
    for name in given:
        if name not in arguments and not takes_any:
            raise ValueError(f"{name} is not an argument of {_name(function)}")
    for name, argument in arguments.items():
        named = argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
        if named and argument.default is argument.empty and name not in given:
            raise ValueError(f"{_name(function)} needs a control for {name}")
    return {name: _named(name, value, arguments.get(name)) for name, value in given.items()}


def _named(name: str, given: Any, argument) -> Control:
    made = control(given)
    made = replace(made, label=made.label or _in_words(name, made.texts))
    short_form = not isinstance(given, (Control, bool))
    if short_form and argument is not None and argument.default is not argument.empty:
        made = _started(made, argument.default)
    return made


def _in_words(name: str, texts: tuple[str, ...]) -> str:
    """An argument's name as a label: without the unit that its values are written with."""
    what, _, unit = name.rpartition("_")
    if what and all(text.endswith(f" {unit}") for text in texts):
        name = what
    return name.replace("_", " ").replace("micro batch", "micro-batch")


def _started(made: Control, value: Any) -> Control:
    return made if value is None else replace(made, start=made.position_of(value))


def _name(function: Callable) -> str:
    return getattr(function, "__name__", "the figure function")


def _numbers(values: Iterable) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _step(low: float, high: float) -> float:
    whole = isinstance(low, int) and isinstance(high, int)
    return 1 if whole or high == low else (high - low) / 50


def _tidy(value: float) -> float:
    """0.1 + 0.2 is shown and passed on as 0.3; whole numbers stay whole."""
    return value if isinstance(value, int) else float(f"{value:.12g}")


def _write(value: float, unit: str) -> str:
    if unit == "bytes":
        return write_bytes(value)
    if unit == "s":
        return write_seconds(value)
    return (
        f"{value:,} {unit}".strip()
        if isinstance(value, int)
        else f"{value:g} {unit}".strip()
    )
