"""All drills of a topic as markdown with folded answers: to read without a kernel."""

from __future__ import annotations

from course.drills.drawing import Drill, ask
from course.drills.questions import LETTERS, LEVELS, Question
from course.drills.reading import questions


def sheet(topic: str, *, level: int | None = None, seed: int | None = None) -> str:
    """Markdown of a topic's drills. Numeric ones keep the chapter's numbers unless a
    seed draws others. Raises ValueError for an unknown topic."""
    chosen = questions(topic, level=level)
    title = f"# Drills: {topic.replace('_', ' ')}, {len(chosen)} questions"
    return "\n\n".join([title, *(entry(ask(question, seed)) for question in chosen)]) + "\n"


def entry(drill: Drill) -> str:
    """One drill: prompt, choices, and everything else folded."""
    question = drill.question
    parts = [f"## {question.id} · {LEVELS[question.level]}", drill.prompt.strip()]
    if question.choices:
        pairs = zip(LETTERS, question.choices, strict=False)
        parts.append("\n".join(f"- **{letter}** {choice.text}" for letter, choice in pairs))
    answer = "\n\n".join(_answer(drill))
    folded = f"<details>\n<summary>Answer</summary>\n\n{answer}\n\n</details>"
    return "\n\n".join([*parts, folded])


def _answer(drill: Drill) -> list[str]:
    question = drill.question
    parts = [_short(drill), drill.explanation.strip()]
    if question.choices:
        parts.append(_reasons(question))
    if question.points:
        points = "\n".join(f"- {point}" for point in question.points)
        parts.append(f"What a listener wants to hear:\n\n{points}")
    if question.folklore:
        parts.append(f"*Often said, and wrong:* {question.folklore.strip()}")
    parts.append(f"Chapter {question.chapter}: {question.cell}")
    return parts


def _short(drill: Drill) -> str:
    if drill.question.kind == "open":
        return drill.question.model_answer.strip()
    if drill.question.kind == "numeric":
        return f"**{drill.worked.strip()}**"
    return f"**{', '.join(drill.answer)}**"


def _reasons(question: Question) -> str:
    pairs = zip(LETTERS, question.choices, strict=False)
    return "\n".join(
        f"- **{letter}** {choice.why}" for letter, choice in pairs if choice.why
    )
