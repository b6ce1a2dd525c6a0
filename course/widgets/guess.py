"""`predict`: the reader commits to a number before the answer appears."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go
import traitlets

from course.quantities import in_unit, write
from course.widgets.live import Live, figure_and_text, figure_json, static

# (largest ratio between guess and answer, what is said of it)
VERDICTS = (
    (1.01, "That is it."),
    (1.1, "Close: within 10 %."),
    (2.0, "Right size: within a factor of 2."),
    (10.0, "Within a factor of 10: look for a factor that is missing."),
    (float("inf"), "More than a factor of 10 away: worth working out on paper."),
)


@dataclass(frozen=True)
class Outcome:
    """A guess beside its answer, both in the asked unit. ratio = guess / answer."""

    guess: float
    answer: float
    unit: str
    verdict: str
    figure: go.Figure | None = None
    text: str = ""

    @property
    def ratio(self) -> float | None:
        """None where the answer is 0: nothing is a multiple of that."""
        return self.guess / self.answer if self.answer else None

    def sentence(self) -> str:
        own, right = write(self.guess, self.unit), write(self.answer, self.unit)
        times = "" if self.ratio is None else f" You said {self.ratio:.3g} times that."
        return f"You: {own}. The answer: {right}.{times} {self.verdict}"


def predict(
    question: str,
    unit: str,
    answer: float | str | Callable,
    *,
    then: Callable | None = None,
    hint: str = "",
) -> Prediction:
    """Ask for a number, and show the answer only once one is committed.

    unit:   what the answer is counted in: "GB", "ms", "messages", "" for a plain number
    answer: a number of that unit, a text with its own unit ("49 GB"), or a function of
        no arguments that returns one of these; it is called when the reader commits
    then:   a function that returns a Figure or (Figure, text), drawn after the commit; if
        it needs an argument, it is given the guess, as a number of the asked unit
    hint:   one line under the question

    A cell that runs unanswered shows the question and waits. The reader may write the
    guess with any unit of the same kind: "49 GB", "49e9", "45.6 GiB".
    """
    if not question.strip():
        raise ValueError("question must not be empty")
    return Prediction(question, unit, answer, then, hint)


class Prediction(Live):
    """A question that waits for a guess. Make one with `predict`."""

    _esm = static("common.js", "predict.js")
    question = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    hint = traitlets.Unicode().tag(sync=True)
    # what the page sends: {"text": the guess, "try": a number that makes each one new}
    guess = traitlets.Dict().tag(sync=True, echo_update=False)
    # JSON of {"sentence", "figure", "text"} or {"error"}; "" until something is committed
    reply = traitlets.Unicode().tag(sync=True)

    def __init__(self, question, unit, answer, then, hint):
        self._answer, self._then = answer, then
        self.outcome: Outcome | None = None
        super().__init__(question=question, unit=unit, hint=hint)
        self.observe(self._on_guess, "guess")

    def commit(self, guess: str | float) -> Outcome:
        """Commit from Python, as a reader would. Raises ValueError for no number."""
        own = in_unit(guess, self.unit)
        answer = self._answer() if callable(self._answer) else self._answer
        right = in_unit(answer, self.unit) if isinstance(answer, str) else float(answer)
        figure, text = self._picture(own)
        self.outcome = Outcome(own, right, self.unit, verdict(own, right), figure, text)
        self.reply = _reply(self.outcome)
        return self.outcome

    def _picture(self, guess: float) -> tuple[go.Figure | None, str]:
        if self._then is None:
            return None, ""
        arguments = inspect.signature(self._then).parameters.values()
        takes_guess = any(
            a.default is a.empty and a.kind not in (a.VAR_KEYWORD, a.VAR_POSITIONAL)
            for a in arguments
        )
        made = self._then(guess) if takes_guess else self._then()
        return figure_and_text(made, getattr(self._then, "__name__", "then"))

    def _on_guess(self, change) -> None:
        try:
            self.commit(change["new"].get("text", ""))
        except ValueError as error:  # shown to the reader: a callback has no caller
            self.reply = json.dumps({"error": str(error), "try": change["new"].get("try")})
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.reply = json.dumps({"error": message, "try": change["new"].get("try")})

    def stored_text(self) -> str:
        unit = f" ({self.unit})" if self.unit else ""
        return f"Predict: {self.question}{unit}"


def verdict(guess: float, answer: float) -> str:
    """What is said of a guess: by the ratio of the larger to the smaller."""
    if guess == answer:
        return VERDICTS[0][1]
    if guess * answer <= 0:
        return "The sign is wrong." if guess and answer else "Zero is no multiple of it."
    ratio = max(guess / answer, answer / guess)
    return next(said for most, said in VERDICTS if ratio <= most * (1 + 1e-12))


def _reply(outcome: Outcome) -> str:
    reply = {"sentence": outcome.sentence(), "text": outcome.text}
    if outcome.figure is not None:
        reply["figure"] = json.loads(figure_json(outcome.figure))
    return json.dumps(reply)
