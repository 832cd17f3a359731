"""Architecture facts of a decoder language model, layer by layer.

What it answers: which layers keep which cache, and how many parameters each module has.
``hf_config`` builds it from a config.json, ``catalog`` from the bundled table. Left out: training-only facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

AttentionKind = Literal["full", "sliding", "chunked"]
StateKind = Literal["mamba1", "mamba2", "gated_delta_net", "kda", "lightning", "short_conv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention with a K and a V vector per KV head (MHA, GQA, MQA).

    ``window`` is the sliding window or the chunk in tokens (None for full attention). ``head_dim`` is K's
    width,
    ``v_head_dim`` V's. ``shares_kv``: reads another layer's cache and owns none (Gemma-3n, YOCO).
    ``key_is_value``: one projection feeds both, the cache still holds both. ``output_gate``: the query
    projection
    is twice as wide (Qwen3-Next). ``sinks``: one learned sink per head (gpt-oss). ``q_lora_rank``,
    ``o_lora_rank`` with
    ``o_groups``: low-rank query and output projections (DeepSeek-V4).
    """

    kind: AttentionKind = "full"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "per_head", "full"] = "none"
    output_gate: bool = False
    key_is_value: bool = False
    shares_kv: bool = False
    sinks: bool = False
    q_lora_rank: int | None = None
    o_lora_rank: int | None = None
    o_groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Sparse-attention indexer (DeepSeek-V3.2, GLM-5): keys of ``head_dim`` fp8 plus a 4-byte scale per
    token.
    """

    num_heads: int
    head_dim: int
    topk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one joint latent per token, not split by tensor parallelism."""

    num_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """A layer whose cache is a fixed-size state per request (Mamba, gated delta net, KDA, lightning, short
    conv).

    ``num_heads`` x ``head_dim`` is the inner (value) width; ``state_size`` the state's second dimension
    (d_state, or the key head dim); ``num_groups`` = Mamba-2 groups, or key heads of a gated delta net.
    ``conv_kernel`` 0 means no convolution state. ``state_dtype``: what the model's config demands for the
    recurrent part ("float32"), None = the model dtype. ``dt_rank`` is Mamba-1's low rank.
    ``inner_norms``: the layer normalises its own inner width (Mamba-2's gated norm, Jamba's dt/B/C norms).
    """

    kind: StateKind
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int = 1
    conv_kernel: int = 4
    state_dtype: str | None = None
    dt_rank: int | None = None
    bias: bool = False
    conv_bias: bool = True
    inner_norms: bool = True


Mixer = Attention | LatentAttention | RecurrentState


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMlp:
    """Feed-forward block; ``gated`` has three matrices (SwiGLU, GeGLU), else two."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMlp:
    """Mixture of experts. ``shared_intermediate_size`` is the total width of all shared experts (0 = none).

    ``latent_size``: width in which experts work when it is not the hidden size (Nemotron-3 Super), else None.
    ``dense_intermediate_size``: a dense MLP beside the experts in the same layer (Gemma-4), 0 = none.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    latent_size: int | None = None
    dense_intermediate_size: int = 0


Mlp = DenseMlp | MoeMlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer: its mixers (usually one; Falcon-H1 has two side by side; none in MLP-only layers)
    and MLP.

    ``extra_parameters`` holds what the generic count does not know (norms beyond two, per-layer scalars ...).
    """

    mixers: tuple[Mixer, ...]
    mlp: Mlp | None
    norm_parameters: int = 0
    extra_parameters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A vision or audio tower: its parameters and what one image costs in tokens and profiling."""

    parameters: int
    hidden_size: int | None = None
    num_layers: int | None = None
    image_tokens: int | None = None
    max_image_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointQuantization:
    """What quantization_config says: the format id of the catalogue and which modules stay in 16 bit.

    ``ignored`` holds the exclude list's patterns as written; ``kv_cache_dtype`` the checkpoint's own KV
    format.
    ``overrides``: (pattern, format id) of modules in another format (mixed checkpoints).
    ``only``: patterns of the modules that are quantised, when the checkpoint names those instead.
    """

    weight_format: str
    ignored: tuple[str, ...] = ()
    kv_cache_dtype: str | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder model as the planner needs it. Sizes in elements; ``dtype`` as torch spells it ("bfloat16").

    ``kv_layout_known`` False: parameters can be counted, but no rule gives the cache's bytes
    (``kv_layout_reason`` says why); planning refuses unless the user takes an upper bound (``upper_bound``).
    ``mtp_parameters``: projections and norms of the MTP modules, beside ``mtp_layers``;
    ``mtp_embedding_parameters``: their copies of embedding and head, which the engine shares with the main
    model.
    ``norm_parameters``: the final norm (None = one vector of ``hidden_size``). ``count_basis``: what the
    published count includes (main, main+mtp, main+mtp(shared embeddings), main+stored lm_head copy).
    """

    model_id: str
    architecture: str
    model_type: str
    hidden_size: int
    vocab_size: int
    num_attention_heads: int
    max_position_embeddings: int | None
    tie_word_embeddings: bool
    dtype: str
    layers: tuple[Layer, ...]
    mtp_layers: tuple[Layer, ...] = ()
    mtp_parameters: int = 0
    mtp_embedding_parameters: int = 0
    encoder: Encoder | None = None
    quantization: CheckpointQuantization | None = None
    position_parameters: int = 0
    other_parameters: int = 0
    lm_head_bias: bool = False
    published_parameters: int | None = None
    checkpoint_bytes: int | None = None
    config_section: str = ""
    notes: tuple[str, ...] = ()
    source: str = ""
    upper_bound: bool = False
    kv_layout_known: bool = True
    kv_layout_reason: str | None = None
    count_basis: str | None = None
    norm_parameters: int | None = None
    extra: dict[str, str] = field(default_factory=dict, hash=False, compare=False)

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    def mixers(self) -> Iterator[Mixer]:
        """Every mixer of the main layers, in layer order."""
        for layer in self.layers:
            yield from layer.mixers

    def kinds(self) -> Mapping[Mixer, int]:
        """Distinct mixers of the main layers in order of appearance, each with its number; counted once."""
        return _kept(self)[1]

    def order(self) -> tuple[tuple[int, int], ...]:
        """(layer, place of its mixer in ``kinds``) for every mixer of the main layers, in layer order."""
        return _kept(self)[2]

    @property
    def is_moe(self) -> bool:
        return any(isinstance(layer.mlp, MoeMlp) for layer in self.layers)

    @property
    def uses_mla(self) -> bool:
        return any(isinstance(m, LatentAttention) for m in self.kinds())

    @property
    def has_state(self) -> bool:
        return any(isinstance(m, RecurrentState) for m in self.kinds())


def _kept(spec: ModelSpec) -> _Kept:
    """The kinds of a model's mixers and their order, worked out once for each record."""
    kept = _kinds.get(id(spec))
    if kept is None or kept[0] is not spec:
        if len(_kinds) > 1024:
            _kinds.clear()
        counts = Counter(spec.mixers())
        places = {mixer: place for place, mixer in enumerate(counts)}
        order = tuple((i, places[mixer]) for i, layer in enumerate(spec.layers) for mixer in layer.mixers)
        kept = _kinds[id(spec)] = (spec, counts, order)
    return kept


_Kept = tuple[ModelSpec, Counter[Mixer], tuple[tuple[int, int], ...]]
_kinds: dict[int, _Kept] = {}
