"""Shapes of models that everybody names, and parameter counts worked out from them.

Letters as in the papers: L layers, h hidden, a heads, s sequence, v vocab. Every count is
a property: nothing but the shape is stored. `published` is what the source says, rounded
to `published_step` (1: exact), so that a test can hold one against the other.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """The feed-forward part of a mixture-of-experts layer.

    count, active: experts that a layer has, and that one token visits
    hidden:        inner width of one expert
    shared:        experts of that width that every token visits, besides
    dense_layers:  so many first layers have a plain feed-forward part instead
    """

    count: int
    active: int
    hidden: int
    shared: int = 0
    dense_layers: int = 0


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: queries, keys and values go through narrow vectors.

    query_rank, kv_rank:  width of the narrow vectors
    plain_dim, rope_dim:  of one head's query and key, without and with a rotary position
    value_dim:            of one head's value
    """

    query_rank: int
    kv_rank: int
    plain_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    hidden, heads, kv_heads: width of a layer, query heads, key and value heads
    mlp_hidden: inner width of the feed-forward part
    sequence:   tokens of a training sequence
    gpt:        GPT-2's block: two feed-forward matrices with GELU, biases, LayerNorm,
                learned positions, dropout. Otherwise Llama's: three matrices (SwiGLU),
                RMSNorm, rotary positions, neither biases nor dropout
    tied:       the output layer is the input embedding
    """

    name: str
    layers: int
    hidden: int
    heads: int
    mlp_hidden: int
    vocab: int
    sequence: int
    kv_heads: int
    published: int
    published_step: int = 1
    gpt: bool = False
    tied: bool = False
    experts: Experts | None = None
    latent: Latent | None = None

    def __post_init__(self):
        for field in ("layers", "hidden", "heads", "mlp_hidden", "vocab", "sequence"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be 1 or more, not {getattr(self, field)}")
        if self.hidden % self.heads:
            raise ValueError(f"heads must divide hidden ({self.hidden}), not {self.heads}")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads must divide heads ({self.heads}), not {self.kv_heads}"
            )

    @property
    def head_dim(self) -> int:
        """Of a query, without latent attention."""
        return self.hidden // self.heads

    @property
    def attention_parameters(self) -> int:
        """Of one layer, norms not counted."""
        if self.latent is not None:
            return _latent_parameters(self, self.latent)
        keys_and_values = 2 * self.kv_heads * self.head_dim
        out = self.hidden + keys_and_values  # columns of the joint projection
        biases = out + self.hidden if self.gpt else 0
        return self.hidden * (out + self.hidden) + biases

    @property
    def norm_parameters(self) -> int:
        """Of one norm over the hidden width."""
        return (2 if self.gpt else 1) * self.hidden

    def mlp_parameters(self, layer: int, *, active: bool = False) -> int:
        """Of one layer's feed-forward part. active: only what one token goes through."""
        experts = self.experts
        if experts is None or layer < experts.dense_layers:
            biases = self.mlp_hidden + self.hidden if self.gpt else 0
            return (2 if self.gpt else 3) * self.hidden * self.mlp_hidden + biases
        one = 3 * self.hidden * experts.hidden
        visited = experts.active if active else experts.count
        return (visited + experts.shared) * one + self.hidden * experts.count  # router

    def layer_parameters(self, layer: int = 0, *, active: bool = False) -> int:
        """Of one layer, counted from 0: attention, feed-forward part, two norms."""
        mlp = self.mlp_parameters(layer, active=active)
        return self.attention_parameters + mlp + 2 * self.norm_parameters

    @property
    def embedding_parameters(self) -> int:
        """Of what turns tokens into vectors: the table, and learned positions."""
        return (self.vocab + (self.sequence if self.gpt else 0)) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of what turns vectors into logits: the last norm, and an untied matrix."""
        return self.norm_parameters + (0 if self.tied else self.vocab * self.hidden)

    @property
    def units(self) -> tuple[int, ...]:
        """Parameters of the embedding, of each layer, of the head: in running order."""
        layers = (self.layer_parameters(i) for i in range(self.layers))
        return (self.embedding_parameters, *layers, self.head_parameters)

    @property
    def parameters(self) -> int:
        return sum(self.units)

    @property
    def active_parameters(self) -> int:
        """What one token goes through: experts that it does not visit are left out."""
        layers = (self.layer_parameters(i, active=True) for i in range(self.layers))
        return self.embedding_parameters + sum(layers) + self.head_parameters


def _latent_parameters(model: Model, latent: Latent) -> int:
    """Down, norm and up for the queries; the same for keys and values; the way out."""
    query_dim = latent.plain_dim + latent.rope_dim
    query = latent.query_rank * (model.hidden + 1 + model.heads * query_dim)
    down = model.hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
    up = latent.kv_rank * model.heads * (latent.plain_dim + latent.value_dim)
    return query + down + up + model.heads * latent.value_dim * model.hidden


def gpt(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    *,
    vocab: int = 50257,
    sequence: int = 1024,
    published: int = 0,
    published_step: int = 1,
) -> Model:
    """A model of GPT-2's kind: feed-forward four times as wide, a tied output layer."""
    return Model(
        name, layers, hidden, heads, 4 * hidden, vocab, sequence, heads,
        published, published_step, gpt=True, tied=True,
    )  # fmt: skip


B = 10**9

# --- GPT ---------------------------------------------------------------------------
# Shapes: Radford et al. 2019, table 2, vocabulary and context section 2.3; heads: the
# released hparams.json. The counts that the paper prints (117M, 345M, 762M, 1542M) are not
# those of the released weights; exact ones: keras-hub at 0e1444f,
# src/models/gpt2/gpt2_presets.py.
GPT2_SMALL = gpt("GPT-2 small", 12, 768, 12, published=124_439_808)
GPT2_MEDIUM = gpt("GPT-2 medium", 24, 1024, 16, published=354_823_168)
GPT2_LARGE = gpt("GPT-2 large", 36, 1280, 20, published=774_030_080)
GPT2_XL = gpt("GPT-2 XL", 48, 1600, 25, published=1_557_611_200)
# Shape: Brown et al. 2020 (arXiv 2005.14165), table 2.1, which rounds to 175.0B. 174.6B:
# Narayanan et al. 2021 (arXiv 2104.04473), table 2.
GPT3_175B = gpt(
    "GPT-3 175B", 96, 12288, 96, sequence=2048,
    published=174_600_000_000, published_step=B // 10,
)  # fmt: skip
# Shapes that Korthikanti et al. 2022 (arXiv 2205.05198), table 3, measure: their GPT-3 and
# MT-NLG, a vocabulary of 51,200, sequences of 2,048. They name 22B, 530B and 1T.
KORTHIKANTI_22B = gpt(
    "GPT 22B", 48, 6144, 64, vocab=51200, sequence=2048, published=22 * B, published_step=B
)
# 529.6B: Narayanan et al. 2021, table 1, the same shape.
MT_NLG_530B = gpt(
    "MT-NLG 530B", 105, 20480, 128, vocab=51200, sequence=2048,
    published=529_600_000_000, published_step=B // 10,
)  # fmt: skip
# 1008.0B: the same table.
GPT_1T = gpt(
    "GPT 1T", 128, 25600, 160, vocab=51200, sequence=2048,
    published=1_008_000_000_000, published_step=B // 10,
)  # fmt: skip

# --- Llama -------------------------------------------------------------------------
# Shapes: meta-llama/llama-models, models/sku_list.py (arch_args; the feed-forward width
# from dim, ffn_dim_multiplier, multiple_of as in models/llama3/model.py). Sequences: model
# cards. Exact counts: safetensors.total of the Hugging Face model API; for Llama 2 less
# the rotary tables that those files hold besides, 64 numbers a layer.
LLAMA2_7B = Model(
    "Llama 2 7B", 32, 4096, 32, 11008, 32000, 4096, 32, published=6_738_415_616
)
LLAMA2_13B = Model(
    "Llama 2 13B", 40, 5120, 40, 13824, 32000, 4096, 40, published=13_015_864_320
)
LLAMA2_70B = Model(
    "Llama 2 70B", 80, 8192, 64, 28672, 32000, 4096, 8, published=68_976_648_192
)
# Also arXiv 2407.21783, table 3; pre-training sequences of 8,192: section 3.4.1.
LLAMA3_8B = Model(
    "Llama 3 8B", 32, 4096, 32, 14336, 128256, 8192, 8, published=8_030_261_248
)
LLAMA3_70B = Model(
    "Llama 3 70B", 80, 8192, 64, 28672, 128256, 8192, 8, published=70_553_706_496
)
LLAMA3_405B = Model(
    "Llama 3 405B", 126, 16384, 128, 53248, 128256, 8192, 8, published=405_853_388_800
)

# --- Mixtures of experts -------------------------------------------------------------
# Shape: Jiang et al. 2024 (arXiv 2401.04088), table 1. Exact count: keras-hub,
# src/models/mixtral/mixtral_presets.py.
MIXTRAL_8X7B = Model(
    "Mixtral 8x7B", 32, 4096, 32, 14336, 32000, 32768, 8, published=46_702_792_704,
    experts=Experts(count=8, active=2, hidden=14336),
)  # fmt: skip
# Shape: arXiv 2412.19437, section 4.2; deepseek-ai/DeepSeek-V3,
# inference/configs/config_671B.json. 671B without the module that predicts a second
# token: README_WEIGHTS.md there. The checkpoint's main tensors hold 671,026,419,200
# numbers: 58 x 256 more, the router's balancing biases, which a rule moves, no gradient.
DEEPSEEK_V3 = Model(
    "DeepSeek-V3", 61, 7168, 128, 18432, 129280, 4096, 128,
    published=671 * B, published_step=B,
    experts=Experts(count=256, active=8, hidden=2048, shared=1, dense_layers=3),
    latent=Latent(query_rank=1536, kv_rank=512, plain_dim=128, rope_dim=64, value_dim=128),
)  # fmt: skip

MODELS = {
    model.name: model
    for model in (
        GPT2_SMALL,
        GPT2_MEDIUM,
        GPT2_LARGE,
        GPT2_XL,
        LLAMA2_7B,
        LLAMA3_8B,
        LLAMA2_13B,
        KORTHIKANTI_22B,
        MIXTRAL_8X7B,
        LLAMA2_70B,
        LLAMA3_70B,
        GPT3_175B,
        LLAMA3_405B,
        MT_NLG_530B,
        DEEPSEEK_V3,
        GPT_1T,
    )
}
