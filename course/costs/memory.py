"""What one rank's memory holds while a model trains, by component. Arithmetic, no torch.

Model states, activations, gathered weights, logits, buffers, and what the allocator
loses. Every component has a formula of its own in `recipes`, `activations` or `zero`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from course.costs import activations
from course.costs.pipeline_stages import in_flight
from course.costs.recipes import Recipe, adapter_parameters, state_bytes
from course.costs.zero import granularity, staged
from course.facts import MIB
from course.facts_models import MODELS, Model

COMPONENTS = (
    *("weights", "gradients", "master weights", "optimizer moments"),
    *("gathered weights", "activations", "recomputed layer", "logits"),
    *("buckets", "fragmentation"),
)
# torch's DDP: 25 MiB, nn/parallel/distributed.py. It keeps all buckets, a second copy of
# the gradients, unless gradient_as_bucket_view=True.
DDP_BUCKET_BYTES = 25 * MIB


@dataclass(frozen=True)
class Setup:
    """How a model is trained, seen from one rank.

    micro_batch:       sequences that go through the model at once
    sequence:          tokens of one, None: the model's own
    dp, zero:          data-parallel ranks, and the ZeRO stage (0: plain data parallel)
    tp, pp, stage:     tensor-parallel ranks, pipeline stages, which of them (0 first)
    micro_batches:     of a step, for a pipeline
    prefetch:          ZeRO-3: units gathered ahead of the one at work
    itemsize:          bytes of an activation's element, None: the recipe's own
    gradients_kept:    True: gradients of all layers are there while activations are at
                       their most, as with accumulation, or buckets that stay
    bucket_view:       DDP's gradient_as_bucket_view
    adapter_rank:      for LoRA and QLoRA, on query and value
    logit_copies:      fp32 tensors as large as the logits, at the loss. cross_entropy of
                       torch: log-softmax, its gradient, the logits' gradient; 4 in a loop
                       that names the logits; half where the loss stays in bf16. A fused
                       loss: 1, as Korthikanti counts
    offload_optimizer: master weights and moments live in the host's memory
    fragmentation:     share of everything else that the allocator holds and cannot use.
                       An assumption, no formula: measure it as reserved / allocated - 1
    """

    recipe: Recipe
    micro_batch: int = 1
    sequence: int | None = None
    dp: int = 1
    zero: int = 0
    tp: int = 1
    pp: int = 1
    stage: int = 0
    micro_batches: int = 1
    prefetch: int = 1
    sequence_parallel: bool = False
    attention: str = "flash"
    recompute: str = "none"
    itemsize: int | None = None
    gradients_kept: bool = True
    bucket_view: bool = True
    adapter_rank: int = 16
    logit_copies: float = 3
    offload_optimizer: bool = False
    fragmentation: float = 0.05

    def __post_init__(self):
        for field in ("micro_batch", "dp", "tp", "pp", "micro_batches"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be 1 or more, not {getattr(self, field)}")
        if not 0 <= self.stage < self.pp:
            raise ValueError(f"stage must be from 0 to {self.pp - 1}, not {self.stage}")
        if not self.fragmentation >= 0:
            raise ValueError(f"fragmentation must be 0 or more, not {self.fragmentation}")


def stage_units(model: Model, setup: Setup) -> tuple[float, ...]:
    """Parameters of each unit (embedding, layer, head) that this rank's stage holds.

    Layers are dealt out evenly. Every unit is divided by tp: norms and the biases of
    row-parallel products are really on each rank, less than 0.1 % of a model.
    A tied table is on the first stage, and a copy on the last.
    Raises ValueError where pp does not divide the layers.
    """
    if model.layers % setup.pp:
        raise ValueError(f"pp must divide the layers ({model.layers}), not {setup.pp}")
    each = model.layers // setup.pp
    first, *layers, last = model.units
    mine = layers[setup.stage * each : (setup.stage + 1) * each]
    if setup.stage == 0:
        mine = [first, *mine]
    if setup.stage == setup.pp - 1:
        copy = model.vocab * model.hidden if model.tied and setup.pp > 1 else 0
        mine = [*mine, last + copy]
    return tuple(unit / setup.tp for unit in mine)


def estimate(model: Model, setup: Setup) -> dict[str, float]:
    """Bytes by component on one rank, {"weights": ..., ...}, at the worst moment.

    That is the dearest of `moments`: not everything is there at once.
    """
    worst = max(moments(model, setup).values(), key=lambda parts: sum(parts.values()))
    worst["fragmentation"] = setup.fragmentation * sum(worst.values())
    return {name: worst.get(name, 0.0) for name in COMPONENTS}


def peak_bytes(model: Model, setup: Setup) -> float:
    """All components of `estimate` together."""
    return sum(estimate(model, setup).values())


def moments(model: Model, setup: Setup) -> dict[str, dict[str, float]]:
    """What is held at the three moments of a step that may be the worst.

    "loss":     all activations, and the logits
    "backward": all activations but the last's, one layer done again, units gathered
    "end":      no activations, all gradients
    Gradients are there at the end; at all three where `gradients_kept`. The optimizer is
    fused: torch's default on GPUs, foreach, holds one more copy of what it updates at the
    end (metered; torch/optim/optimizer.py says so of foreach).
    """
    units = stage_units(model, setup)
    whole = _whole_states(model, setup, sum(units))
    states = _states(setup, whole)
    early = states if setup.gradients_kept else states | {"gradients": 0.0}
    kept, again, logits = _activations(model, setup)
    width = setup.recipe.gathered_weights or whole["weights"] / sum(units)
    root, unit = _gathered(model, setup, units, width)
    shared = {"gathered weights": root, "buckets": _copied_gradients(setup, whole)}
    at_work = {"gathered weights": unit} | _one_unit(setup, units, whole)
    return {
        "loss": early | shared | {"activations": kept, "logits": logits},
        "backward": early
        | shared
        | at_work
        | {"activations": kept, "recomputed layer": again},
        "end": states | shared | at_work,
    }


def _whole_states(model: Model, setup: Setup, parameters: float) -> dict[str, float]:
    """Model states of this stage before ZeRO."""
    trained = None
    if setup.recipe.frozen_weights is not None:
        trained = adapter_parameters(model, setup.adapter_rank) / (setup.tp * setup.pp)
    return state_bytes(setup.recipe, parameters, trained)


def _states(setup: Setup, whole: dict[str, float]) -> dict[str, float]:
    parts = staged(whole, setup.zero, setup.dp)
    gone = ("master weights", "optimizer moments") if setup.offload_optimizer else ()
    return parts | dict.fromkeys(gone, 0.0)


def _gathered(model, setup, units, itemsize) -> tuple[float, float]:
    """Weights gathered by ZeRO-3: always, and while a layer is at work.

    As fully_shard on each layer and on the model: what is in no layer is the root's, and
    stays from forward to backward, FSDP2's default.
    """
    if setup.zero < 3 or setup.dp == 1:
        return 0.0, 0.0
    layers = _layers_of(model, setup, units)
    root = sum(units) - sum(layers)
    most = granularity(layers, itemsize, prefetch=setup.prefetch, root=root)
    return root * itemsize, most.peak_bytes


def _layers_of(model: Model, setup: Setup, units) -> tuple[float, ...]:
    """The stage's units without embedding and head."""
    first = 1 if setup.stage == 0 else 0
    return units[first : first + model.layers // setup.pp]


def _copied_gradients(setup: Setup, whole: dict[str, float]) -> float:
    """Data parallel's buckets, a copy of all gradients unless they share their memory."""
    copies = setup.dp > 1 and setup.zero < 2 and not setup.bucket_view
    return whole["gradients"] if copies else 0.0


def _one_unit(setup: Setup, units, whole: dict[str, float]) -> dict[str, float]:
    """Stages 2 and 3: gradients of the largest unit, whole until they are reduced."""
    if setup.zero < 2 or setup.dp == 1:
        return {}
    return {"buckets": whole["gradients"] * max(units) / sum(units)}


def _activations(model: Model, setup: Setup) -> tuple[float, float, float]:
    """What micro-batches in flight keep on this stage, one layer done again, logits."""
    sequence = setup.sequence or model.sequence
    common = {"batch": setup.micro_batch, "sequence": sequence, "tp": setup.tp}
    held = in_flight("1F1B", setup.pp, setup.micro_batches, setup.stage)
    each = model.layers // setup.pp
    mine = range(setup.stage * each, (setup.stage + 1) * each)
    layer = _layer_bytes(model, setup, common)
    kept = held * sum(layer(setup.recompute, i) for i in mine)
    if setup.stage == 0:
        kept += held * activations.embedding_bytes(model, **common)
    logits = 0.0
    if setup.stage == setup.pp - 1:
        width = setup.itemsize or setup.recipe.activation_itemsize
        kept += activations.head_bytes(model, itemsize=width, **common)
        logits = setup.logit_copies * activations.logits_bytes(model, **common)
    again = max(layer("none", i) - layer(setup.recompute, i) for i in mine)
    return kept, again, logits


def _layer_bytes(model: Model, setup: Setup, common: dict) -> Callable:
    """layer_bytes as a function of recompute and layer."""
    return lambda recompute, layer: activations.layer_bytes(
        model,
        **common,
        sequence_parallel=setup.sequence_parallel,
        recompute=recompute,
        attention=setup.attention,
        itemsize=setup.itemsize or setup.recipe.activation_itemsize,
        layer=layer,
    )


# --- Questions --------------------------------------------------------------------------


def largest_parameters(
    memory_bytes: float, recipe: Recipe, *, ranks: int = 1, zero: int = 0
) -> float:
    """Parameters whose model states alone fill the memory: the ceiling, never reached.

    ZeRO paper table 2: 2, 7.6, 14.4, 128 billion for 32 GB and 64 ranks, stages 0 to 3.
    Raises ValueError for a recipe that freezes the base.
    """
    if memory_bytes < 0:
        raise ValueError(f"memory_bytes must be 0 or more, not {memory_bytes}")
    if recipe.frozen_weights is not None:
        raise ValueError(f"recipe must train all parameters, not {recipe.name}")
    return memory_bytes / sum(staged(state_bytes(recipe, 1), zero, ranks).values())


def models_that_fit(memory_bytes: float, setup: Setup) -> list[str]:
    """Names of the models of facts_models that train in so much memory per rank."""
    fits = []
    for name, model in MODELS.items():
        if model.layers % setup.pp:
            continue
        if peak_bytes(model, setup) <= memory_bytes:
            fits.append(name)
    return fits


def largest_micro_batch(memory_bytes: float, model: Model, setup: Setup) -> int:
    """The largest micro-batch that fits, 0 where none does."""
    batch, step = 0, 1
    fits = lambda b: peak_bytes(model, replace(setup, micro_batch=b)) <= memory_bytes
    while fits(batch + step):
        batch, step = batch + step, 2 * step
    while step:
        batch, step = (batch + step if fits(batch + step) else batch), step // 2
    return batch


def offload_bytes_per_step(recipe: Recipe, parameters: int, ranks: int = 1) -> float:
    """Bytes over one rank's PCIe link each step, when the optimizer lives on the host.

    Gradients go down, new weights come back. Sharded over the ranks, as ZeRO-Offload
    does (Ren et al. 2021, arXiv 2101.06840, section 3: 4 bytes a parameter).
    """
    if ranks < 1:
        raise ValueError(f"ranks must be 1 or more, not {ranks}")
    return parameters * (recipe.gradients + recipe.weights) / ranks
