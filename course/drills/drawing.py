"""Draw a question's numbers: from a seed, or the book's own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from course.drills.expressions import ROOTS, evaluate
from course.drills.questions import Question
from course.drills.reading import find
from course.drills.templates import fill

_NAMED = tuple(f"{root}." for root in ROOTS)


@dataclass(frozen=True)
class Drill:
    """A question ready to be asked.

    answer: a number in base units (bytes, seconds, bytes/s, a count) for a numeric
            question, the letters of the right choices for a choice question, else None
    slips:  (wrong number, hint) pairs
    """

    question: Question
    seed: int | None
    prompt: str
    explanation: str
    answer: float | tuple[str, ...] | None
    worked: str = ""
    slips: tuple[tuple[float, str], ...] = ()
    values: dict = field(default_factory=dict)


def ask(question: str | Question, seed: int | None = None) -> Drill:
    """The question with its numbers drawn; the same seed draws the same numbers.

    question: an id such as "C16a", or a Question
    seed:     None takes the first value of every list, which are the chapter's numbers
    Raises ValueError for an unknown id.
    """
    question = find(question) if isinstance(question, str) else question
    if question.kind == "numeric":
        return _draw_numeric(question, seed)
    answer = question.key or None
    return Drill(question, seed, question.prompt, question.explanation, answer)


def _draw(parameters: dict[str, list], seed: int | None) -> dict:
    if seed is None:
        return {name: values[0] for name, values in parameters.items()}
    rng = random.Random(seed)
    return {name: rng.choice(values) for name, values in parameters.items()}


def _resolved(value):
    """facts.H100, models.GPT3_175B, costs.recipes.SGD stand for what they name."""
    return evaluate(value, {}) if str(value).startswith(_NAMED) else value


def _draw_numeric(question: Question, seed: int | None) -> Drill:
    numeric = question.numeric
    names = {n: _resolved(v) for n, v in _draw(numeric.parameters, seed).items()}
    for name, expression in numeric.let.items():
        names[name] = evaluate(expression, names)
    answer = float(evaluate(numeric.answer, names))
    names["answer"] = answer
    slips = [(float(evaluate(s.value, names)), fill(s.hint, names)) for s in numeric.slips]
    return Drill(
        question,
        seed,
        prompt=fill(question.prompt, names),
        explanation=fill(question.explanation, names),
        answer=answer,
        worked=fill(numeric.worked, names),
        slips=tuple(slips),
        values=names,
    )
