"""One reader's way through the questions of a topic, without any widget."""

from __future__ import annotations

from dataclasses import dataclass, field

from course.drills import feedback
from course.drills.drawing import Drill, ask
from course.drills.grading import Verdict, grade
from course.drills.markdown import inline
from course.drills.questions import LETTERS
from course.drills.reading import questions


def title(topic: str, count: int, level: int | None = None) -> str:
    """The stable line that a notebook stores in place of the quiz."""
    part = "" if level is None else f", level {level}"
    return f"Drills: {topic.replace('_', ' ')}{part}, {count} questions"


@dataclass
class Card:
    """What the reader has done with one drill.

    given:   text, or the letters chosen
    said:    the feedback that stands under it, as HTML
    opened:  whether the model answer of an open question is shown
    """

    drill: Drill
    given: str | list[str] = ""
    verdict: Verdict | None = None
    said: str = ""
    opened: bool = False
    ticked: set[int] = field(default_factory=set)

    @property
    def kind(self) -> str:
        return self.drill.question.kind


class Session:
    """The state of a quiz. Each method is one thing that a reader can do.

    Raises ValueError for an unknown topic, or a level that has no questions.
    """

    def __init__(self, topic: str, *, seed: int | None = None, level: int | None = None):
        chosen = questions(topic, level=level)
        self.title = title(topic, len(chosen), level)
        self.cards = [Card(ask(question, seed)) for question in chosen]
        self.position = 0
        self._next_seed = 1 if seed is None else seed + 1

    @property
    def card(self) -> Card:
        return self.cards[self.position]

    def act(self, does: str, given=None, point: int | None = None) -> None:
        """What the page reports: the button, and the answer as it stands."""
        if given is not None:
            self.card.given = given
        actions = {
            "check": self.check,
            "reveal": self.reveal,
            "numbers": self.new_numbers,
            "tick": lambda: self.tick(point),
            "back": lambda: self.go(self.position - 1),
            "next": lambda: self.go(self.position + 1),
        }
        if does not in actions:
            raise ValueError(f"does must be one of {list(actions)}, not {does!r}")
        actions[does]()

    def go(self, position: int) -> None:
        """To the question at that position; positions outside are ignored."""
        if 0 <= position < len(self.cards):
            self.position = position

    def check(self) -> None:
        """Grade the answer. One that cannot be read leaves an earlier grade as it was."""
        card = self.card
        if card.kind == "open":
            self._open()
            return
        verdict = grade(card.drill, card.given or None)
        if verdict.counts:
            card.verdict = verdict
        card.said = feedback.verdict_html(card.drill, verdict)

    def _open(self) -> None:
        card = self.card
        card.opened = True
        card.said = feedback.answer_html(card.drill)

    def tick(self, point: int) -> None:
        """Tick or untick a point of an open question; their share is its score."""
        card = self.card
        card.ticked ^= {point}
        card.verdict = grade(card.drill, sorted(card.ticked)) if card.ticked else None

    def reveal(self) -> None:
        """The worked answer. It counts as wrong unless the question was right before."""
        card = self.card
        if card.verdict is None or not card.verdict.right:
            card.verdict = feedback.GIVEN_UP
        card.said = feedback.answer_html(card.drill)

    def new_numbers(self) -> None:
        """The same question with other numbers, where it has numbers."""
        if self.card.kind == "numeric":
            drill = ask(self.card.drill.question, self._next_seed)
            self.cards[self.position] = Card(drill, verdict=self.card.verdict)
            self._next_seed += 1

    @property
    def score(self) -> tuple[float, int]:
        """(points, questions answered); a question is worth one point."""
        verdicts = [card.verdict for card in self.cards if card.verdict]
        return sum(verdict.score for verdict in verdicts), len(verdicts)

    def state(self) -> dict:
        """All that the page shows, as plain data. `asked` changes with the question."""
        card, question = self.card, self.card.drill.question
        return {
            "asked": f"{question.id} {card.drill.seed}",
            "kind": question.kind,
            "head": feedback.head_html(self),
            "prompt": feedback.prompt_html(card.drill),
            "options": _options(card.drill),
            "legend": _legend(card.drill),
            "placeholder": _placeholder(card.drill),
            "given": card.given,
            "points": [inline(p) for p in question.points] if card.opened else [],
            "ticked": sorted(card.ticked),
            "feedback": card.said,
            "check_label": "Compare" if question.kind == "open" else "Check",
            "first": self.position == 0,
            "last": self.position == len(self.cards) - 1,
        }


def _options(drill: Drill) -> list[tuple[str, str]]:
    pairs = zip(LETTERS, drill.question.choices, strict=False)
    return [(letter, inline(choice.text)) for letter, choice in pairs]


def _legend(drill: Drill) -> str:
    kind = drill.question.kind
    if kind == "numeric":
        unit = drill.question.numeric.unit
        return "How many times" if unit == "x" else f"Answer in {unit}"
    names = {"single": "Choose one", "multi": "Choose all that apply"}
    return names.get(kind, "Your answer")


def _placeholder(drill: Drill) -> str:
    if drill.question.kind == "open":
        return "Say it aloud or write it down before you compare."
    if drill.question.kind != "numeric":
        return ""
    unit = drill.question.numeric.unit
    return "such as 1.5" if unit == "x" else f"such as 12.5 {unit}"
