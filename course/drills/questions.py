"""What a question is. Each class checks itself and raises ValueError with the rule."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from course.drills.expressions import calls_costs, check
from course.quantities import unit

KINDS = ("single", "multi", "numeric", "open")
LEVELS = {1: "warm-up", 2: "interview", 3: "hard"}
LETTERS = "ABCDEFGH"
# What is counted where an answer is no quantity with a unit.
COUNTED = (
    *("x", "steps", "ranks", "messages", "parameters", "gathers", "copies"),
    "micro-batches",
)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)


@dataclass(frozen=True)
class Choice:
    """One option. A wrong one says in `why` which misconception it stands for."""

    text: str
    why: str = ""
    right: bool = False

    def __post_init__(self):
        for name in ("text", "why"):
            value = getattr(self, name)
            # YAML reads a bare no, 8 or [8] as something other than text
            _require(
                isinstance(value, str), f"{name} must be text, not {value!r}: quote it"
            )
        _require(bool(self.text.strip()), "a choice needs a text")
        _require(self.right or bool(self.why), f"wrong choice {self.text!r} needs a why")


@dataclass(frozen=True)
class Slip:
    """A wrong number that a known mistake leads to, and the hint that mends it."""

    value: str
    hint: str

    def __post_init__(self):
        check(self.value)
        _require(bool(self.hint.strip()), f"slip {self.value!r} needs a hint")


@dataclass(frozen=True)
class Numeric:
    """A number to work out.

    parameters: name -> list of values to draw from; the first is the book's own
    let:        name -> expression over parameters, worked out in order after the draw
    answer:     expression in base units that calls a function of course.costs
    unit:       unit that is asked for: "GB", "ms", "x" for a ratio, one of COUNTED
    tolerance:  largest relative error that counts as right
    worked:     the arithmetic as a template, {expression:unit} filled in
    """

    parameters: dict[str, list]
    answer: str
    unit: str
    worked: str
    let: dict[str, str] = field(default_factory=dict)
    tolerance: float = 0.02
    slips: tuple[Slip, ...] = ()

    def __post_init__(self):
        _require(bool(self.parameters), "parameters must name at least one number to draw")
        for name, values in self.parameters.items():
            many = isinstance(values, list) and len(values) > 1
            _require(many, f"parameter {name} needs a list of two or more values")
        for expression in (*self.let.values(), self.answer):
            check(expression)
        _require(
            any(calls_costs(text) for text in (self.answer, *self.let.values())),
            "answer must come from a function of course.costs, not from a typed number",
        )
        known = self.measures != "count" or self.unit in COUNTED
        _require(known, f"unit {self.unit!r} must be a known unit or one of {COUNTED}")
        _require(0 < self.tolerance < 0.2, "tolerance must lie between 0 and 0.2")
        _require("{answer" in self.worked, "worked must hold {answer:unit}")

    @property
    def measures(self) -> str:
        """What the answer is: bytes, seconds, rate (bytes/s) or count."""
        return unit(self.unit).measures


@dataclass(frozen=True)
class Question:
    """One drill. `id` begins with the row of the coverage list that it belongs to."""

    id: str
    topic: str
    chapter: str
    level: int
    kind: str
    cell: str
    prompt: str
    explanation: str
    folklore: str = ""
    choices: tuple[Choice, ...] = ()
    numeric: Numeric | None = None
    model_answer: str = ""
    points: tuple[str, ...] = ()

    def __post_init__(self):
        _require(
            bool(re.fullmatch(r"[A-Z]\d\d[a-z]", str(self.id))),
            "id must be a row and a letter, such as C16a",
        )
        _require(self.level in LEVELS, f"level must be one of {tuple(LEVELS)}")
        _require(self.kind in KINDS, f"kind must be one of {KINDS}")
        for name in ("cell", "prompt", "explanation"):
            _require(bool(getattr(self, name).strip()), f"{name} must not be empty")
        self._check_kind()

    def _check_kind(self):
        right = [choice for choice in self.choices if choice.right]
        if self.kind in ("single", "multi"):
            _require(3 <= len(self.choices) <= 8, "choices must number 3 to 8")
            _require(
                len({c.text for c in self.choices}) == len(self.choices), "equal choices"
            )
        else:
            _require(not self.choices, f"a {self.kind} question has no choices")
        if self.kind == "single":
            _require(len(right) == 1, "a single question has exactly one right choice")
        if self.kind == "multi":
            _require(len(right) >= 1, "a multi question has at least one right choice")
        _require((self.kind == "numeric") == (self.numeric is not None), "numeric block")
        if self.kind == "open":
            _require(
                bool(self.model_answer.strip()), "an open question needs a model_answer"
            )
            _require(len(self.points) >= 3, "an open question needs three or more points")
        else:
            _require(
                not (self.model_answer or self.points), "model_answer is for open ones"
            )

    @property
    def row(self) -> str:
        """The coverage row: C16 of C16a."""
        return self.id[:3]

    @property
    def key(self) -> tuple[str, ...]:
        """Letters of the right choices; empty for numeric and open questions."""
        pairs = zip(LETTERS, self.choices, strict=False)
        return tuple(letter for letter, choice in pairs if choice.right)
