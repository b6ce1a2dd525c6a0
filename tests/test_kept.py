"""What autograd keeps: counted on small functions, and on GPT's layer."""

import pytest
import torch
from torch import nn

from course.costs.activations import layer_bytes
from course.facts_models import gpt
from course.parallel.gpt_dropout import (
    DropoutGpt,
    DropoutLayer,
    adamw_steps,
    fused_scores,
    whole_scores,
)
from course.parallel.kept import kept_by, kept_bytes
from course.parallel.lora import Adapted


def test_a_storage_counts_once_and_weights_do_not():
    x = torch.randn(3, 4, requires_grad=True)
    two = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
    both = lambda: two[0](x) + two[1](x)
    assert kept_bytes(both, two.parameters()) == 3 * 4 * 4
    assert kept_bytes(both) == 3 * 4 * 4 + 2 * (4 * 2 * 4)
    assert kept_by(lambda: x + x) == {}


@pytest.mark.parametrize(
    "core, attention", [(whole_scores, "materialized"), (fused_scores, "flash")]
)
def test_the_layer_keeps_what_the_formula_says(core, attention):
    b, s, h, a = 2, 32, 48, 4
    layer = DropoutLayer(h, a, core).bfloat16()
    x = torch.randn(b, s, h, dtype=torch.bfloat16, requires_grad=True)
    kept = kept_bytes(lambda: layer(x), layer.parameters())
    wanted = layer_bytes(gpt("one", 1, h, a), batch=b, sequence=s, attention=attention)
    assert kept == wanted + 2 * 2 * (b * s) * 2  # two numbers a token of each norm


def test_both_cores_attend_to_the_past_alone(monkeypatch):
    monkeypatch.setattr("course.parallel.gpt_dropout.DROPPED", 0.0)
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    torch.testing.assert_close(whole_scores(q, k, v), fused_scores(q, k, v))


def test_a_whole_gpt_has_the_parameters_of_its_shape():
    shape = gpt("small", 3, 32, 4, vocab=101, sequence=16)
    model = DropoutGpt(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    assert model(torch.zeros(2, 16, dtype=torch.long)).shape == (2, 16, 101)


def test_the_loop_trains_and_leaves_no_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    tokens = torch.arange(10).view(2, 5)
    loss = lambda: nn.functional.cross_entropy(
        model(tokens).flatten(0, 1), tokens.flatten()
    )
    before = loss().item()
    adamw_steps(model, tokens, 20)
    assert loss().item() < before - 0.02
    assert all(p.grad is None for p in model.parameters())


def test_an_adapter_changes_nothing_at_first_and_alone_is_trained():
    base = nn.Linear(6, 4)
    adapted, x = Adapted(base, 2), torch.randn(3, 6)
    assert torch.equal(adapted(x), base(x))
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained == {"a.weight", "b.weight"}
    nn.init.ones_(adapted.b.weight)
    low_rank = adapted.b.weight @ adapted.a.weight  # [4, 6]
    torch.testing.assert_close(adapted(x), x @ (base.weight + low_rank).T + base.bias)
