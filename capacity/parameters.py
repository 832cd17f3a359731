"""How many parameters each module of a model has, per layer and in all.

Source: the modeling classes; every catalogue row is within 2 % of its published count
(tests/golden/model_parameters.csv). Left out: scale tensors of quantised checkpoints (precision.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

from capacity.model import (
    Attention,
    DenseMlp,
    LatentAttention,
    Layer,
    Mixer,
    ModelSpec,
    MoeMlp,
    RecurrentState,
)

LAYER_MODULES = ("attention", "state", "mlp", "experts", "shared_experts", "router", "norms", "other")
GLOBAL_MODULES = ("embedding", "lm_head", "final_norm", "position", "mtp", "encoder", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParameters:
    """One layer's attention. ``q`` and ``o`` are split by query heads, ``kv`` by KV heads (a whole head at
    least),
    ``replicated`` stands on every tensor-parallel rank (MLA's down projections, indexer, norms)."""

    q: int = 0
    kv: int = 0
    o: int = 0
    replicated: int = 0

    @property
    def total(self) -> int:
        return self.q + self.kv + self.o + self.replicated


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """One layer's parameters by module. ``attention`` equals ``attention_parts.total``."""

    attention: int = 0
    state: int = 0
    mlp: int = 0
    experts: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    other: int = 0
    attention_parts: AttentionParameters = AttentionParameters()
    active_experts: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in LAYER_MODULES)

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.total - self.experts + self.active_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """A model's parameters. ``total`` is what serving loads: layers, embedding, head, norms, positions,
    encoder.

    ``mtp`` and ``mtp_embeddings`` (copies of embedding and head in the MTP modules) come on top: only
    speculative decoding loads the first, and the second is shared with the main model. ``active``: what one
    text token uses, embedding and head included.
    """

    layers: tuple[LayerParameters, ...]
    embedding: int
    lm_head: int
    final_norm: int
    position: int
    mtp: int
    mtp_embeddings: int
    encoder: int
    other: int
    mtp_layers: tuple[LayerParameters, ...] = ()

    @property
    def text(self) -> int:
        """The language model alone."""
        return self.total - self.encoder

    @property
    def total(self) -> int:
        globals_ = self.embedding + self.lm_head + self.final_norm + self.position + self.encoder + self.other
        return sum(layer.total for layer in self.layers) + globals_

    @property
    def active(self) -> int:
        return self.total - self.encoder - sum(layer.total - layer.active for layer in self.layers)

    def module(self, name: str) -> int:
        """A module over all layers (``attention`` ...) or a global one (``embedding`` ...).

        ``other`` sums both. Raises AttributeError for an unknown name.
        """
        per_layer = sum(getattr(layer, name) for layer in self.layers) if name in LAYER_MODULES else 0
        return per_layer + (getattr(self, name) if name in GLOBAL_MODULES else 0)

    def as_dict(self) -> dict[str, int]:
        """Every module's total by name, and ``total``."""
        names = dict.fromkeys((*LAYER_MODULES, *GLOBAL_MODULES))
        return {**{name: self.module(name) for name in names}, "total": self.total}


def count_parameters(spec: ModelSpec) -> ParameterCount:
    """Parameters of every module.

    >>> from capacity.hf_config import spec_from_form
    >>> spec = spec_from_form(layers=32, heads=32, kv_heads=8, hidden=4096, vocab=128256, intermediate=14336)
    >>> count_parameters(spec).total
    8030261248
    """
    return _kept(spec)[1]


def total_parameters(spec: ModelSpec) -> int:
    """``count_parameters(spec).total``, kept per model."""
    return _kept(spec)[2]


_counts: dict[int, tuple[ModelSpec, ParameterCount, int]] = {}


def _kept(spec: ModelSpec) -> tuple[ModelSpec, ParameterCount, int]:
    kept = _counts.get(id(spec))
    if kept is None or kept[0] is not spec:
        if len(_counts) > 512:
            _counts.clear()
        count = _count(spec)
        kept = (spec, count, count.total)
        _counts[id(spec)] = kept
    return kept


def _count(spec: ModelSpec) -> ParameterCount:
    embedding = spec.vocab_size * spec.hidden_size
    head = 0 if spec.tie_word_embeddings else embedding
    distinct = {id(layer): layer for layer in spec.layers}
    counted = {key: layer_parameters(layer, spec.hidden_size) for key, layer in distinct.items()}
    layers = tuple(counted[id(layer)] for layer in spec.layers)
    mtp_layers = tuple(layer_parameters(layer, spec.hidden_size) for layer in spec.mtp_layers)
    return ParameterCount(
        layers=layers,
        embedding=embedding,
        lm_head=head + (spec.vocab_size if spec.lm_head_bias else 0),
        final_norm=spec.hidden_size if spec.norm_parameters is None else spec.norm_parameters,
        position=spec.position_parameters,
        mtp=sum(layer.total for layer in mtp_layers) + spec.mtp_parameters,
        mtp_embeddings=spec.mtp_embedding_parameters,
        encoder=spec.encoder.parameters if spec.encoder else 0,
        other=spec.other_parameters,
        mtp_layers=mtp_layers,
    )


@lru_cache(maxsize=4096)
def layer_parameters(layer: Layer, hidden: int) -> LayerParameters:
    """One layer's parameters by module."""
    parts = [
        attention_parameters(mixer, hidden) for mixer in layer.mixers if not isinstance(mixer, RecurrentState)
    ]
    joined = AttentionParameters(
        **{
            field.name: sum(getattr(part, field.name) for part in parts)
            for field in fields(AttentionParameters)
        }
    )
    mlp = experts = shared = router = latent = active = 0
    if isinstance(layer.mlp, DenseMlp):
        mlp = _mlp(hidden, layer.mlp.intermediate_size, gated=layer.mlp.gated, bias=layer.mlp.bias)
    elif isinstance(layer.mlp, MoeMlp):
        moe = layer.mlp
        width = moe.latent_size or hidden
        one = _mlp(width, moe.moe_intermediate_size, gated=moe.gated, bias=moe.bias)
        experts, active = moe.num_experts * one, min(moe.num_experts, moe.num_experts_per_tok) * one
        shared = _mlp(hidden, moe.shared_intermediate_size, gated=moe.gated, bias=False)
        shared += hidden if moe.shared_gate else 0
        router = hidden * moe.num_experts + (moe.num_experts if moe.router_bias else 0)
        latent = 2 * hidden * moe.latent_size if moe.latent_size else 0
        mlp = _mlp(hidden, moe.dense_intermediate_size, gated=moe.gated, bias=False)
    return LayerParameters(
        attention=joined.total,
        state=sum(state_parameters(m, hidden) for m in layer.mixers if isinstance(m, RecurrentState)),
        mlp=mlp,
        experts=experts,
        shared_experts=shared,
        router=router,
        norms=layer.norm_parameters,
        other=layer.extra_parameters + latent,
        attention_parts=joined,
        active_experts=active,
    )


def _mlp(hidden: int, inner: int, *, gated: bool, bias: bool) -> int:
    if not inner:
        return 0
    matrices = 3 if gated else 2
    return matrices * hidden * inner + ((matrices - 1) * inner + hidden if bias else 0)


def attention_parameters(mixer: Mixer, hidden: int) -> AttentionParameters:
    """Projections of one attention, apart by how tensor parallelism treats them."""
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden)
    if isinstance(mixer, RecurrentState):
        return AttentionParameters()
    assert isinstance(mixer, Attention)
    heads, kv = mixer.num_heads, mixer.num_kv_heads
    q_width = heads * mixer.head_dim * (2 if mixer.output_gate else 1)
    kv_width = kv * (mixer.head_dim + (0 if mixer.key_is_value else mixer.v_head_dim))
    bias = 1 if mixer.qkv_bias else 0
    norm_q = {"none": 0, "per_head": 0, "full": heads * mixer.head_dim}[mixer.qk_norm]
    norm_kv = {"none": 0, "per_head": 0, "full": kv * mixer.head_dim}[mixer.qk_norm]
    replicated = 2 * mixer.head_dim if mixer.qk_norm == "per_head" else 0
    q_input, o_width = hidden, heads * mixer.v_head_dim
    o = o_width * hidden + (hidden if mixer.output_bias else 0)
    if mixer.q_lora_rank:
        q_input = mixer.q_lora_rank
        replicated += hidden * q_input + q_input
    if mixer.o_lora_rank:
        o = o_width * mixer.o_lora_rank + mixer.o_groups * mixer.o_lora_rank * hidden
    return AttentionParameters(
        q=(q_input + bias) * q_width + norm_q + (heads if mixer.sinks else 0),
        kv=(hidden + bias) * kv_width + norm_kv,
        o=o,
        replicated=replicated,
    )


def _latent(mixer: LatentAttention, hidden: int) -> AttentionParameters:
    heads, rank, q_rank = mixer.num_heads, mixer.kv_lora_rank, mixer.q_lora_rank
    qk = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    replicated = hidden * (rank + mixer.qk_rope_head_dim) + rank
    if q_rank:
        replicated += hidden * q_rank + q_rank
    if mixer.indexer:
        index = mixer.indexer
        width = index.num_heads * index.head_dim
        replicated += (q_rank or hidden) * width + hidden * index.head_dim + 2 * index.head_dim
        replicated += hidden * index.num_heads
    return AttentionParameters(
        q=(q_rank or hidden) * heads * qk + rank * heads * (mixer.qk_nope_head_dim + mixer.v_head_dim),
        o=heads * mixer.v_head_dim * hidden,
        replicated=replicated,
    )


def state_parameters(mixer: RecurrentState, hidden: int) -> int:
    """Projections, convolutions and per-head constants of one recurrent layer."""
    inner, heads, groups = mixer.num_heads * mixer.head_dim, mixer.num_heads, mixer.num_groups
    size, kernel = mixer.state_size, mixer.conv_kernel
    if mixer.kind == "mamba2":
        conv = inner + 2 * groups * size
        project = inner + conv + heads
        total = hidden * project + conv * (kernel + int(mixer.conv_bias)) + 3 * heads + inner * hidden
        return total + (inner if mixer.inner_norms else 0) + (project + hidden if mixer.bias else 0)
    if mixer.kind == "mamba1":
        rank = mixer.dt_rank or -(-hidden // 16)
        total = hidden * 2 * inner + inner * (kernel + int(mixer.conv_bias)) + inner * (rank + 2 * size)
        total += rank * inner + inner + inner * size + inner + inner * hidden
        return total + (rank + 2 * size if mixer.inner_norms else 0)
    if mixer.kind == "gated_delta_net":
        keys = groups * size
        project = hidden * (2 * keys + 2 * inner) + hidden * 2 * heads
        return project + (2 * keys + inner) * kernel + 2 * heads + mixer.head_dim + inner * hidden
    if mixer.kind == "kda":
        low_rank = 2 * (hidden * mixer.head_dim + mixer.head_dim * inner)
        total = 4 * hidden * inner + 3 * inner * kernel + low_rank + hidden * heads
        return total + heads + inner + mixer.head_dim
    if mixer.kind == "lightning":
        return 5 * hidden * inner + inner
    return 4 * hidden * hidden + hidden * kernel + (4 * hidden if mixer.bias else 0)
