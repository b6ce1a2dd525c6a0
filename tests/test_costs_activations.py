"""Activation bytes: Korthikanti's formulas, and tensors that torch really keeps.

The blocks below are written as the paper assumes: 16-bit elements, dropout masks of one
byte, each tensor kept once. What autograd keeps is counted with saved-tensor hooks.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from course.costs import activations as act
from course.costs.pipeline_stages import in_flight
from course.facts_models import GPT3_175B, KORTHIKANTI_22B, MT_NLG_530B, Experts, Model, gpt

BF16 = torch.bfloat16

# --- Blocks in torch ----------------------------------------------------------------------


def linear(i, o, bias):
    return nn.Linear(i, o, bias=bias, dtype=BF16)


def dropout(x):
    return torch.native_dropout(x, 0.1, True)[0]  # keeps a mask of one byte an element


class Block(nn.Module):
    """GPT's or Llama's layer, x and output [batch, sequence, hidden]."""

    def __init__(self, model, attention):
        super().__init__()
        h, f, self.model, self.attention = model.hidden, model.mlp_hidden, model, attention
        kv = model.kv_heads * model.head_dim
        sizes = {"q": (h, h), "k": (h, kv), "v": (h, kv), "out": (h, h), "down": (f, h)}
        sizes |= {"up": (h, f)} if model.gpt else {"up": (h, f), "gate": (h, f)}
        self.at = nn.ModuleDict({n: linear(*s, model.gpt) for n, s in sizes.items()})
        norm = nn.LayerNorm if model.gpt else Norm
        self.norms = nn.ModuleList(norm(h, dtype=BF16) for _ in range(2))
        self.drop = dropout if model.gpt else (lambda x: x)

    def forward(self, x):
        y = self.norms[0](x)
        q, k, v = (self.at[n](y) for n in "qkv")
        core = materialized if self.attention == "materialized" else flash
        x = x + self.drop(self.at["out"](core(q, k, v, self.model, self.drop)))
        y = self.norms[1](x)
        if self.model.gpt:
            y = F.gelu(self.at["up"](y))
        else:
            y = F.silu(self.at["gate"](y)) * self.at["up"](y)
        return x + self.drop(self.at["down"](y))


class Norm(nn.Module):
    """RMSNorm that keeps its input and one number a token."""

    def __init__(self, h, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(h, dtype=dtype))

    def forward(self, x):
        return KeepsInput.apply(x, self.weight)


class KeepsInput(torch.autograd.Function):
    """The fused kernel's way: x and its scale are kept, the rest is worked out again."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = x.float().pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return (x.float() * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        plain = x.float() * scale
        wide = (grad * weight).float()
        inner = (wide * plain).mean(-1, keepdim=True)
        return (scale * (wide - plain * inner)).to(x.dtype), (grad * plain).sum((0, 1))


def by_group(x, model, rows):
    """[b, s, heads, dim] -> [b * kv_heads, rows, dim]: queries of a group stay together."""
    b, s = x.shape[:2]
    x = x.view(b, s, model.kv_heads, -1, model.head_dim).permute(0, 2, 3, 1, 4)
    return x.reshape(b * model.kv_heads, rows, model.head_dim)


def materialized(q, k, v, model, drop):
    """Softmax of the scores, whole: bmm keeps both its operands."""
    b, s, h = q.shape
    group = model.heads // model.kv_heads
    q = by_group(q, model, group * s) / math.sqrt(model.head_dim)
    k, v = by_group(k, model, s), by_group(v, model, s)
    future = torch.full((s, s), -torch.inf, dtype=q.dtype).triu(1).repeat(group, 1)
    weights = drop(torch.softmax(torch.bmm(q, k.transpose(1, 2)) + future, -1))
    out = torch.bmm(weights, v).view(b, model.heads, s, model.head_dim)
    return out.transpose(1, 2).reshape(b, s, h)


def flash(q, k, v, model, drop):
    """torch's fused kernel; with dropout on its output only, as CPUs have no other."""
    heads = [x.view(*x.shape[:2], -1, model.head_dim).transpose(1, 2) for x in (q, k, v)]
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(*heads, is_causal=True)
    return out.transpose(1, 2).reshape(q.shape)


def stored(block, forward):
    """Bytes of each storage that backward keeps, the block's weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = forward()
    out.sum().backward()
    return [storage.nbytes() for storage in storages.values()]


def kept(model, attention, batch, sequence):
    """Bytes that backward of one block keeps, weights left out; what norms keep, apart."""
    block = Block(model, attention)
    x = torch.randn(batch, sequence, model.hidden, dtype=BF16, requires_grad=True)
    sizes = stored(block, lambda: block(x))
    small = [n for n in sizes if n <= 4 * batch * sequence]
    return sum(sizes) - sum(small), small


def llama(hidden, heads, kv_heads, mlp):
    return Model("l", 2, hidden, heads, mlp, 64, 16, kv_heads, published=0)


SHAPES = [(64, 4), (96, 2), (32, 8)]


@pytest.mark.parametrize("batch, sequence", [(1, 32), (3, 16)])
@pytest.mark.parametrize("hidden, heads", SHAPES)
def test_a_gpt_block_keeps_what_korthikanti_says(hidden, heads, batch, sequence):
    model = gpt("g", 2, hidden, heads)
    large, small = kept(model, "materialized", batch, sequence)
    assert len(small) == 4  # mean and deviation of two norms, which the paper leaves out
    ratio = 34 + 5 * heads * sequence / hidden
    assert large == sequence * batch * hidden * ratio
    assert large == act.layer_bytes(
        model, batch=batch, sequence=sequence, attention="materialized"
    )


@pytest.mark.parametrize("batch, sequence", [(1, 32), (2, 48)])
def test_flash_attention_removes_the_term_in_s_squared(batch, sequence):
    model = gpt("g", 2, 64, 2)
    large, small = kept(model, "flash", batch, sequence)
    assert len(small) == 4
    assert large == sequence * batch * (34 * 64 + 4 * 2)  # an fp32 number for each head
    assert large == act.layer_bytes(model, batch=batch, sequence=sequence)


@pytest.mark.parametrize("hidden, heads, kv_heads, mlp", [(64, 4, 4, 160), (64, 4, 2, 96)])
def test_a_llama_block_keeps_what_the_rows_say(hidden, heads, kv_heads, mlp):
    model = llama(hidden, heads, kv_heads, mlp)
    large, small = kept(model, "materialized", 2, 24)
    assert small == [4 * 2 * 24] * 2
    assert large == act.layer_bytes(model, batch=2, sequence=24, attention="materialized")


def test_a_llama_block_with_flash_attention():
    model = llama(64, 4, 4, 160)
    large, small = kept(model, "flash", 2, 24)
    assert len(small) == 2
    assert large == act.layer_bytes(model, batch=2, sequence=24)


class Mixture(nn.Module):
    """Routed experts and a shared one behind a norm, tokens [n, hidden]."""

    def __init__(self, model):
        super().__init__()
        h, e = model.hidden, model.experts
        self.norm, self.router = Norm(h, BF16), linear(h, e.count, False)
        one = lambda: nn.ModuleList(linear(*s, False) for s in ((h, e.hidden),) * 2)
        self.wide = nn.ModuleList(one() for _ in range(e.count + e.shared))
        back = range(e.count + e.shared)
        self.down = nn.ModuleList(linear(e.hidden, h, False) for _ in back)

    def expert(self, i, x):
        gate, up = self.wide[i]
        return self.down[i](F.silu(gate(x)) * up(x))

    def forward(self, x):
        """Token n goes to experts n and n + 1, so every expert has as many."""
        y = self.norm(x[None])[0]
        weights = torch.softmax(self.router(y), -1)
        out, count = x, weights.shape[1]
        if len(self.wide) > count:
            out = out + self.expert(count, y[None])[0]
        for i in range(count):
            mine = (torch.arange(len(x)) - i) % count < 2
            back = self.expert(i, y[mine]) * weights[mine, i : i + 1]
            out = out.index_put((mine.nonzero()[:, 0],), back, accumulate=True)
        return out


@pytest.mark.parametrize("shared", [0, 1])
def test_a_mixture_keeps_what_the_rows_say(shared):
    experts = Experts(4, active=2, hidden=96, shared=shared)
    model = replace(llama(128, 4, 4, 160), experts=experts)
    block, x = Mixture(model), torch.randn(64, 128, dtype=BF16, requires_grad=True)
    sizes = stored(block, lambda: block(x))
    rows = act._mlp_tensors(model, 64, 2, 0)
    large = sum(n for n in sizes if n >= 32 * 96 * 2)
    assert large == sum(row.nbytes for row in rows)


def test_eight_bits_would_halve_all_but_masks_and_statistics():
    sizes = {"batch": 1, "sequence": 16}
    whole = {t.name: t.nbytes for t in act.layer_tensors(GPT3_175B, **sizes)}
    half = {t.name: t.nbytes for t in act.layer_tensors(GPT3_175B, itemsize=1, **sizes)}
    same = {name for name in whole if whole[name] == half[name]}
    assert same == {"logsumexp", "attention dropout mask", "mlp dropout mask"}
    assert all(whole[n] == 2 * half[n] for n in whole if n not in same)


# --- The paper's own formulas and claims --------------------------------------------------

PAPER = {"attention": "materialized"}


def korthikanti(model, b, s, t, parallel, selective):
    """Table 2, written out."""
    h, core = model.hidden, 0 if selective else 5 * model.heads * s / model.hidden
    if parallel:
        return s * b * h / t * (34 + core)
    return s * b * h * (10 + 24 / t + core / t)


@pytest.mark.parametrize("model", [GPT3_175B, MT_NLG_530B, KORTHIKANTI_22B])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("selective", [False, True])
def test_table_2(model, tp, parallel, selective):
    got = act.layer_bytes(
        model,
        batch=2,
        sequence=2048,
        tp=tp,
        sequence_parallel=parallel,
        recompute="selective" if selective else "none",
        **PAPER,
    )
    wanted = korthikanti(model, 2, 2048, tp, parallel, selective)
    assert got == pytest.approx(wanted, rel=1e-12)


def test_full_recomputation_keeps_the_input_of_each_layer():
    sizes = {"batch": 2, "sequence": 2048, "recompute": "full"}
    input_bytes = 2 * 2048 * 2 * GPT3_175B.hidden
    assert act.layer_bytes(GPT3_175B, **sizes) == input_bytes
    assert act.layer_bytes(GPT3_175B, tp=8, **sizes) == input_bytes
    split = act.layer_bytes(GPT3_175B, tp=8, sequence_parallel=True, **sizes)
    assert split == input_bytes / 8


@pytest.mark.parametrize(
    "model, term, saved, flops",
    [(GPT3_175B, 80, 0.70, 0.027), (MT_NLG_530B, 64, 0.65, 0.016)],
)
def test_what_selective_recomputation_saves_and_costs(model, term, saved, flops):
    """Section 5: 5as/h, the share of memory saved, the FLOPs that the paper counts."""
    sizes = {"batch": 1, "sequence": 2048}
    every = act.layer_bytes(model, **sizes, **PAPER)
    some = act.layer_bytes(model, recompute="selective", **sizes, **PAPER)
    assert 5 * model.heads * 2048 / model.hidden == term
    assert 1 - some / every == pytest.approx(saved, abs=0.005)
    again = act.recompute_flops(model, recompute="selective", **sizes)
    share = again / act.model_flops(model, **sizes)
    # eq. 8 counts the core's forward and backward: three times what is done again
    assert 3 * share == pytest.approx(flops, abs=0.0005)


@pytest.mark.parametrize(
    "model, batch, mfu, hfu",
    [(KORTHIKANTI_22B, 4, 41.5, 43.7), (GPT3_175B, 64, 51.4, 52.8)],
)
def test_mfu_and_hfu_of_table_5(model, batch, mfu, hfu):
    sizes = {"batch": batch, "sequence": 2048}
    wide = replace(model, vocab=51200)
    again = 3 * act.recompute_flops(wide, recompute="selective", **sizes)
    assert 1 + again / act.model_flops(wide, **sizes) == pytest.approx(hfu / mfu, abs=0.002)
    seconds, gpus = {4: (1.10, 8), 64: (13.75, 64)}[batch]
    measured = act.model_flops(wide, **sizes) / seconds / gpus / 312e12
    assert 100 * measured == pytest.approx(mfu, abs=0.35)  # 1.10 s is rounded


def test_full_recomputation_adds_a_third():
    sizes = {"batch": 1, "sequence": 2048}
    again = act.recompute_flops(GPT3_175B, recompute="full", **sizes)
    share = again / act.model_flops(GPT3_175B, **sizes)
    # all but the output layer's third: 8 FLOPs in place of 6
    assert share == pytest.approx(1 / 3, rel=0.02) and share < 1 / 3


def test_beside_the_layers_section_4_3():
    sizes = {"batch": 2, "sequence": 64, "tp": 4}
    s, b, h, v = 64, 2, GPT3_175B.hidden, GPT3_175B.vocab
    assert act.embedding_bytes(GPT3_175B, **sizes) == s * b * h / 4
    both = act.head_bytes(GPT3_175B, **sizes) + act.logits_bytes(GPT3_175B, **sizes)
    assert both == pytest.approx(4 * s * b * h / 4 * (1 + v / h), rel=1e-12)


@pytest.mark.parametrize("pp, m, stage, held", [(8, 64, 0, 8), (8, 64, 7, 1), (8, 3, 0, 3)])
def test_micro_batches_in_flight(pp, m, stage, held):
    assert in_flight("1F1B", pp, m, stage) == held
    assert in_flight("GPipe", pp, m, stage) == m


def test_the_first_stage_holds_all_layers_worth():
    # p micro-batches of L/p layers: as much as all layers for one, whatever p is
    assert {in_flight("1F1B", p, 64, 0) * (96 // p) for p in (1, 2, 4, 8)} == {96}
    # section 4.2.3: 1 + (p - 1) / (p v) times as much where v chunks are interleaved
    one, three = (in_flight("1F1B", 8, 64, 0), in_flight("Interleaved 1F1B", 8, 64, 0, 3))
    assert three / 3 / one == 1 + 7 / 24


@given(
    batch=st.integers(1, 4),
    sequence=st.integers(1, 64),
    tp=st.sampled_from([1, 2, 4]),
    attention=st.sampled_from(act.ATTENTION),
    gpt_block=st.booleans(),
)
def test_each_way_to_save_saves(batch, sequence, tp, attention, gpt_block):
    model = gpt("g", 2, 64, 4) if gpt_block else llama(64, 4, 2, 96)
    sizes = {"batch": batch, "sequence": sequence, "attention": attention}
    full, selective, none = (
        act.layer_bytes(model, tp=tp, recompute=r, **sizes)
        for r in ("full", "selective", "none")
    )
    assert 0 < full < selective < none
    assert act.layer_bytes(model, tp=tp, sequence_parallel=True, **sizes) <= none
    assert none <= act.layer_bytes(model, **sizes)
    twice = act.layer_bytes(model, tp=tp, **sizes | {"batch": 2 * batch})
    assert twice == pytest.approx(2 * none, rel=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"tp": 0}, {"attention": "fast"}, {"recompute": "some"},
              {"layer": 96}]
)  # fmt: skip
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        act.layer_bytes(GPT3_175B, **{"batch": 1, "sequence": 8} | wrong)
