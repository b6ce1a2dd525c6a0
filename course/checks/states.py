"""The exercise "model states": bytes by what holds them, a known slip told by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from course.checks.exercise import Exercise
from course.checks.verdict import Verdict, of_error, right, wrong

PARTS = ("weights", "gradients", "the optimizer's own")
WIDE, NARROW = torch.float32, torch.bfloat16


def _trained(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: int = 6):
    """The model and its optimizer after one step, gradients still there."""
    first = next(model.parameters())
    model(torch.ones(2, inputs, dtype=first.dtype)).sum().backward()
    optimizer.step()
    return model, optimizer


def _fp32_adam():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    return _trained(model, torch.optim.AdamW(model.parameters()))


def _plain_sgd():
    model = nn.Linear(6, 4)
    return _trained(model, torch.optim.SGD(model.parameters()))


def _bf16_momentum():
    model = nn.Linear(6, 4).to(NARROW)
    return _trained(model, torch.optim.SGD(model.parameters(), momentum=0.9))


def _masters():
    """bf16 weights and gradients; the optimizer updates fp32 copies of its own."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to(NARROW)
    copies = [p.detach().to(WIDE).requires_grad_() for p in model.parameters()]
    model(torch.ones(2, 6, dtype=NARROW)).sum().backward()
    for copy, p in zip(copies, model.parameters(), strict=True):
        copy.grad = p.grad.to(WIDE)
    optimizer = torch.optim.AdamW(copies)
    optimizer.step()
    return model, optimizer


def _frozen_base():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return _trained(model, torch.optim.AdamW(model[1].parameters()))


def _tied():
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
    model[1].weight = model[0].weight
    return _trained(model, torch.optim.AdamW(model.parameters()))


CASES = {
    "fp32, AdamW": _fp32_adam,
    "fp32, SGD without momentum": _plain_sgd,
    "bf16, SGD with momentum": _bf16_momentum,
    "bf16, AdamW on fp32 copies of its own": _masters,
    "a frozen layer, AdamW on the other": _frozen_base,
    "two layers with one weight": _tied,
}


def _bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def _pieces(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list]:
    """Tensors of each kind, {kind: tensors}; copies: the optimizer's parameters."""
    own = list(model.parameters())
    groups = [p for group in optimizer.param_groups for p in group["params"]]
    copies = [p for p in groups if all(p is not q for q in own)]
    states = [t for state in optimizer.state.values() for t in state.values()]
    return {
        "own": own,
        "grads": [p.grad for p in own],
        "copies": copies,
        "copies' grads": [p.grad for p in copies],
        "states": [t for t in states if isinstance(t, torch.Tensor)],
    }


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int, int]:
    """Bytes of weights, of gradients, and of all that is the optimizer's own."""
    p = _pieces(model, optimizer)
    rest = p["states"] + p["copies"] + p["copies' grads"]
    return _bytes(p["own"]), _bytes(p["grads"]), _bytes(rest)


@dataclass(frozen=True, repr=False)
class ModelStates(Exercise):
    """Three numbers back, for models as training leaves them."""

    name: str = "model states"
    chapter: str = "07"
    signature: str = "def my_states(model, optimizer): return weights, gradients, own"
    task: str = (
        "A step has just been taken, gradients are still there. Return three numbers of "
        "bytes: of the model's parameters; of their gradients; and of all that is the "
        "optimizer's own, which is every tensor in optimizer.state, and the parameters "
        "that it updates if they are not the model's, with their gradients."
    )
    lines: int = 10
    target: str = "to the byte, on six models"

    def grade(self, function: Callable) -> Verdict:
        for name, make in CASES.items():
            torch.manual_seed(7)
            model, optimizer = make()
            try:
                answer = function(model, optimizer)
            except Exception as error:
                return of_error(error, name)
            fault = _fault(answer, model, optimizer)
            if fault:
                return wrong(*fault, name)
        return right(f"right: to the byte, on {len(CASES)} models")


def _fault(answer, model, optimizer) -> tuple[str, str] | None:
    if not isinstance(answer, tuple | list) or not _three_counts(answer):
        says = f"wrong shape: {answer!r} was returned, should be three whole numbers"
        return "wrong shape", says
    for part, got, want in zip(PARTS, answer, held(model, optimizer), strict=True):
        if got != want:
            slip = _slips(part, _pieces(model, optimizer)).get(int(got), "")
            says = f"wrong values: {part}: {int(got)} bytes, should be {want}"
            return "wrong values", says + slip
    return None


def _three_counts(answer) -> bool:
    number = lambda n: isinstance(n, int | float) and not isinstance(n, bool)
    return len(answer) == 3 and all(number(n) and float(n).is_integer() for n in answer)


def _slips(part: str, p: dict[str, list]) -> dict[int, str]:
    """{what a slip would give: what to say of it}"""
    mine = p["own"] if part == "weights" else [g for g in p["grads"] if g is not None]
    if part != PARTS[2]:
        numbers = sum(t.numel() for t in mine)
        trained = [q for q in p["own"] if q.requires_grad]
        return {
            numbers: "; those are numbers, not bytes",
            4 * numbers: "; not every number has 4 bytes",
            2 * _bytes(mine): "; a weight that two layers share exists once",
            _bytes(trained): "; frozen weights are there too",
            _bytes(p["own"]): "; a frozen weight has no gradient",
        }
    moments, copies = [t for t in p["states"] if t.dim()], p["copies"] + p["copies' grads"]
    every = p["states"] + copies
    return {
        _bytes(moments + copies): "; Adam's count of steps is a tensor too",
        _bytes(p["states"]): "; the copies that it updates are missing",
        _bytes(p["states"] + p["copies"]): "; the copies have gradients, too",
        _bytes(every + p["own"]): "; the model's own parameters are counted twice",
    }
