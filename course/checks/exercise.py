"""An exercise as data: what is asked, on which cases, and how much traffic is enough."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ITEM = 4  # bytes of a float32
_WIDTH = 84


@dataclass(frozen=True)
class Case:
    """One run of an answer.

    ranks:  in the world
    shape:  of the tensor that each rank gets
    root:   of a rooted collective
    gpus:   ranks in a node, where the exercise is about nodes
    """

    ranks: int
    shape: tuple[int, ...] = (8,)
    root: int = 0
    gpus: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * ITEM

    @property
    def piece_bytes(self) -> int:
        """Of the largest of `ranks` pieces."""
        return -(-self.elements // self.ranks) * ITEM

    @property
    def nodes(self) -> int:
        return self.ranks // (self.gpus or self.ranks)

    def describe(self) -> str:
        size = f"{self.elements} element{'s' * (self.elements != 1)}"
        if len(self.shape) > 1:
            size = "shape " + " x ".join(map(str, self.shape))
        who = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        if self.gpus:
            who = f"{self.nodes} node{'s' * (self.nodes > 1)} of {self.gpus}"
        return f"{who}, {size}" + (f", root {self.root}" if self.root else "")


@dataclass(frozen=True)
class Limits:
    """How many bytes and steps a case needs and may take.

    sent, received:  most that one rank may send or receive, bytes
    needs:           least that each rank must have received, bytes, by rank
    total:           least that all ranks together must have sent, bytes
    total_most:      most that they may have sent, bytes
    steps:           most messages that may follow one another
    node_sent:       most that may leave one node, bytes
    card_sent:       most that may leave by one network card, bytes
    held:            most that a rank may hold, {"between steps": bytes}
    held_least:      least that all ranks together must hold, {"between steps": bytes}
    """

    sent: int
    received: int
    needs: tuple[int, ...]
    total: int
    total_most: int | None = None
    steps: int | None = None
    node_sent: int | None = None
    card_sent: int | None = None
    held: dict[str, int] = field(default_factory=dict)
    held_least: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.card_sent is not None:
            text = f"at most {self.card_sent} bytes leave by each network card"
        else:
            text = f"no rank sends more than {self.sent} bytes"
        for moment, most in self.held.items():
            text += f", or holds more than {most} bytes {moment}"
        return text + (f", in {self.steps} steps" if self.steps is not None else "")


@dataclass(frozen=True)
class Exercise:
    """What a reader is asked to write.

    name, chapter:  "ring reduce-scatter", "03"
    signature:      of the function, with what it returns
    task:           what it does, in sentences
    lines:          about how many a good answer takes
    target:         the traffic to reach, in words
    """

    name: str
    chapter: str
    signature: str
    task: str
    lines: int
    target: str = ""

    def grade(self, function: Callable):
        """The Verdict on an answer."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(
            [
                f'Exercise "{self.name}" (chapter {self.chapter})',
                f"    {self.signature}",
                textwrap.fill(self.task, _WIDTH),
                f"Size: about {self.lines} lines.",
                textwrap.fill(f"Target: {self.target}.", _WIDTH),
            ]
        )


@dataclass(frozen=True, repr=False)
class OnRanks(Exercise):
    """An exercise whose answer runs on every rank of a simulated world.

    cases:     the first one is the one that is shown
    play:      play(function, case, rank) runs the answer on one rank: what it left
    expected:  expected(case): what each rank should have, by rank
    limits:    limits(case) -> Limits
    by_hand:   only send and receive
    ring:      messages go to neighbours only
    memory:    tensor bytes are counted too: play leaves a `Held`
    slips:     slips(case): results of known slips, {what to say of it: results, by rank}
    hints:     what to do about bytes held at a moment, {"between steps": words}
    """

    cases: tuple[Case, ...] = ()
    play: Callable[[Callable, Case, int], Any] = field(default=None, kw_only=True)
    expected: Callable[[Case], list] = field(default=None, kw_only=True)
    limits: Callable[[Case], Limits] = field(default=None, kw_only=True)
    by_hand: bool = field(default=True, kw_only=True)
    ring: bool = field(default=False, kw_only=True)
    memory: bool = field(default=False, kw_only=True)
    slips: Callable[[Case], dict[str, list]] = field(default=None, kw_only=True)
    hints: dict[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self):
        case = self.cases[0]
        target = f"with {case.describe()} of float32, {self.limits(case)}"
        object.__setattr__(self, "target", target)

    def grade(self, function: Callable):
        from course.checks.grading import grade

        return grade(self, function)
