"""Bytes for one parameter, by what holds them: the recipe of a training run.

No torch. A recipe says in which width each thing is kept; everything else follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from course.facts_models import Model

FP32, BF16 = 4, 2


@dataclass(frozen=True)
class Recipe:
    """What is kept for each trained parameter, in bytes.

    weights:          that forward and backward compute with
    gradients:        as backward leaves them
    master_weights:   a wider copy that the optimizer updates, 0 where there is none
    moments:          all moments of the optimizer together: two for Adam, one for momentum
    master_gradients: a wider copy for the optimizer, Megatron with fp16
    frozen_weights:   bytes of a parameter that is not trained, None where all are
    gathered_weights: in which ZeRO-3 gathers a weight, None: as it is kept
    """

    name: str
    weights: float
    gradients: float
    master_weights: float
    moments: float
    master_gradients: float = 0
    frozen_weights: float | None = None
    gathered_weights: float | None = None

    def __post_init__(self):
        for part in ("weights", "gradients", "master_weights", "moments"):
            if getattr(self, part) < 0:
                raise ValueError(f"{part} must be 0 or more, not {getattr(self, part)}")

    @property
    def optimizer(self) -> float:
        """K of the ZeRO paper, section 3.1: everything that only the optimizer reads."""
        return self.master_weights + self.master_gradients + self.moments

    @property
    def activation_itemsize(self) -> int:
        """Bytes of an element that forward makes: 4 only where it computes in fp32."""
        narrow = self.gathered_weights or self.frozen_weights or self.weights
        return FP32 if narrow == FP32 else BF16

    @property
    def bytes_per_parameter(self) -> float:
        """Of a trained parameter."""
        return self.weights + self.gradients + self.optimizer

    @property
    def written(self) -> str:
        """ "2 + 2 + 4 + 8 = 16": weights, gradients, master copies, moments."""
        masters = self.master_weights + self.master_gradients
        parts = (self.weights, self.gradients, masters, self.moments)
        return f"{' + '.join(f'{n:.3g}' for n in parts)} = {self.bytes_per_parameter:.4g}"


ADAM_MOMENTS = 2  # mean and variance of the gradient


def quantized_bytes(bits: float, block: int, scale_bytes: float = FP32) -> float:
    """Bytes for one number of so many bits, with one scale for each block of numbers."""
    if block < 1:
        raise ValueError(f"block must be 1 or more, not {block}")
    return bits / 8 + scale_bytes / block


# bitsandbytes keeps one fp32 scale for 256 numbers, optim/optimizer.py (Dettmers et al.
# 2021, arXiv 2110.02861, section 2.1, has 2,048); tensors below 4,096 numbers stay in fp32.
EIGHT_BIT_MOMENT = quantized_bytes(8, 256)
# QLoRA, Dettmers et al. 2023 (arXiv 2305.14314), section 3: 4 bits, a scale for each 64
# weights, itself in 8 bits with an fp32 scale for each 256: 4.127 bits in all.
NF4 = quantized_bytes(4, 64, quantized_bytes(8, 256))

FP32_ADAM = Recipe("fp32 Adam", FP32, FP32, 0, ADAM_MOMENTS * FP32)
# ZeRO paper section 3.1: 2 + 2 + 12, there with fp16.
BF16_ADAM = Recipe("bf16 Adam, fp32 master", BF16, BF16, FP32, ADAM_MOMENTS * FP32)
# Megatron-LM docs, dist_optimizer.md: bf16 parameters with fp32 gradients, 18. In that
# table, too: fp16, 20, since the optimizer has an fp32 copy of the gradients.
BF16_ADAM_FP32_GRADIENTS = Recipe(
    "bf16 Adam, fp32 master and gradients", BF16, FP32, FP32, ADAM_MOMENTS * FP32
)
FP16_MEGATRON = Recipe("fp16 Adam, Megatron", BF16, BF16, FP32, ADAM_MOMENTS * FP32, FP32)
# FSDP2's MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32): shards, gradients and
# moments in fp32, the shard is the master copy; weights are gathered in bf16.
FSDP2_BF16 = Recipe(
    "FSDP2 bf16, fp32 shards", FP32, FP32, 0, ADAM_MOMENTS * FP32, gathered_weights=BF16
)
# What torch.optim.AdamW keeps for a model that was cast to bf16: no master, and moments of
# the parameter's own type. Small updates are lost to rounding.
PURE_BF16_ADAM = Recipe("bf16 Adam, no master", BF16, BF16, 0, ADAM_MOMENTS * BF16)
EIGHT_BIT_ADAM = Recipe(
    "bf16, fp32 master, 8-bit Adam", BF16, BF16, FP32, ADAM_MOMENTS * EIGHT_BIT_MOMENT
)
SGD = Recipe("fp32 SGD", FP32, FP32, 0, 0)
SGD_MOMENTUM = Recipe("fp32 SGD with momentum", FP32, FP32, 0, FP32)
# LoRA, Hu et al. 2021 (arXiv 2106.09685), section 4: the base is frozen, only the adapters
# have gradients and moments. Adapters here: fp32, with Adam.
LORA = Recipe("LoRA, bf16 base", FP32, FP32, 0, ADAM_MOMENTS * FP32, frozen_weights=BF16)
QLORA = Recipe("QLoRA, NF4 base", FP32, FP32, 0, ADAM_MOMENTS * FP32, frozen_weights=NF4)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        FP32_ADAM,
        BF16_ADAM,
        BF16_ADAM_FP32_GRADIENTS,
        FP16_MEGATRON,
        FSDP2_BF16,
        PURE_BF16_ADAM,
        EIGHT_BIT_ADAM,
        SGD,
        SGD_MOMENTUM,
        LORA,
        QLORA,
    )
}


def adapter_parameters(
    model: Model, rank: int = 16, targets: tuple[str, ...] = ("query", "value")
) -> int:
    """Trained parameters of LoRA: rank (inputs + outputs) for each adapted matrix.

    targets: of "query", "key", "value", "output", "mlp" (all matrices of it)
    Hu et al. 2021, section 4.2. With latent attention (arXiv 2412.19437, section 2.1.1)
    they stand beside the matrices that lead from the narrow vectors to the heads.
    Raises ValueError for an unknown target, and for "mlp" with experts.
    """
    if rank < 1:
        raise ValueError(f"rank must be 1 or more, not {rank}")
    if model.experts is not None and "mlp" in targets:
        raise ValueError(f'targets must not hold "mlp" for the experts of {model.name}')
    mlp = (2 if model.gpt else 3) * (model.hidden + model.mlp_hidden)
    sides = _attention_sides(model) | {"mlp": mlp}
    unknown = [t for t in targets if t not in sides]
    if unknown:
        raise ValueError(f"targets must be of {list(sides)}, not {unknown[0]!r}")
    return model.layers * rank * sum(sides[t] for t in targets)


def _attention_sides(model: Model) -> dict[str, int]:
    """Inputs + outputs of each projection of attention."""
    h, latent = model.hidden, model.latent
    if latent is None:
        kv = model.kv_heads * model.head_dim
        return {"query": h + h, "key": h + kv, "value": h + kv, "output": h + h}
    query, heads = latent.plain_dim + latent.rope_dim, model.heads
    return {
        "query": latent.query_rank + heads * query,
        "key": latent.kv_rank + heads * latent.plain_dim,
        "value": latent.kv_rank + heads * latent.value_dim,
        "output": heads * latent.value_dim + h,
    }


def state_bytes(recipe: Recipe, parameters: int, trained: int | None = None) -> dict:
    """Bytes of the model states by component, {"weights": ..., ...}, on one rank.

    trained: parameters that are trained, of adapters beside a frozen base; needed where
             the recipe freezes the base, else all are
    """
    if parameters < 0:
        raise ValueError(f"parameters must be 0 or more, not {parameters}")
    if recipe.frozen_weights is None:
        trained, frozen = parameters, 0.0
    elif trained is None:
        raise ValueError(f"trained must be given: {recipe.name} trains adapters only")
    else:
        frozen = parameters * recipe.frozen_weights
    return {
        "weights": frozen + trained * recipe.weights,
        "gradients": trained * recipe.gradients,
        "master weights": trained * (recipe.master_weights + recipe.master_gradients),
        "optimizer moments": trained * recipe.moments,
    }
