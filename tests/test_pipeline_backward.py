"""A backward in two halves: the same gradients, each matmul once, half of them later."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course import World
from course.parallel.pipeline_backward import PutBy, in_halves, put_by_here
from course.worlds.sleep_stage import SleepStage
from tests.sameness import difference


class Attention(nn.Module):
    """One head, and a residual. All weights are in linear layers, but for the norm's."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mixed = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.mixed(self.norm(x)).chunk(3, dim=-1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


def model(width: int, trick: str = "") -> nn.Sequential:
    torch.manual_seed(0)
    layers = [Attention(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 5)]
    if trick == "twice":
        layers[1] = nn.Sequential(layers[1], layers[1])
    if trick == "frozen":
        layers[3].weight.requires_grad_(False)
        layers[1].bias.requires_grad_(False)
    if trick == "torch's attention":
        layers[0] = nn.TransformerEncoderLayer(width, 1, 11, dropout=0.0, batch_first=True)
    if trick == "not a leaf":
        layers[1] = nn.utils.parametrizations.weight_norm(layers[1])
    return nn.Sequential(*layers).double()


def grads(module: nn.Module) -> list:
    return [p.grad for p in module.parameters()]


def data(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).double()


def whole(module: nn.Module, x: torch.Tensor, twice: bool = False) -> torch.Tensor | None:
    for _ in range(1 + twice):
        module(x).square().mean().backward()
    return x.grad


TRICKS = ("", "twice", "frozen", "torch's attention", "not a leaf")


@pytest.mark.parametrize("needs_input", [True, False])
@pytest.mark.parametrize("trick", TRICKS)
def test_halves_add_up_to_a_whole_backward(trick, needs_input):
    one, two = model(6, trick), model(6, trick)
    x_one, x_two = (data(2, 3, 6).requires_grad_(needs_input) for _ in range(2))
    whole(one, x_one)
    kept = PutBy()
    with in_halves(kept):
        y = two(x_two)
    y.square().mean().backward()
    input_grad = None if x_two.grad is None else x_two.grad.clone()
    kept.run()
    assert not difference(grads(two), grads(one), tolerance=1e-12)
    assert not difference(input_grad, x_one.grad, tolerance=1e-12)


@settings(max_examples=20)
@given(some.lists(some.integers(1, 4), min_size=1, max_size=3), some.integers(1, 3))
def test_inputs_of_any_dims(shape, times):
    one, two = nn.Linear(3, 4).double(), nn.Linear(3, 4).double()
    two.load_state_dict(one.state_dict())
    for _ in range(times):
        kept = PutBy()
        one(data(*shape, 3)).sum().backward()
        with in_halves(kept):
            y = two(data(*shape, 3))
        y.sum().backward()
        kept.run()
    assert not difference(grads(two), grads(one), tolerance=1e-12)


def test_weights_of_linear_layers_wait_and_others_do_not():
    net, kept = model(6), PutBy()
    with in_halves(kept):
        y = net(data(2, 3, 6))
    y.sum().backward()
    early = {name for name, p in net.named_parameters() if p.grad is not None}
    assert early == {"0.norm.weight", "0.norm.bias", "0.out.bias", "1.bias", "3.bias"}
    kept.run()
    assert None not in grads(net)


def test_each_matmul_is_done_once():
    """FLOPs of the halves are those of a whole backward; the second half's are the
    weight gradients': as many as the forward's in linear layers."""
    width, rows = 8, 2 * 3
    x = data(2, 3, width).requires_grad_()
    one, two, kept = model(width), model(width), PutBy()
    with FlopCounterMode(display=False) as forward:
        y_one = one(x)
    with FlopCounterMode(display=False) as backward:
        y_one.sum().backward()
    with in_halves(kept):
        y_two = two(x)
    with FlopCounterMode(display=False) as first:
        y_two.sum().backward()
    with FlopCounterMode(display=False) as second:
        kept.run()
    linear = 2 * rows * sum(p.numel() for p in two.parameters() if p.dim() == 2)
    assert first.get_total_flops() + second.get_total_flops() == backward.get_total_flops()
    assert second.get_total_flops() == linear <= forward.get_total_flops()


def test_the_graph_is_gone_after_the_first_half_but_for_what_the_second_needs():
    net, kept = nn.Linear(3, 3), PutBy()
    x = torch.ones(2, 3, requires_grad=True)
    with in_halves(kept):
        y = net(x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()
    kept.run()
    kept.run()  # nothing is left: nothing is added twice
    assert torch.equal(net.weight.grad, torch.full((3, 3), 2.0))


def test_without_a_place_to_put_it_a_backward_is_whole():
    net = nn.Linear(3, 3)
    with in_halves(None):
        assert put_by_here() is None
        net(torch.ones(2, 3)).sum().backward()
    assert net.weight.grad is not None


def test_evaluation_inside_puts_nothing_by():
    net, kept = nn.Linear(3, 3), PutBy()
    with in_halves(kept), torch.no_grad():
        assert not net(torch.ones(2, 3)).requires_grad
    assert kept._work == []


# --- A stage that sleeps ----------------------------------------------------------------


def slept(split: bool) -> list:
    """The seconds after forward, after backward, and after what was put by."""
    from course.worlds.simulated_torch import simulation_here

    stage, kept = SleepStage(1.0, 0.5, 0.25, nn.Linear(3, 3)), PutBy()
    clock = simulation_here()[0].clock.clock
    seconds = []
    with in_halves(kept if split else None):
        y = stage(torch.ones(2, 3))
    seconds.append(clock[0])
    y.sum().backward()
    seconds.append(clock[0])
    kept.run()
    return [*seconds, clock[0]]


def test_a_sleeping_stage_takes_its_seconds_in_each_part():
    assert World(1).run(slept, True).results == [[1.0, 1.5, 1.75]]
    assert World(1).run(slept, False).results == [[1.0, 1.75, 1.75]]


def test_a_sleeping_stage_computes_what_its_module_does():
    inner = nn.Linear(3, 2)
    x = torch.ones(2, 3)
    assert torch.equal(SleepStage(0, 0, 0, inner)(x), inner(x))
    assert torch.equal(SleepStage(0, 0, 0)(x), x)


def test_seconds_are_not_negative():
    with pytest.raises(ValueError, match=r"seconds must be 0 or more, not \(1, -1, 0\)"):
        SleepStage(1, -1, 0)


def test_a_sleeping_stage_names_its_parts():
    """Also under torch's own schedules, which name little."""
    spans = World(1).run(slept, True).spans
    assert [(s.name, s.start_s, s.end_s) for s in spans] == [
        ("forward", 0.0, 1.0),
        ("input gradient", 1.0, 1.5),
        ("weight gradient", 1.5, 1.75),
    ]
