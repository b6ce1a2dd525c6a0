"""Exercises of chapter 07: model states, recomputing a block, a loss in chunks.

The last two run on one simulated rank, which counts the tensor bytes that they hold.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from course.checks.compare import Fault, first_difference
from course.checks.exercise import Exercise
from course.checks.states import ModelStates
from course.checks.verdict import Verdict, of_error, right, wrong
from course.parallel.memory import chunked_cross_entropy, recomputed
from course.worlds import Run, World

_TIMEOUT_S = 20  # of real time without a call: an endless loop, on a busy machine
TORCHS = "torch/utils/checkpoint.py"


@dataclass(frozen=True, repr=False)
class OnOneRank(Exercise):
    """An exercise that is to give right gradients, and to hold little meanwhile.

    cases:     dataclasses with describe(); the first one is the one that is shown
    play:      play(function, case): tensors that the answer led to, in a list
    plain:     the same function, right and wasteful
    sparing:   the same function, right and sparing: it says how much is enough
    slack:     so many times that much may be held
    hint:      what to do about too much
    items:     what the first tensors are called; the others are gradients of parameters
    """

    cases: tuple = ()
    play: Callable = field(default=None, kw_only=True)
    plain: Callable = field(default=None, kw_only=True)
    sparing: Callable = field(default=None, kw_only=True)
    slack: float = field(default=1.05, kw_only=True)
    hint: str = field(default="", kw_only=True)
    items: tuple[str, ...] = field(default=(), kw_only=True)

    def grade(self, function: Callable) -> Verdict:
        peaks = []
        for case in self.cases:
            try:
                run = self._run(function, case)
            except Exception as error:
                return of_error(error, case.describe())
            fault = self._wrong_values(run, case) or self._too_much(run, case)
            if fault:
                return wrong(*fault, case.describe())
            peaks.append(run.peak_bytes[0])
        wasteful = self._run(self.plain, self.cases[0]).peak_bytes[0]
        says = f"right: it holds {peaks[0]} bytes at most, {wasteful} without"
        return right(says, f"case: {self.cases[0].describe()}; {len(peaks)} cases")

    def _run(self, function: Callable, case) -> Run:
        """One case; the rank's results are a Fault, or tensors."""
        return World(1, memory=True, timeout_s=_TIMEOUT_S).run(self.play, function, case)

    def _wrong_values(self, run: Run, case) -> Fault | None:
        if isinstance(run.results[0], tuple):
            return run.results[0]
        fault = first_difference(run.results, self._run(self.plain, case).results)
        named = re.sub(r"rank 0, item (\d+)", self._item, fault[1]) if fault else ""
        return (fault[0], named) if fault else None

    def _item(self, found: re.Match) -> str:
        number = int(found[1])
        return self.items[number] if number < len(self.items) else "a parameter's .grad"

    def _too_much(self, run: Run, case) -> Fault | None:
        held, enough = run.peak_bytes[0], self._run(self.sparing, case).peak_bytes[0]
        if held <= self.slack * enough:
            return None
        says = f"right values, but it holds {held} bytes where {enough} are enough"
        return "too much memory", f"{says}: {self.hint}"


# --- Recompute a block ----------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """Blocks in a row, each recomputed by itself. x is [tokens, width], of doubles."""

    blocks: int
    tokens: int
    width: int
    dropout: float = 0.0

    def describe(self) -> str:
        drop = f", dropout {self.dropout}" if self.dropout else ""
        return f"{self.blocks} blocks, x [{self.tokens}, {self.width}]{drop}"


def _block(case: Blocks) -> nn.Module:
    wide = 4 * case.width
    parts = nn.Linear(case.width, wide), nn.GELU(), nn.Linear(wide, case.width)
    return nn.Sequential(*parts, nn.Dropout(case.dropout)).double()


class _Watched:
    """A residual block that counts its calls, and sees who calls it."""

    def __init__(self, block: nn.Module):
        self.block, self.calls, self.by_torch = block, 0, False

    def __call__(self, x):
        self.calls += 1
        frame = sys._getframe(1)
        while frame is not None:
            self.by_torch |= frame.f_code.co_filename.endswith(TORCHS)
            frame = frame.f_back
        return x + self.block(x)


def _play_blocks(function: Callable, case: Blocks):
    torch.manual_seed(7)
    watched = [_Watched(_block(case)) for _ in range(case.blocks)]
    start = torch.randn(case.tokens, case.width, dtype=torch.double, requires_grad=True)
    x = start
    for block in watched:
        x = function(block, x)
        if not isinstance(x, torch.Tensor):
            return "wrong shape", f"wrong shape: {x!r} was returned, should be function(x)"
    if not x.requires_grad:
        return "wrong values", "what it returns is cut off: it has no gradient"
    x.square().sum().backward()
    grads = [p.grad for w in watched for p in w.block.parameters()]
    return _broken_rule(watched) or [x.detach(), start.grad, *grads]


def _broken_rule(watched: list[_Watched]) -> Fault | None:
    calls = max(w.calls for w in watched)
    if any(w.by_torch for w in watched):
        return "against the rules", "torch.utils.checkpoint does it: write it yourself"
    if calls > 2:
        says = f"function is called {calls} times where 2 are enough"
        return "too slow", f"{says}: once in forward, once in backward"
    return None


RECOMPUTE = OnOneRank(
    "recompute",
    "07",
    "def my_recompute(function, x): return y",
    "Return function(x) for a tensor x that requires a gradient. Backward must give the "
    "same gradients, of x and of every parameter that function uses; but forward keeps x "
    "alone, and backward calls function once more. Dropout must draw the same mask. Write "
    "a torch.autograd.Function; torch.utils.checkpoint is not allowed.",
    15,
    "what x and one block take, not all blocks",
    cases=(
        Blocks(6, 40, 12), Blocks(1, 5, 3), Blocks(4, 40, 12, 0.25), Blocks(8, 64, 4),
    ),
    play=_play_blocks,
    plain=lambda function, x: function(x),
    sparing=recomputed,
    items=("the result", "x.grad"),
    hint="forward is to keep x, and nothing that function makes",
)  # fmt: skip

# --- A loss in chunks -------------------------------------------------------------------


@dataclass(frozen=True)
class Logits:
    """hidden is [tokens, width], weight [vocab, width], of doubles."""

    tokens: int
    vocab: int
    chunks: int
    width: int = 3

    def describe(self) -> str:
        many = f"{self.chunks} chunk{'s' * (self.chunks > 1)}"
        return f"{self.tokens} tokens, vocabulary {self.vocab}, {many}"


def _play_loss(function: Callable, case: Logits):
    torch.manual_seed(7)
    sizes = (case.tokens, case.width), (case.vocab, case.width)
    hidden, weight = (torch.randn(*size, dtype=torch.double) for size in sizes)
    hidden.requires_grad_(), weight.requires_grad_()
    targets = torch.randint(case.vocab, (case.tokens,))
    loss = function(hidden, weight, targets, case.chunks)
    if not isinstance(loss, torch.Tensor) or loss.dim():
        says = f"wrong shape: {loss!r} was returned"
        return "wrong shape", f"{says}, should be a tensor without a dim"
    if not loss.requires_grad:
        return "wrong values", "the loss is cut off: it has no gradient"
    loss.backward()
    return [loss.detach(), hidden.grad, weight.grad]


def _whole_loss(hidden, weight, targets, chunks):
    return F.cross_entropy(hidden @ weight.T, targets)


CHUNKED = OnOneRank(
    "loss in chunks",
    "07",
    "def my_loss(hidden, weight, targets, chunks): return loss",
    "Return the mean cross-entropy of the logits hidden @ weight.T against targets, "
    "ready for backward, but never hold the logits of all tokens: cut hidden and targets "
    "by tensor_split(chunks), and let backward work a chunk's logits out again. "
    "torch.utils.checkpoint is allowed.",
    8,
    "three times the logits of one chunk, beside what goes in and comes out",
    cases=(
        Logits(64, 512, 8), Logits(6, 40, 1), Logits(50, 300, 7), Logits(3, 100, 5),
    ),
    play=_play_loss,
    plain=_whole_loss,
    sparing=chunked_cross_entropy,
    items=("the loss", "hidden.grad", "weight.grad"),
    hint="logits of one chunk at a time, in forward and in backward",
)  # fmt: skip

EXERCISES = (ModelStates(), RECOMPUTE, CHUNKED)
