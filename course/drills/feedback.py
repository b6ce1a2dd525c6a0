"""What the quiz says, as HTML. Classes are drawn by static/quiz.css."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course.drills.drawing import Drill
from course.drills.grading import Verdict
from course.drills.markdown import inline, to_html
from course.drills.questions import LEVELS

if TYPE_CHECKING:
    from course.drills.session import Session

GIVEN_UP = Verdict("wrong", 0.0, "Answer shown.")
_MARKS = {"right": "drill-right", "wrong": "drill-wrong"}


def _say(body: str, mark: str = "") -> str:
    return f'<div class="drill-say {mark}">{body}</div>'


def head_html(session: Session) -> str:
    """Title, which question, how hard, and the score so far."""
    question = session.card.drill.question
    number, total = session.position + 1, len(session.cards)
    points, answered = session.score
    score = f"score {points:.3g} of {answered} answered" if answered else "nothing answered"
    line = f"Question {number} of {total} · {question.id} · {LEVELS[question.level]}"
    return f"<b>{session.title}</b><br>{line} · {score}"


def prompt_html(drill: Drill) -> str:
    return to_html(drill.prompt)


def verdict_html(drill: Drill, verdict: Verdict) -> str:
    """Message, hint and reasons; the explanation once there is nothing left to try."""
    body = f"<p><b>{inline(verdict.message)}</b></p>"
    if verdict.hint:
        body += f"<p>{inline(verdict.hint)}</p>"
    numeric = drill.question.kind == "numeric"
    if verdict.kind == "wrong" and numeric:
        body += "<p>Try again, or show the answer.</p>"
    said = _say(body + _reasons(verdict), _MARKS.get(verdict.kind, ""))
    over = verdict.right or (verdict.counts and not numeric)
    return said + (answer_html(drill) if over else "")


def _reasons(verdict: Verdict) -> str:
    if not verdict.reasons:
        return ""
    items = (
        f"<li><b>{letter}</b> {inline(why)}</li>" for letter, _, why in verdict.reasons
    )
    return f'<ul class="drill-reasons">{"".join(items)}</ul>'


def answer_html(drill: Drill) -> str:
    """The worked or model answer, why, what is often said wrongly, and where to read."""
    question = drill.question
    body = ""
    if question.kind == "numeric":
        body += f"<p><b>{inline(drill.worked.strip())}</b></p>"
    if question.kind == "open":
        body += to_html(question.model_answer)
    body += to_html(drill.explanation)
    if question.folklore:
        body += f"<p><i>Often said, and wrong:</i> {inline(question.folklore.strip())}</p>"
    body += f"<p><small>Chapter {question.chapter}, “{question.cell}”</small></p>"
    return _say(body, "drill-answer")
