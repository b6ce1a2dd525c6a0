"""Recipes and whole-model estimates, against metered training runs at full size."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from course import World
from course.costs import memory
from course.costs import recipes as r
from course.costs.memory import Setup, estimate, moments, peak_bytes
from course.facts import GB
from course.facts_models import (
    DEEPSEEK_V3,
    GPT2_SMALL,
    GPT2_XL,
    GPT3_175B,
    LLAMA2_7B,
    LLAMA3_8B,
    MIXTRAL_8X7B,
    MODELS,
)

# --- Recipes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recipe, parts",
    [
        (r.FP32_ADAM, (4, 4, 0, 8)),
        (r.BF16_ADAM, (2, 2, 4, 8)),
        (r.BF16_ADAM_FP32_GRADIENTS, (2, 4, 4, 8)),
        (r.FP16_MEGATRON, (2, 2, 4 + 4, 8)),
        (r.FSDP2_BF16, (4, 4, 0, 8)),
        (r.PURE_BF16_ADAM, (2, 2, 0, 4)),
        (r.SGD, (4, 4, 0, 0)),
        (r.SGD_MOMENTUM, (4, 4, 0, 4)),
    ],
)
def test_bytes_of_each_part(recipe, parts):
    assert tuple(r.state_bytes(recipe, 1).values()) == parts
    assert recipe.bytes_per_parameter == sum(parts)


def test_sixteen_and_eighteen_are_both_right():
    """Corrections D3: ZeRO's 16, Megatron's 18 with fp32 gradients, 20 with fp16."""
    recipes = (r.BF16_ADAM, r.BF16_ADAM_FP32_GRADIENTS, r.FP16_MEGATRON)
    assert [recipe.bytes_per_parameter for recipe in recipes] == [16, 18, 20]
    assert r.BF16_ADAM.optimizer == 12  # K of the ZeRO paper


def test_bf16_does_not_shrink_model_state():
    """Corrections D5: with master weights it is fp32 Adam's 16 bytes, or more."""
    mixed = (r.BF16_ADAM, r.BF16_ADAM_FP32_GRADIENTS, r.FP16_MEGATRON, r.FSDP2_BF16)
    assert min(m.bytes_per_parameter for m in mixed) == r.FP32_ADAM.bytes_per_parameter
    # what shrinks: activations, less their dropout masks, and traffic
    wide, narrow = (
        estimate(GPT2_SMALL, Setup(recipe))["activations"]
        for recipe in (r.FP32_ADAM, r.BF16_ADAM)
    )
    assert 1.9 < wide / narrow < 2


def test_eight_bit_adam_saves_almost_six_bytes():
    # arXiv 2110.02861: from 8 bytes of state to 2, and one scale a block
    saved = r.BF16_ADAM.moments - r.EIGHT_BIT_ADAM.moments
    assert saved == 8 - 2 - 2 * 4 / 256


def test_nf4_takes_4_127_bits():
    # QLoRA section 3: double quantization brings the scales from 0.5 to 0.127 bits
    assert 8 * r.quantized_bytes(4, 64) == 4.5
    bits = 8 * r.NF4
    assert bits == pytest.approx(4.127, abs=5e-4)


@pytest.mark.parametrize("rank, published", [(1, 4.7e6), (8, 37.7e6)])
def test_lora_adapters_of_gpt3(rank, published):
    # Hu et al. 2021, table 4: adapters on query and value
    got = r.adapter_parameters(GPT3_175B, rank)
    assert got == pytest.approx(published, rel=0.005)


def lora_by_torch(model, rank, targets):
    """Two narrow matrices beside each target, counted on the meta device."""
    h, kv, f = model.hidden, model.kv_heads * model.head_dim, model.mlp_hidden
    mlp = [(h, f), (f, h)] if model.gpt else [(h, f), (h, f), (f, h)]
    shapes = {"query": [(h, h)], "key": [(h, kv)], "value": [(h, kv)], "output": [(h, h)]}
    count = 0
    for i, o in sum(((shapes | {"mlp": mlp})[t] for t in targets), []):
        pair = nn.Linear(i, rank, False, "meta"), nn.Linear(rank, o, False, "meta")
        count += sum(p.numel() for p in nn.ModuleList(pair).parameters())
    return model.layers * count


@pytest.mark.parametrize("model", [GPT2_XL, LLAMA3_8B])
@pytest.mark.parametrize("targets", [("query", "value"), ("key", "output", "mlp")])
def test_adapters_are_what_torch_counts(model, targets):
    assert r.adapter_parameters(model, 8, targets) == lora_by_torch(model, 8, targets)


@pytest.mark.parametrize("target", ["query", "key", "value", "output"])
def test_adapters_of_latent_attention_stand_beside_matrices_of_that_size(target):
    # 61 layers; narrow vectors of 1,536 and 512; 128 heads of 128 + 64, 128 and 128
    inputs, outputs = {
        "query": (1536, 24576),
        "key": (512, 16384),
        "value": (512, 16384),
        "output": (16384, 7168),
    }[target]
    got = r.adapter_parameters(DEEPSEEK_V3, 8, (target,))
    assert got == 61 * (8 * inputs + outputs * 8)


def test_a_recipe_is_written_as_its_sum():
    assert r.BF16_ADAM.written == "2 + 2 + 4 + 8 = 16"
    assert r.FP16_MEGATRON.written == "2 + 2 + 8 + 8 = 20"
    for recipe in r.RECIPES.values():
        parts, total = recipe.written.split(" = ")
        assert sum(map(float, parts.split(" + "))) == pytest.approx(float(total), abs=0.01)


def test_lora_takes_gradients_and_moments_out_of_the_sum():
    trained = r.adapter_parameters(LLAMA2_7B, 16)
    full = r.state_bytes(r.BF16_ADAM, LLAMA2_7B.parameters)
    lora = r.state_bytes(r.LORA, LLAMA2_7B.parameters, trained)
    qlora = r.state_bytes(r.QLORA, LLAMA2_7B.parameters, trained)
    assert lora["gradients"] + lora["optimizer moments"] < 0.002 * sum(full.values())
    assert lora["weights"] - qlora["weights"] == (2 - r.NF4) * LLAMA2_7B.parameters
    kept = [estimate(LLAMA2_7B, Setup(x))["activations"] for x in (r.LORA, r.BF16_ADAM)]
    assert kept[0] == kept[1]  # activations stay


def test_what_cannot_be_worked_out_is_refused():
    with pytest.raises(ValueError, match="trained must be given"):
        r.state_bytes(r.LORA, 10)
    with pytest.raises(ValueError, match="parameters must be 0 or more"):
        r.state_bytes(r.SGD, -1)
    with pytest.raises(ValueError, match="targets must"):
        r.adapter_parameters(MIXTRAL_8X7B, 8, ("mlp",))
    with pytest.raises(ValueError, match="targets must be of"):
        r.adapter_parameters(GPT2_XL, 8, ("head",))


# --- A whole GPT, trained with fake tensors and metered -----------------------------------


def dropped(x):
    return torch.native_dropout(x, 0.1, True)[0]  # a mask of one byte an element


class Layer(nn.Module):
    def __init__(self, model):
        super().__init__()
        h, self.heads = model.hidden, model.heads
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(h, h) for _ in range(3))
        self.out, self.up = nn.Linear(h, h), nn.Linear(h, 4 * h)
        self.down = nn.Linear(4 * h, h)

    def forward(self, x):
        y = self.norms[0](x)
        qkv = [part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv]
        y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + dropped(self.out(y.transpose(1, 2).flatten(2)))
        return x + dropped(self.down(F.gelu(self.up(self.norms[1](x)))))


class Recomputed(Layer):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Gpt(nn.Module):
    def __init__(self, model, layer):
        super().__init__()
        self.table = nn.Embedding(model.vocab, model.hidden)
        self.positions = nn.Embedding(model.sequence, model.hidden)
        self.layers = nn.ModuleList(layer(model) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.hidden)

    def forward(self, tokens):
        x = dropped(self.table(tokens) + self.positions(torch.arange(tokens.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.table.weight)


def train(batch, layer, keep_gradients, shard, name_logits, policy=None):
    """Two AdamW steps in fp32: from the second on, optimizer states are there."""
    network = Gpt(GPT2_SMALL, layer)
    for part in [*network.layers, network] if shard else []:
        fully_shard(part, **({"mp_policy": policy} if policy else {}))
    optimizer = torch.optim.AdamW(network.parameters())
    for _ in range(2):
        tokens = torch.zeros(batch, GPT2_SMALL.sequence, dtype=torch.long)
        logits = [network(tokens).flatten(0, 1)]
        held = logits[0] if name_logits else None
        F.cross_entropy(logits.pop(), tokens.flatten()).backward()
        del held
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keep_gradients)


def metered(batch, layer=Layer, keep_gradients=False, ranks=1, name_logits=False):
    """A full-size GPT-2 small, fake tensors. With ranks: fully_shard on every layer."""
    world = World(ranks, memory=True, tensors="fake", mirror=ranks > 1)
    return world.run(train, batch, layer, keep_gradients, ranks > 1, name_logits)


def predicted(batch, recompute="none", **setup):
    common = {"recipe": r.FP32_ADAM, "fragmentation": 0.0}
    chosen = {"gradients_kept": False, "recompute": recompute} | setup
    return peak_bytes(GPT2_SMALL, Setup(micro_batch=batch, **common | chosen))


def test_model_states_to_the_byte_and_the_peak_of_a_whole_run():
    run = metered(2, keep_gradients=True)
    kinds, whole = run.peak_kinds[0], r.state_bytes(r.FP32_ADAM, GPT2_SMALL.parameters)
    assert kinds["parameters"] == whole["weights"]
    assert kinds["gradients"] == whole["gradients"]
    tensors = 16 * GPT2_SMALL.layers + 4  # each has a counter of steps, 4 bytes
    assert kinds["optimizer state"] == whole["optimizer moments"] + 4 * tensors
    wanted = predicted(2, gradients_kept=True)
    assert wanted == pytest.approx(run.peak_bytes[0], rel=1e-3)


@pytest.mark.parametrize("layer, recompute", [(Layer, "none"), (Recomputed, "full")])
def test_the_peak_where_gradients_are_freed_each_step(layer, recompute):
    run = metered(4, layer)
    assert predicted(4, recompute) == pytest.approx(run.peak_bytes[0], rel=1e-3)


def test_a_loop_that_still_names_the_logits_holds_a_fourth_copy():
    run = metered(1, name_logits=True)
    assert predicted(1, logit_copies=4) == pytest.approx(run.peak_bytes[0], rel=1e-3)


@pytest.mark.parametrize(
    "batch, layer, recompute", [(1, Layer, "none"), (4, Recomputed, "full")]
)
def test_the_peak_of_a_run_with_fully_shard(batch, layer, recompute):
    run = metered(batch, layer, ranks=8)
    wanted = predicted(batch, recompute, dp=8, zero=3)
    assert wanted == pytest.approx(run.peak_bytes[0], rel=1e-3)


@pytest.mark.parametrize("output, copies", [(torch.float32, 3), (torch.bfloat16, 1.5)])
def test_the_peak_of_fsdp2_in_bf16_over_fp32_shards(output, copies):
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=output)
    world = World(8, memory=True, tensors="fake", mirror=True)
    run = world.run(train, 2, Layer, False, True, False, policy)
    setup = {"recipe": r.FSDP2_BF16, "logit_copies": copies}
    wanted = predicted(2, dp=8, zero=3, **setup)
    # with an fp32 output a layer hands its own over in fp32 too, one at a time
    assert wanted == pytest.approx(run.peak_bytes[0], rel=5e-3)


# --- The estimate's own sense -------------------------------------------------------------


def test_components_are_those_of_their_formulas():
    setup = Setup(r.BF16_ADAM, dp=8, zero=3, fragmentation=0.1)
    parts = estimate(LLAMA3_8B, setup)
    assert list(parts) == list(memory.COMPONENTS)
    states = [parts[name] for name in list(parts)[:4]]
    assert sum(states) == pytest.approx(16 * LLAMA3_8B.parameters / 8, rel=1e-12)
    rest = sum(parts.values()) - parts["fragmentation"]
    assert parts["fragmentation"] == pytest.approx(0.1 * rest, rel=1e-12)


def test_gathered_weights_are_the_root_and_two_layers():
    sharded = moments(LLAMA3_8B, Setup(r.BF16_ADAM, dp=8, zero=3))
    root = LLAMA3_8B.embedding_parameters + LLAMA3_8B.head_parameters
    assert sharded["loss"]["gathered weights"] == 2 * root
    two = 2 * LLAMA3_8B.layer_parameters()
    assert sharded["backward"]["gathered weights"] == 2 * (root + two)
    alone = moments(LLAMA3_8B, Setup(r.BF16_ADAM, dp=1, zero=3))
    assert alone["backward"]["gathered weights"] == 0


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("model", [GPT2_XL, LLAMA3_8B])
def test_stages_together_hold_the_model(model, pp):
    setup = Setup(r.BF16_ADAM, pp=pp, tp=2)
    held = [2 * sum(memory.stage_units(model, replace(setup, stage=i))) for i in range(pp)]
    copy = model.vocab * model.hidden if model.tied and pp > 1 else 0
    assert sum(held) == model.parameters + copy


def test_the_first_stage_of_a_pipeline_holds_most_activations():
    setup = Setup(r.BF16_ADAM, pp=4, micro_batches=16)
    held = [
        moments(LLAMA2_7B, replace(setup, stage=i))["backward"]["activations"]
        for i in range(4)
    ]
    assert held == sorted(held, reverse=True)
    head = 4 * 4096 * LLAMA2_7B.hidden
    assert held[0] == 4 * (held[3] - head)


def test_ddps_buckets_are_a_second_copy_of_the_gradients():
    parts = estimate(GPT2_SMALL, Setup(r.FP32_ADAM, dp=4, bucket_view=False))
    assert parts["buckets"] == parts["gradients"] > 0
    assert estimate(GPT2_SMALL, Setup(r.FP32_ADAM, dp=4))["buckets"] == 0


def test_offload_moves_the_optimizer_and_pays_four_bytes_a_parameter():
    parts = estimate(LLAMA2_7B, Setup(r.BF16_ADAM, offload_optimizer=True))
    assert parts["master weights"] == parts["optimizer moments"] == 0
    assert memory.offload_bytes_per_step(r.BF16_ADAM, 10**9) == 4e9
    assert memory.offload_bytes_per_step(r.BF16_ADAM, 10**9, ranks=8) == 5e8


@pytest.mark.parametrize("stage, billions", [(0, 2), (1, 7.6), (2, 14.4), (3, 128)])
def test_largest_model_of_the_zero_paper(stage, billions):
    # table 2, one V100 of 32 GB in 64
    got = memory.largest_parameters(32 * GB, r.BF16_ADAM, ranks=64, zero=stage) / 1e9
    assert got == pytest.approx(billions, abs=0.05)


def test_models_that_fit_and_the_first_that_does_not():
    setup = Setup(r.BF16_ADAM, recompute="full", dp=8, zero=3)
    fits = memory.models_that_fit(80 * GB, setup)
    for name, model in MODELS.items():
        assert (peak_bytes(model, setup) <= 80 * GB) == (name in fits)
    assert "Llama 3 8B" in fits and "Llama 3 70B" not in fits


def test_the_largest_micro_batch_is_the_last_that_fits():
    setup = Setup(r.BF16_ADAM, recompute="full", dp=8, zero=3)
    most = memory.largest_micro_batch(80 * GB, LLAMA3_8B, setup)
    assert most > 1
    assert peak_bytes(LLAMA3_8B, replace(setup, micro_batch=most)) <= 80 * GB
    assert peak_bytes(LLAMA3_8B, replace(setup, micro_batch=most + 1)) > 80 * GB
    assert memory.largest_micro_batch(10 * GB, LLAMA3_8B, setup) == 0


@given(
    model=st.sampled_from(list(MODELS.values())),
    recipe=st.sampled_from([x for x in r.RECIPES.values() if x.frozen_weights is None]),
    zero=st.integers(0, 3),
    dp=st.sampled_from([1, 2, 64]),
    tp=st.sampled_from([1, 8]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    kept=st.booleans(),
)
def test_no_choice_adds_to_what_it_saves(model, recipe, zero, dp, tp, recompute, kept):
    setup = Setup(recipe, zero=zero, dp=dp, tp=tp, recompute=recompute, gradients_kept=kept)
    peak = peak_bytes(model, setup)
    assert all(value >= 0 for value in estimate(model, setup).values())
    assert peak >= peak_bytes(model, replace(setup, tp=2 * tp))
    assert peak <= peak_bytes(model, replace(setup, gradients_kept=True))
    assert peak <= peak_bytes(model, replace(setup, micro_batch=2))
    assert peak >= peak_bytes(model, replace(setup, recompute="full")) * (1 - 1e-12)


@pytest.mark.parametrize(
    "wrong, rule",
    [
        ({"micro_batch": 0}, "micro_batch must be 1 or more"),
        ({"stage": 1}, "stage must be from 0 to 0"),
        ({"fragmentation": -0.1}, "fragmentation must be 0 or more"),
        ({"pp": 7}, "pp must divide the layers"),
    ],
)
def test_wrong_setups_are_named(wrong, rule):
    with pytest.raises(ValueError, match=rule):
        estimate(LLAMA2_7B, Setup(r.BF16_ADAM, **wrong))


def test_a_frozen_base_has_no_largest_model():
    with pytest.raises(ValueError, match="recipe must train all parameters"):
        memory.largest_parameters(80 * GB, r.QLORA)
