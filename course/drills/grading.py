"""Grade an answer: right, or which known slip it looks like. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from course import quantities
from course.drills.drawing import Drill, ask
from course.drills.questions import LETTERS, Question
from course.drills.templates import shown


@dataclass(frozen=True)
class Verdict:
    """What an answer is worth.

    kind:    right, wrong, unanswered, unreadable (could not be read: not counted), open
    score:   0 to 1
    message: one sentence
    hint:    for a wrong number, what the slip seems to be
    reasons: (letter, text, reason) of each choice that needs a word
    """

    kind: str
    score: float
    message: str
    hint: str = ""
    reasons: tuple[tuple[str, str, str], ...] = ()

    @property
    def right(self) -> bool:
        return self.kind == "right"

    @property
    def counts(self) -> bool:
        """Whether it enters the score."""
        return self.kind in ("right", "wrong", "open")


# How far a number may be from a known wrong value and still be taken for it.
_SLIP_TOLERANCE = 0.02

# ratio of given to right -> the usual reason, by measure
_BYTE_SLIPS = (
    (2.0, "Twice too much. Send and receive are counted one at a time: was one direction "
          "asked for? Or one phase counted twice?"),
    (0.5, "Half. A phase is missing, or one direction of two."),
    (8.0, "Eight times too much: bits instead of bytes? 1 byte is 8 bits."),
    (0.125, "An eighth: bytes taken for bits? 1 byte is 8 bits."),
    (1.024, "GB and GiB differ: 1 GiB = 2**30 bytes = 1.074 GB, 1 KiB = 1.024 KB."),
    (2**20 / 1e6, "MB and MiB differ: 1 MiB = 2**20 bytes = 1.049 MB."),
    (2**30 / 1e9, "GB and GiB differ: 1 GiB = 2**30 bytes = 1.074 GB."),
)  # fmt: skip
_TIME_SLIPS = (
    (2.0, "Twice too much. Is the bandwidth per direction, each phase counted once?"),
    (0.5, "Half. A phase is missing, or a two-way bandwidth was used for one direction."),
    (8.0, "Eight times too much: bits instead of bytes?"),
    (0.125, "An eighth: a link in Gb/s was read as GB/s."),
    (2**30 / 1e9, "GB and GiB differ: 1 GiB = 2**30 bytes = 1.074 GB."),
)  # fmt: skip
_PLAIN_SLIPS = (
    (2.0, "Twice too much: was something counted in both directions?"),
    (0.5, "Half: a phase or a direction is missing."),
    (100.0, "A per cent sign is missing."),
)  # fmt: skip
_SLIPS = {
    "bytes": _BYTE_SLIPS,
    "rate": _TIME_SLIPS,
    "seconds": _TIME_SLIPS,
    "count": _PLAIN_SLIPS,
}


def grade(drill: Drill | Question | str, answer) -> Verdict:
    """Grade an answer to a drill; a bare question or id is taken with its own numbers.

    answer: a letter ("B"), letters (["A", "C"] or "AC"); text with a unit ("49 GB") or a
            number of the unit that is asked for (49); or for an open question the
            positions (0 first) of the points one has named
    """
    drill = drill if isinstance(drill, Drill) else ask(drill)
    if answer is None or answer in ("", (), []):
        return Verdict("unanswered", 0.0, "Not answered yet.")
    graders = {"numeric": _grade_number, "open": _grade_open}
    return graders.get(drill.question.kind, _grade_choice)(drill, answer)


# --- Choices --------------------------------------------------------------------------


def _letters(answer) -> set[str]:
    parts = answer if not isinstance(answer, str) else answer.replace(",", "").split()
    return {letter.upper() for part in parts for letter in part}


def _grade_choice(drill: Drill, answer) -> Verdict:
    question, given = drill.question, _letters(answer)
    unknown = sorted(given - set(LETTERS[: len(question.choices)]))
    if unknown:
        return Verdict("unreadable", 0.0, f"There is no choice {unknown[0]}.")
    if question.kind == "single" and len(given) > 1:
        return Verdict("unreadable", 0.0, "Choose one.")
    reasons = tuple(_reasons(question, given))
    if given == set(question.key):
        return Verdict("right", 1.0, "Right.", reasons=reasons)
    return Verdict("wrong", 0.0, _choice_message(question, given), reasons=reasons)


def _choice_message(question: Question, given: set[str]) -> str:
    key = set(question.key)
    if question.kind == "single":
        return f"Not {min(given)}. The answer is {min(key)}."
    missed, extra = sorted(key - given), sorted(given - key)
    parts = [f"missed {', '.join(missed)}"] * bool(missed)
    parts += [f"{', '.join(extra)} should not be chosen"] * bool(extra)
    return f"Not quite: {'; '.join(parts)}."


def _reasons(question: Question, given: set[str]):
    """Why the chosen ones are right or wrong, and why any missed one is right."""
    for letter, choice in zip(LETTERS, question.choices, strict=False):
        if choice.why and (letter in given or choice.right):
            yield letter, choice.text, choice.why


# --- Numbers --------------------------------------------------------------------------


def _close(given: float, wanted: float, tolerance: float) -> bool:
    return math.isclose(given, wanted, rel_tol=tolerance)


def _grade_number(drill: Drill, answer) -> Verdict:
    numeric = drill.question.numeric
    try:
        given = quantities.read(answer, numeric.unit)
    except ValueError as error:
        return Verdict("unreadable", 0.0, f"Not understood: {error}.")
    right = shown(drill.answer, numeric.unit)
    if abs(given - drill.answer) <= numeric.tolerance * abs(drill.answer):
        return Verdict("right", 1.0, f"Right: {right}.")
    hint = slip_hint(drill, given)
    return Verdict("wrong", 0.0, f"Not {shown(given, numeric.unit)}.", hint=hint)


def slip_hint(drill: Drill, given: float) -> str:
    """What mistake would lead to this number; the question's own slips come first."""
    if given <= 0:
        return "The answer is a positive number."
    value, hint = min(drill.slips, key=lambda slip: abs(slip[0] - given), default=(0, ""))
    if _close(given, value, _SLIP_TOLERANCE):
        return hint
    ratio = given / drill.answer
    for factor, hint in _SLIPS[drill.question.numeric.measures]:
        if any(_close(ratio, f, 0.01) for f in (factor, _inverse(factor))):
            return hint
    return _prefix_hint(ratio) or _size_hint(ratio)


def _inverse(factor: float) -> float:
    """GB for GiB works both ways; twice and half have their own hints."""
    return 1 / factor if 1 < factor < 1.1 else factor


def _prefix_hint(ratio: float) -> str:
    power = round(math.log10(ratio) / 3)
    if power and _close(ratio, 1000.0**power, 0.09):
        return (
            "Off by a power of a thousand: check the unit (KB, MB, GB; us, ms, s), and "
            "write it behind the number."
        )
    return ""


def _size_hint(ratio: float) -> str:
    return "Too large." if ratio > 1 else "Too small."


# --- Open questions -------------------------------------------------------------------


def _grade_open(drill: Drill, answer: Iterable[int]) -> Verdict:
    points = drill.question.points
    named = set(answer)
    outside = [i for i in named if not 0 <= i < len(points)]
    if outside:
        raise ValueError(f"points run from 0 to {len(points) - 1}, not {min(outside)}")
    missing = tuple(
        (str(i + 1), point, "not named") for i, point in enumerate(points) if i not in named
    )
    message = f"You named {len(named)} of {len(points)} points."
    return Verdict("open", len(named) / len(points), message, reasons=missing)
