"""Memory and FLOPs of a mixture of experts, against its dense twin and on ranks. No torch.

Shapes from course.facts_models. EP: ranks that share the experts. DP: all ranks that see
different tokens; the experts are replicated over DP / EP of them.
"""

from __future__ import annotations

from dataclasses import replace

from course.costs.collectives import cost
from course.costs.recipes import Recipe, state_bytes
from course.costs.zero import staged
from course.facts_models import Experts, Model


def _experts(model: Model) -> Experts:
    if model.experts is None:
        raise ValueError(f"model must have experts, {model.name} has none")
    return model.experts


def expert_parameters(model: Model) -> int:
    """Of all routed experts of all layers. Shared experts and routers count as dense."""
    experts = _experts(model)
    layers = model.layers - experts.dense_layers
    return layers * experts.count * 3 * model.hidden * experts.hidden


def dense_parameters(model: Model) -> int:
    """What every rank needs whole under expert parallelism: all but the routed experts."""
    return model.parameters - expert_parameters(model)


def dense_twin(model: Model, visits: int | None = None) -> Model:
    """The same model with one feed-forward part, as wide as so many experts together.

    visits: None: as many as one token goes through, the twin of equal FLOPs. 1 for
            Mixtral 8x7B gives the shape of Mistral 7B. `experts.count`: equal size.
    """
    experts = _experts(model)
    if visits is None:
        visits = experts.active + experts.shared
    if visits < 1:
        raise ValueError(f"visits must be 1 or more, not {visits}")
    name = f"dense twin of {model.name}"
    width = visits * experts.hidden
    return replace(model, name=name, mlp_hidden=width, experts=None, published=0)


def training_flops_per_token(model: Model, sequence: int | None = None) -> float:
    """Forward and backward of one token: 6 for each weight it meets, and attention.

    Chowdhery et al. 2022, "PaLM" (arXiv 2204.02311), appendix B: 6 N + 12 L H Q T, scores
    not halved for the causal mask. N here: what a token goes through, without the table
    that its embedding is read from (a tied one counts as the output layer).
    """
    sequence = model.sequence if sequence is None else sequence
    if sequence < 1:
        raise ValueError(f"sequence must be 1 or more, not {sequence}")
    met = model.active_parameters - (0 if model.tied else model.embedding_parameters)
    latent = model.latent
    widths = 2 * model.head_dim
    if latent is not None:
        widths = latent.plain_dim + latent.rope_dim + latent.value_dim
    return 6 * met + 6 * model.layers * model.heads * widths * sequence


def state_bytes_per_rank(
    model: Model, recipe: Recipe, ranks: int, ep: int, *, zero: int = 0
) -> float:
    """Bytes of model states on one rank with experts over ep of `ranks` DP ranks.

    zero: ZeRO stage. Dense parts are sharded over all ranks, a rank's experts over the
    ranks / ep that hold the same ones.
    """
    _check_groups(_experts(model), ranks, ep)
    own = state_bytes(recipe, expert_parameters(model) // ep)
    experts = sum(staged(own, zero, ranks // ep).values())
    return dense_state_bytes(model, recipe, ranks, zero=zero) + experts


def dense_state_bytes(model: Model, recipe: Recipe, ranks: int, *, zero: int = 0) -> float:
    """The part of it that does not depend on ep: all but the routed experts."""
    return sum(staged(state_bytes(recipe, dense_parameters(model)), zero, ranks).values())


def gradient_bytes_sent(
    model: Model, ranks: int, ep: int, *, itemsize: float = 2
) -> dict[str, float]:
    """Bytes that a rank sends to average gradients, {"dense": ..., "experts": ...}.

    Ring all-reduces: dense ones over all ranks, a rank's experts over the ranks / ep that
    hold the same ones: none where ep = ranks.
    """
    _check_groups(_experts(model), ranks, ep)
    dense = dense_parameters(model) * itemsize
    own = expert_parameters(model) // ep * itemsize
    return {
        "dense": cost("all_reduce", "ring", ranks, dense).bytes_sent,
        "experts": cost("all_reduce", "ring", ranks // ep, own).bytes_sent,
    }


def _check_groups(experts: Experts, ranks: int, ep: int) -> None:
    if ep < 1 or experts.count % ep:
        raise ValueError(f"ep must divide experts ({experts.count}), not {ep}")
    if ranks < 1 or ranks % ep:
        raise ValueError(f"ranks must be a multiple of ep ({ep}), not {ranks}")
