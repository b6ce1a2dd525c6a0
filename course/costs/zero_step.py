"""What one rank holds and sends in a step, for a whole model under a ZeRO stage. No torch.

P  parameters      N  data-parallel ranks
"""

from __future__ import annotations

from dataclasses import dataclass

from course.costs.memory import Setup, peak_bytes
from course.costs.recipes import FP32_ADAM, Recipe, state_bytes
from course.costs.zero import staged, step_bytes, step_transfers
from course.facts_models import Model


@dataclass(frozen=True)
class ZeroStep:
    """Bytes of one rank.

    held: between steps    peak: at most at once    sent: in a step, with rings
    """

    held: float
    peak: float
    sent: float


def zero_step(
    model: Model,
    stage: int,
    ranks: int,
    micro_batch: int,
    *,
    recipe: Recipe = FP32_ADAM,
    gradients_stay: bool = False,
) -> ZeroStep:
    """One micro-batch a step, all of the model's sequence, gradients reduced as they come.

    micro_batch:    sequences of one rank
    gradients_stay: from step to step, as in DDP's buckets with gradient_as_bucket_view;
                    otherwise they are freed
    Stage 3 gathers each layer twice, and what is in no layer (the root) once: 3P and 2P.
    """
    states = staged(state_bytes(recipe, model.parameters), stage, ranks)
    held = sum(states.values()) - (0 if gradients_stay else states["gradients"])
    setup = Setup(
        recipe,
        micro_batch,
        dp=ranks,
        zero=stage,
        gradients_kept=gradients_stay,
        fragmentation=0,
    )
    layers = sum(model.units[1:-1])
    parts = [(layers, "layer"), (model.parameters - layers, "pass")]
    transfers = [
        step_transfers(stage, numel, ranks, recipe=recipe, keep=keep)
        for numel, keep in parts
    ]
    return ZeroStep(held, peak_bytes(model, setup), sum(map(step_bytes, transfers)))
