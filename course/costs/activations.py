"""What forward keeps for backward, tensor by tensor.

    s  tokens of a sequence     b  sequences of a micro-batch    h  hidden
    a  heads                    v  vocab                         t  tensor-parallel ranks

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"
(arXiv 2205.05198), sections 4.1 and 4.2: elements of `itemsize` bytes, dropout masks of
one. Only what is large is counted there: not the two numbers a token that a norm keeps.
"""

from __future__ import annotations

from dataclasses import dataclass

from course.facts_models import Model

ATTENTION = ("materialized", "flash")
RECOMPUTE = ("none", "selective", "full")
MASK = 1  # bytes of one element of a dropout mask
FP32 = 4


@dataclass(frozen=True)
class Kept:
    """One tensor that is kept: bytes on one rank without tensor parallelism.

    split:    tensor parallelism divides it
    core:     selective recomputation does not keep it: scores, softmax, their dropout
    """

    name: str
    nbytes: float
    split: bool
    core: bool = False


def layer_tensors(
    model: Model,
    *,
    batch: int,
    sequence: int,
    attention: str = "flash",
    itemsize: int = 2,
    layer: int = 0,
) -> list[Kept]:
    """Every tensor that one layer keeps, in the order in which forward makes it.

    attention: "materialized" keeps the scores: 5as/h of Korthikanti's formula.
               "flash" keeps one fp32 number for each head and token in their place
               (Dao 2023, arXiv 2307.08691, section 3.1: the logsumexp)
    GPT's block is Korthikanti's, section 4.1. Llama's, and experts, are the same count for
    those blocks; all three equal what torch keeps, see the tests. Latent attention is
    derived in the same way and checked against no run.
    """
    _check(model, batch, sequence, attention, itemsize, layer)
    tokens = batch * sequence
    parts = _attention_tensors(model, tokens, sequence, attention, itemsize)
    return parts + _mlp_tensors(model, tokens, itemsize, layer)


def _check(model, batch, sequence, attention, itemsize, layer) -> None:
    for name, value in (("batch", batch), ("sequence", sequence), ("itemsize", itemsize)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")
    if attention not in ATTENTION:
        raise ValueError(f"attention must be one of {ATTENTION}, not {attention!r}")
    if not 0 <= layer < model.layers:
        raise ValueError(f"layer must be from 0 to {model.layers - 1}, not {layer}")


def _attention_tensors(model, tokens, sequence, attention, itemsize) -> list[Kept]:
    row = tokens * model.hidden * itemsize  # sbh elements
    query, key, value = _head_widths(model)
    per_head = tokens * itemsize
    parts = [
        Kept("attention norm input", row, False),
        Kept("query, key, value input", row, False),
        *_latent_tensors(model, tokens, itemsize),
        Kept("queries", per_head * query, True),
        Kept("keys", per_head * key, True),
        *_core_tensors(model, tokens, sequence, attention, itemsize),
        Kept("values", per_head * value, True),
        Kept("attention output", per_head * _value_width(model), True),
    ]
    mask = [Kept("attention dropout mask", tokens * model.hidden * MASK, False)]
    return parts + (mask if model.gpt else [])


def _head_widths(model: Model) -> tuple[int, int, int]:
    """Numbers of a token over all heads: in queries, in keys, in values."""
    if model.latent is None:
        kv = model.kv_heads * model.head_dim
        return model.hidden, kv, kv
    query = model.heads * (model.latent.plain_dim + model.latent.rope_dim)
    return query, query, _value_width(model)


def _value_width(model: Model) -> int:
    """Numbers of a token in the heads' outputs together."""
    dim = model.head_dim if model.latent is None else model.latent.value_dim
    return model.heads * dim


def _latent_tensors(model: Model, tokens: int, itemsize: int) -> list[Kept]:
    """Input and output of the norm of each narrow vector."""
    if model.latent is None:
        return []
    width = model.latent.query_rank + model.latent.kv_rank
    return [Kept("latent vectors", 2 * tokens * width * itemsize, False)]


def _core_tensors(model, tokens, sequence, attention, itemsize) -> list[Kept]:
    """Softmax output 2as^2b, its dropout mask as^2b, what is left after it 2as^2b."""
    if attention == "flash":
        return [Kept("logsumexp", model.heads * tokens * FP32, True, core=True)]
    scores = model.heads * tokens * sequence
    softmax = Kept("softmax", scores * itemsize, True, core=True)
    if not model.gpt:  # without dropout the softmax is what meets the values
        return [softmax]
    return [
        softmax,
        Kept("softmax dropout mask", scores * MASK, True, core=True),
        Kept("softmax after dropout", scores * itemsize, True, core=True),
    ]


def _mlp_tensors(model: Model, tokens: int, itemsize: int, layer: int) -> list[Kept]:
    row = tokens * model.hidden * itemsize
    norm = Kept("mlp norm input", row, False)
    if model.gpt:
        wide = tokens * model.mlp_hidden * itemsize
        return [
            norm,
            Kept("mlp input", row, False),
            Kept("GELU input", wide, True),
            Kept("GELU output", wide, True),
            Kept("mlp dropout mask", tokens * model.hidden * MASK, False),
        ]
    experts = model.experts
    if experts is None or layer < experts.dense_layers:
        gated = _gated_tensors(tokens * model.mlp_hidden * itemsize)
        return [norm, Kept("mlp input", row, False), *gated]
    # A copy of the token for each expert that it visits; the router's weights multiply
    # what comes back, so that is kept too.
    visits = experts.active + experts.shared
    return [
        norm,
        Kept("router and shared expert input", row, False),
        Kept("experts' inputs", experts.active * row, False),
        *_gated_tensors(visits * tokens * experts.hidden * itemsize),
        Kept("experts' outputs", experts.active * row, False),
    ]


def _gated_tensors(wide: float) -> list[Kept]:
    """SwiGLU: down(silu(gate(x)) * up(x)) keeps all four."""
    names = ("gate output", "SiLU output", "up output", "down input")
    return [Kept(name, wide, True) for name in names]


def layer_bytes(
    model: Model,
    *,
    batch: int,
    sequence: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    attention: str = "flash",
    itemsize: int = 2,
    layer: int = 0,
) -> float:
    """Bytes that one layer keeps on one of tp ranks.

    Korthikanti, with GPT's block and attention="materialized", itemsize 2:
        eq. 1  none                  sbh (34 + 5as/h)
        eq. 2  tp                    sbh (10 + 24/t + 5as/(ht))
        eq. 4  tp, sequence_parallel sbh/t (34 + 5as/h)
        eq. 6  ... and selective     34 sbh/t; without sequence_parallel: table 2
    Full recomputation keeps the layer's input: 2sbh in table 2; here 2sbh/t where
    sequence parallelism splits that input.
    """
    if tp < 1:
        raise ValueError(f"tp must be 1 or more, not {tp}")
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute must be one of {RECOMPUTE}, not {recompute!r}")
    tensors = layer_tensors(
        model,
        batch=batch,
        sequence=sequence,
        attention=attention,
        itemsize=itemsize,
        layer=layer,
    )
    if recompute == "full":
        tensors = tensors[:1]
    kept = [t for t in tensors if recompute == "none" or not t.core]
    return sum(t.nbytes / (tp if t.split or sequence_parallel else 1) for t in kept)


# --- Beside the layers ---------------------------------------------------------------


def embedding_bytes(model: Model, *, batch: int, sequence: int, tp: int = 1) -> float:
    """The mask of the embedding's dropout, sbh/t: Korthikanti section 4.3. GPT only."""
    return batch * sequence * model.hidden * MASK / tp if model.gpt else 0.0


def head_bytes(
    model: Model, *, batch: int, sequence: int, tp: int = 1, itemsize: int = 2
) -> float:
    """Inputs of the last norm and of the output layer, 4sbh/t: Korthikanti section 4.3."""
    return 2 * batch * sequence * model.hidden * itemsize / tp


def logits_bytes(model: Model, *, batch: int, sequence: int, tp: int = 1) -> float:
    """Logits in fp32, 4sbv/t: Korthikanti section 4.3.

    One copy, as a fused loss keeps. torch's cross_entropy holds three at its worst moment.
    """
    return FP32 * batch * sequence * model.vocab / tp


# --- What recomputing costs ----------------------------------------------------------


def model_flops(model: Model, *, batch: int, sequence: int) -> float:
    """FLOPs of forward and backward: 72 BLsh^2 (1 + s/(6h) + v/(12hL)), Korthikanti eq. 7.

    For GPT's block. batch: sequences of the step, B there.
    """
    if not model.gpt:
        raise ValueError(f"model must have GPT's block for this formula, not {model.name}")
    h, layers = model.hidden, model.layers
    shape = 1 + sequence / (6 * h) + model.vocab / (12 * h * layers)
    return 72 * batch * layers * sequence * h**2 * shape


def recompute_flops(model: Model, *, batch: int, sequence: int, recompute: str) -> float:
    """FLOPs done a second time.

    Full: every layer's forward, 24 BLsh^2 (1 + s/(6h)). Selective: the two products of
    attention's core once more, 4 BLs^2h [derived]. Korthikanti eq. 8, and the HFU of its
    table 5, add 12 BLs^2h there: what the core costs forward and backward together.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute must be one of {RECOMPUTE}, not {recompute!r}")
    if not model.gpt:
        raise ValueError(f"model must have GPT's block for this formula, not {model.name}")
    tokens, h = batch * sequence, model.hidden
    core = 4 * model.layers * tokens * sequence * h
    everything = 24 * model.layers * tokens * h**2 + core
    return {"none": 0, "selective": core, "full": everything}[recompute]
