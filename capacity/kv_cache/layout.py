"""A model's layers -> the caches one GPU keeps: pages, the block size the engine settles on, who shares what.

Source: vLLM's cache specs and its block alignment for models with recurrent state, reproduced for every model of the
reference runs and for public start-up logs. Left out: encoder-decoder cross attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from capacity.engine import EngineRelease
from capacity.errors import CapacityError
from capacity.kv_cache.layer_cache import CacheKind, LayerCache, attention_page_bytes, kv_heads_per_gpu
from capacity.kv_cache.state import state_bytes
from capacity.model import Attention, LatentAttention, Layer, Mixer, ModelSpec, RecurrentState
from capacity.precision import KvFormat
from capacity.units import ceil_div

KERNEL_BLOCK = 16
PACKED_SCALE_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Everything beside the model that shapes its caches. ``element_bytes`` None = a packed MLA record."""

    tensor: int
    kv_format: KvFormat
    model_dtype_bytes: int
    block_size: int
    max_model_len: int
    hybrid_manager: bool
    chunked_hybrid: bool
    align_state: bool
    ssm_dtype: str | None = None
    num_speculative_tokens: int = 0
    draft_layers: int = 0
    release: EngineRelease


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """``layers``: caches in model order (draft layers last). ``owners``: the model layer of each, -1 for a draft's.

    ``block_size`` may be larger than asked: state models raise it. ``state_bytes`` is one state on one GPU.
    """

    layers: tuple[LayerCache, ...]
    owners: tuple[int, ...]
    block_size: int
    state_bytes: int
    notes: tuple[str, ...]


def layout(spec: ModelSpec, settings: CacheSettings) -> CacheLayout:
    """The caches that one GPU keeps. Raises CapacityError where the layout has no rule."""
    if not spec.kv_layout_known and not spec.upper_bound:
        raise CapacityError(
            f"the KV cache layout of {spec.architecture} has no rule here ({spec.kv_layout_reason}); "
            "set accept_upper_bound to plan it as full attention",
            field="accept_upper_bound",
        )
    mixers = list(spec.kinds())
    states = [m for m in mixers if isinstance(m, RecurrentState)]
    notes: list[str] = []
    block = settings.block_size
    state_page = largest_state = 0
    if states:
        largest_state = max(state_bytes(m, settings) for m in states)
        per_token = max(
            (_bytes_per_token(m, settings) for m in mixers if not isinstance(m, RecurrentState)), default=0
        )
        if per_token:
            rules = settings.release.kv
            align = rules.mla_state_alignment if spec.uses_mla else KERNEL_BLOCK
            if rules.state_block_multiple:
                align = max(align, block)
            aligned = max(block, align * ceil_div(largest_state, align * per_token))
            if aligned > block:
                notes.append(
                    f"block size raised from {block} to {aligned} tokens so that one attention block covers one state"
                )
            block = aligned
            state_page = block * per_token
        else:
            state_page = largest_state
    full = any(isinstance(m, LatentAttention) or getattr(m, "kind", "") == "full" for m in mixers)
    if not (full or states or settings.hybrid_manager) and settings.release.runner == "v1":
        # the switch turns windows into full attention beside full layers only
        settings = replace(settings, hybrid_manager=True)
    caches: dict[Mixer, tuple[LayerCache, ...]] = {}
    for mixer in mixers:
        caches[mixer] = _caches(mixer, settings, block, state_page)
    if not settings.hybrid_manager and states and len(mixers) > len(states):
        raise CapacityError(
            "a model with recurrent state cannot run with disable_hybrid_kv_cache_manager",
            field="disable_hybrid_kv_cache_manager",
        )
    layers: list[LayerCache] = []
    owners: list[int] = []
    of_kind = tuple(caches.values())
    for index, place in spec.order():
        for cache in of_kind[place]:
            layers.append(cache)
            owners.append(index)
    for _ in range(settings.draft_layers):
        extra = _draft_caches(spec, settings, block, state_page)
        layers.extend(extra)
        owners.extend([-1] * len(extra))
    return CacheLayout(
        layers=tuple(layers),
        owners=tuple(owners),
        block_size=block,
        state_bytes=largest_state,
        notes=tuple(notes),
    )


def latent_row_bytes(mixer: LatentAttention, settings: CacheSettings) -> int:
    """Bytes of one token of one MLA layer: one latent plus the rope part, no doubling, not split by TP.

    DeepSeek-V3 keeps 1,152 B in 16 bit, 576 B in plain fp8, 656 B in the packed ``fp8_ds_mla`` record.
    """
    elements = mixer.kv_lora_rank + mixer.qk_rope_head_dim
    if settings.kv_format.record_bytes is not None:
        latent_scales = ceil_div(mixer.kv_lora_rank, PACKED_SCALE_TOKENS) * 4
        return mixer.kv_lora_rank + latent_scales + 2 * mixer.qk_rope_head_dim
    if settings.release.runner == "v0":
        elements = ceil_div(elements, 128) * 128
    return int(elements * _element_bytes(settings))


def _element_bytes(settings: CacheSettings) -> float:
    own = settings.kv_format.element_bytes
    if own is None:
        raise CapacityError(
            f"kv_cache_dtype {settings.kv_format.id} is a record of MLA layers; this model has none",
            field="kv_cache_dtype",
        )
    return own


def _v_width(mixer: Attention, settings: CacheSettings) -> int:
    """Width of V in the cache: releases before 0.20 pad it to K's."""
    return mixer.v_head_dim if settings.release.kv.own_v_width else max(mixer.head_dim, mixer.v_head_dim)


def _bytes_per_token(mixer: Mixer, settings: CacheSettings) -> int:
    """Bytes of one token of one attention layer on one GPU."""
    if isinstance(mixer, LatentAttention):
        return latent_row_bytes(mixer, settings)
    if isinstance(mixer, Attention) and not mixer.shares_kv:
        heads = kv_heads_per_gpu(mixer.num_kv_heads, settings.tensor)
        scales = 2 * heads * settings.kv_format.scale_bytes
        return int(heads * (mixer.head_dim + _v_width(mixer, settings)) * _element_bytes(settings)) + scales
    return 0


def _caches(mixer: Mixer, settings: CacheSettings, block: int, state_page: int) -> tuple[LayerCache, ...]:
    if isinstance(mixer, RecurrentState):
        length = block if settings.align_state else settings.max_model_len
        return (LayerCache("state", length, state_page),)
    if isinstance(mixer, LatentAttention):
        main = LayerCache("mla", block, block * latent_row_bytes(mixer, settings))
        if mixer.indexer is None:
            return (main,)
        row = mixer.indexer.head_dim + ceil_div(mixer.indexer.head_dim, 128) * 4
        return main, LayerCache("indexer", block, block * row)
    if mixer.shares_kv:
        return ()
    heads = kv_heads_per_gpu(mixer.num_kv_heads, settings.tensor)
    page = attention_page_bytes(
        block_size=block,
        kv_heads=heads,
        head_dim=mixer.head_dim,
        v_head_dim=_v_width(mixer, settings),
        elem_bytes=_element_bytes(settings),
        scale_bytes=settings.kv_format.scale_bytes,
    )
    if mixer.kind == "full" or mixer.window is None:
        return (LayerCache("full", block, page, heads=heads),)
    kind: CacheKind = "sliding" if mixer.kind == "sliding" else "chunked"
    local = LayerCache(kind, block, page, mixer.window, heads=heads)
    if settings.hybrid_manager and (local.kind == "sliding" or settings.chunked_hybrid):
        return (local,)
    return (replace(local, kind="full", was=local.kind if settings.release.runner == "v1" else None),)


def _draft_caches(
    spec: ModelSpec, settings: CacheSettings, block: int, state_page: int
) -> tuple[LayerCache, ...]:
    """One draft layer's caches: the checkpoint's MTP layer, else one like the model's first full attention layer."""
    layer: Layer | None = spec.mtp_layers[0] if spec.mtp_layers else None
    pool = layer.mixers if layer else tuple(spec.mixers())
    for mixer in pool:
        full = isinstance(mixer, LatentAttention) or (isinstance(mixer, Attention) and mixer.kind == "full")
        if full:
            return _caches(mixer, settings, block, state_page)
    raise CapacityError(
        "speculative decoding needs a full attention layer to plan the draft's cache; this model has none",
        field="num_speculative_tokens",
    )
