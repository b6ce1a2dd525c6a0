"""Shapes of models: their parameters, counted by torch and published by their makers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course.facts_models import (
    DEEPSEEK_V3,
    GPT2_SMALL,
    GPT3_175B,
    LLAMA3_8B,
    MIXTRAL_8X7B,
    MODELS,
    Experts,
    Model,
    gpt,
)

# --- The same models in torch, on the meta device: no memory, real modules ---------------


def linears(*sizes, bias=False):
    return [nn.Linear(i, o, bias=bias, device="meta") for i, o in sizes]


def gpt_layer(h):
    parts = linears((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h), bias=True)
    return [*parts, nn.LayerNorm(h, device="meta"), nn.LayerNorm(h, device="meta")]


def norm(h):
    return nn.RMSNorm(h, device="meta")


def attention(model):
    """Matrices of Llama's attention, or DeepSeek's multi-head latent attention."""
    h, heads = model.hidden, model.heads
    if model.latent is None:
        kv = model.kv_heads * (h // heads)
        return linears((h, h), (h, kv), (h, kv), (h, h))
    rank = model.latent
    query = rank.plain_dim + rank.rope_dim
    return [
        *linears((h, rank.query_rank), (rank.query_rank, heads * query)),
        *linears((h, rank.kv_rank + rank.rope_dim)),
        *linears((rank.kv_rank, heads * (rank.plain_dim + rank.value_dim))),
        *linears((heads * rank.value_dim, h)),
        norm(rank.query_rank),
        norm(rank.kv_rank),
    ]


class Stacked(nn.Module):
    """Experts of one layer, each matrix of all of them in one parameter."""

    def __init__(self, count, h, f):
        super().__init__()
        shapes = ((count, h, f), (count, h, f), (count, f, h))
        self.parts = nn.ParameterList(torch.empty(s, device="meta") for s in shapes)


def llama_layer(model, i):
    h, experts = model.hidden, model.experts
    parts = [*attention(model), norm(h), norm(h)]
    if experts is None or i < experts.dense_layers:
        f = model.mlp_hidden
        return [*parts, *linears((h, f), (h, f), (f, h))]
    one = experts.hidden
    shared = [Stacked(experts.shared, h, one)] if experts.shared else []
    return [*parts, *linears((h, experts.count)), Stacked(experts.count, h, one), *shared]


def in_torch(model):
    h = model.hidden
    table = nn.Embedding(model.vocab, h, device="meta")
    parts = [table]
    for i in range(model.layers):
        parts += gpt_layer(h) if model.gpt else llama_layer(model, i)
    if model.gpt:
        head = nn.Linear(h, model.vocab, bias=False, device="meta")
        head.weight = table.weight  # tied: counted once
        positions = nn.Embedding(model.sequence, h, device="meta")
        parts += [positions, nn.LayerNorm(h, device="meta"), head]
    else:
        parts += [norm(h), *linears((h, model.vocab))]
    return nn.ModuleList(parts)


each_model = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


@each_model
def test_torch_counts_as_many_parameters(model):
    assert model.parameters == sum(p.numel() for p in in_torch(model).parameters())


@each_model
def test_the_count_is_the_published_one(model):
    step = model.published_step
    assert round(model.parameters / step) * step == model.published


def test_which_published_counts_are_exact():
    rounded = {m.name for m in MODELS.values() if m.published_step > 1}
    assert rounded == {"GPT 22B", "MT-NLG 530B", "GPT 1T", "GPT-3 175B", "DeepSeek-V3"}
    # with the balancing biases the checkpoint's exact number comes out
    assert DEEPSEEK_V3.parameters + 58 * 256 == 671_026_419_200


def test_active_parameters_of_mixtures():
    # arXiv 2401.04088 says 13B; deepseek-ai/DeepSeek-V3 README_WEIGHTS.md 36.6B, without
    # the embedding (0.9B) but with the head
    assert MIXTRAL_8X7B.active_parameters == pytest.approx(12.9e9, abs=0.05e9)
    active = DEEPSEEK_V3.active_parameters - DEEPSEEK_V3.embedding_parameters
    assert active == pytest.approx(36.6e9, abs=0.05e9)


def test_a_dense_model_is_active_as_a_whole():
    assert LLAMA3_8B.active_parameters == LLAMA3_8B.parameters


def test_narayanan_equation_2_is_the_count_of_a_gpt():
    # 12 l h^2 (1 + 13/(12h) + (V+s)/(12lh)), arXiv 2104.04473; it lacks the last norm
    h, layers = GPT3_175B.hidden, GPT3_175B.layers
    rest = (GPT3_175B.vocab + GPT3_175B.sequence) / (12 * layers * h)
    formula = 12 * layers * h**2 * (1 + 13 / (12 * h) + rest)
    assert GPT3_175B.parameters - 2 * h == pytest.approx(formula, rel=1e-12)


@given(
    layers=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([1, 2]),
    dim=st.integers(1, 9),
    mlp=st.integers(1, 40),
    experts=st.integers(0, 3),
)
def test_any_small_shape_is_what_torch_counts(layers, heads, groups, dim, mlp, experts):
    mixture = Experts(experts, 1, mlp, shared=experts % 2, dense_layers=1)
    model = Model(
        "small", layers, heads * dim, heads, mlp, 11, 8, max(1, heads // groups), 0,
        experts=mixture if experts else None,
    )  # fmt: skip
    assert model.parameters == sum(p.numel() for p in in_torch(model).parameters())
    assert sum(model.units) == model.parameters and len(model.units) == layers + 2
    assert model.active_parameters <= model.parameters


@pytest.mark.parametrize(
    "shape, rule",
    [
        ({"heads": 7}, "heads must divide hidden"),
        ({"layers": 0}, "layers must be 1 or more"),
    ],
)
def test_a_wrong_shape_names_the_argument_and_the_rule(shape, rule):
    with pytest.raises(ValueError, match=rule):
        gpt("wrong", **{"layers": 2, "hidden": 8, "heads": 2} | shape)


def test_key_value_heads_divide_the_heads():
    with pytest.raises(ValueError, match="kv_heads must divide heads"):
        Model("wrong", 1, 8, 4, 8, 8, 8, kv_heads=3, published=0)


def test_names_are_unique_and_the_smallest_comes_first():
    assert list(MODELS) == [m.name for m in MODELS.values()]
    assert next(iter(MODELS.values())) is GPT2_SMALL
    sizes = [m.parameters for m in MODELS.values()]
    assert sizes == sorted(sizes)
