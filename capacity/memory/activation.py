"""The activation peak of the start-up profile: forward pass, sampler, expert buffers, vision tower.

Source: the profile run of vLLM 0.8 to 0.32 (gpu_model_runner.py, topk_topp_sampler.py, workspace.py), factors in
catalog/memory_coefficients.csv. Left out: sparse-attention indexers, draft models' own passes.

    sampler = per_logit * S * V  [+ scratch rows * V * 4]  +  T * H * b  +  2 * S * H * b
    forward = T * (widest layer + 3.75 * H) * b
    peak    = kept expert buffers + max(forward, sampler, tower - encoder cache) + encoder cache + cuBLAS workspace
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import Literal

from capacity.engine import Version
from capacity.memory.coefficients import coefficient
from capacity.model import Attention, DenseMlp, LatentAttention, ModelSpec, MoeMlp
from capacity.units import GIB, MIB

QWEN_TOWERS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
QWEN_PATCHES_PER_TOKEN = 4
QWEN_TOWER_WIDTH = {"qwen2_vl": 5120, "qwen2_5_vl": 3420}
QWEN_TOWER_WIDTH_LATER = 4304
DEEPSTACK_COPIES = 4
VIDEO_BUDGET_FROM: Version = (0, 11, 0)
QWEN3_VL_VIDEO_TOKENS = (
    153_600  # encoder budget that 0.11 logs for Qwen3-VL; items are padded to it up to 0.12
)
V0_SPREAD, V0_SPREAD_WITH_IMAGES = 0.12, 0.4
KEEPS_WORKSPACE: Version = (0, 13, 0)
FLASHINFER_INSTALLS: tuple[tuple[tuple[str, ...], Version, Version], ...] = (
    (
        ("Mistral3", "Pixtral"),
        (0, 8, 0),
        (0, 11, 0),
    ),  # H100 start-up of Mistral-Small-3.2 on 0.11.0: 2.12 GiB
    (
        ("GptOss",),
        (0, 10, 1),
        (0, 10, 1),
    ),  # the 0.10.1+gptoss wheel requires it; A100 TP4 start-up on 0.10.1.1
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Per-token widths of the widest layer on one GPU in elements.

    ``experts``: the two buffers of the modular kernels (kept since 0.13); ``passing_experts``: those of the older
    fused kernel, freed after the layer.
    """

    mlp: float
    attention: float
    experts: float
    passing_experts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """The peak in bytes with its interval, its parts, and which part sets it."""

    bytes: float
    low_bytes: float
    high_bytes: float
    forward_bytes: float
    sampler_bytes: float
    experts_bytes: float
    encoder_bytes: float
    tower_bytes: float
    set_by: Literal["forward pass", "sampler", "vision tower"]
    sampler: str


def activation(
    *,
    spec: ModelSpec,
    version: Version,
    runner: Literal["v0", "v1", "v2"],
    hopper_or_newer: bool,
    gpu_id: str,
    keeps_experts_16_bit_buffers: bool,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    expert_parallel: bool,
    last_stage: bool,
    first_stage: bool,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    image_tokens: int | None,
    images_off: bool,
    element_bytes: int = 2,
) -> Activation:
    """The peak of one profile run in bytes. ``image_tokens``: the largest item's tokens (None: the model's own)."""
    tokens, hidden, width = max_num_batched_tokens, spec.hidden_size, element_bytes
    tp = tensor_parallel_size
    rows = min(max_num_seqs, tokens)
    has_encoder = spec.encoder is not None and not images_off and first_stage
    item = image_tokens
    if item is None and spec.encoder is not None:
        item = spec.encoder.max_image_tokens or spec.encoder.image_tokens
    if runner == "v0" and has_encoder:
        rows = max(1, min(rows, tokens // max(1, item or 1)))
        item = item if (item or 0) <= tokens else 0
    widths = layer_widths(spec, tp, expert_parallel)
    kept = keeps_experts_16_bit_buffers and runner != "v0" and version >= KEEPS_WORKSPACE
    experts = tokens * widths.experts * width if kept else 0.0
    factor = coefficient("forward_hidden_factor", version, "any")
    routed = widths.passing_experts if keeps_experts_16_bit_buffers and not kept else 0.0
    widest = max(widths.mlp, widths.attention, routed)
    forward = tokens * (widest + factor.value * hidden) * width
    sampler, spread, name = 0.0, 0.0, "none"
    if last_stage:
        sampler, spread, name = _sampler(spec, version, runner, rows, tokens, width, gpu_id)
    stages = 2 * tokens * hidden * width if pipeline_parallel_size > 1 else 0.0
    cache = tower = encoder_spread = 0.0
    if has_encoder:
        budget = max(tokens, item or 0)
        extra = coefficient("multimodal_extra_gib", version, "any")
        copies = DEEPSTACK_COPIES if spec.model_type.startswith("qwen3_vl") else 1
        if copies > 1 and VIDEO_BUDGET_FROM <= version < KEEPS_WORKSPACE and image_tokens is None:
            budget = max(budget, QWEN3_VL_VIDEO_TOKENS)
        cache = budget * hidden * width * copies + extra.value * GIB
        encoder_spread = (extra.high - extra.low) / 2 * GIB
        tower, tower_spread = _tower(spec, version, item or 0, tp)
        encoder_spread = hypot(encoder_spread, tower_spread)
    blas = coefficient("blas_workspace_mib", version, "hopper" if hopper_or_newer else "older")
    language = max(forward, sampler)
    top = max(language + cache, tower)
    peak = top + (experts if kept else 0.0) + stages + blas.value * MIB
    own = spread if sampler >= forward else 0.05 * forward
    half = hypot(own, encoder_spread, 0.015 * GIB)
    if runner == "v0":
        half = hypot(half, (V0_SPREAD_WITH_IMAGES if has_encoder else V0_SPREAD) * peak)
    if tower > language + cache:
        set_by: Literal["forward pass", "sampler", "vision tower"] = "vision tower"
    else:
        set_by = "sampler" if sampler > forward else "forward pass"
    return Activation(
        bytes=peak,
        low_bytes=max(0.0, peak - half),
        high_bytes=peak + half,
        forward_bytes=forward,
        sampler_bytes=sampler,
        experts_bytes=experts if kept else 0.0,
        encoder_bytes=cache,
        tower_bytes=tower,
        set_by=set_by,
        sampler=name,
    )


def _sampler(
    spec: ModelSpec, version: Version, runner: str, rows: int, tokens: int, width: int, gpu_id: str
) -> tuple[float, float, str]:
    """(bytes, half width of the interval, name) of the dummy sampler pass."""
    condition, name = (
        runner,
        {"v0": "sort", "v2": "gumbel"}.get(runner, "sort" if version < (0, 17, 0) else "kernel"),
    )
    if runner == "v1" and _brings_flashinfer(spec, version):
        condition, name = "flashinfer", "flashinfer"
    per_logit = coefficient("sampler_bytes_per_logit", version, condition)
    logits = float(rows) * spec.vocab_size
    value = per_logit.value * logits
    if name == "kernel":
        scratch = coefficient("sampler_scratch_rows", version, gpu_id, "any")
        value += min(scratch.value, rows) * spec.vocab_size * 4
    held = tokens * spec.hidden_size * width + 2 * rows * spec.hidden_size * width
    return value + held, (per_logit.high - per_logit.low) / 2 * logits, name


def _brings_flashinfer(spec: ModelSpec, version: Version) -> bool:
    """Models whose public start-ups of 0.8 to 0.11.0 ran with FlashInfer installed (V1 then samples with it)."""
    return any(
        first <= version <= last and spec.architecture.startswith(names)
        for names, first, last in FLASHINFER_INSTALLS
    )


def _tower(spec: ModelSpec, version: Version, item_tokens: int, tp: int) -> tuple[float, float]:
    """(bytes, half width) of one largest item through the vision tower (Qwen towers; others stay below the peak)."""
    if not spec.model_type.startswith(QWEN_TOWERS) or not item_tokens:
        return 0.0, 0.0
    factor = coefficient("tower_intermediate_factor", version, "qwen")
    patches = item_tokens * QWEN_PATCHES_PER_TOKEN
    inner = next(
        (w for key, w in QWEN_TOWER_WIDTH.items() if spec.model_type.startswith(key)), QWEN_TOWER_WIDTH_LATER
    )
    pixels = patches * coefficient("tower_patch_values", version, "qwen").value * 2
    value = patches * inner * factor.value * 2 / tp + pixels
    return value, patches * inner * (factor.high - factor.low) / 2 * 2 / tp


_widths: dict[tuple[int, int, bool], tuple[ModelSpec, Widths]] = {}


def layer_widths(spec: ModelSpec, tp: int, expert_parallel: bool) -> Widths:
    """Widths of the widest layer per token on one GPU, in elements (kept per model object: hashing one is slow).

    A gated MLP holds gate, up and their product; experts hold two buffers of the modular kernel.
    """
    key = (id(spec), tp, expert_parallel)
    kept = _widths.get(key)
    if kept is None or kept[0] is not spec:
        if len(_widths) > 512:
            _widths.clear()
        kept = (spec, _widest(spec, tp, expert_parallel))
        _widths[key] = kept
    return kept[1]


def _widest(spec: ModelSpec, tp: int, expert_parallel: bool) -> Widths:
    mixers = tuple(dict.fromkeys(spec.mixers()))
    mlps = tuple(dict.fromkeys(layer.mlp for layer in spec.layers if layer.mlp is not None))
    hidden = spec.hidden_size
    mlp = experts = passing = attention = 0.0
    for block in mlps:
        if isinstance(block, DenseMlp):
            mlp = max(mlp, (3 if block.gated else 2) * block.intermediate_size / tp)
        elif isinstance(block, MoeMlp):
            inner = (2 if block.gated else 1) * block.moe_intermediate_size / (1 if expert_parallel else tp)
            wide = block.latent_size or hidden
            both = max(inner / 2, wide) + max(inner, wide)
            experts = max(experts, block.num_experts_per_tok * both)
            passing = max(passing, block.num_experts_per_tok * (max(inner, wide) + inner / 2))
            mlp = max(mlp, 3 * (block.shared_intermediate_size + block.dense_intermediate_size) / tp)
    for mixer in mixers:
        if isinstance(mixer, Attention):
            heads = mixer.num_heads * (mixer.head_dim + mixer.v_head_dim)
            kv = max(1.0, mixer.num_kv_heads / tp) * (mixer.head_dim + mixer.v_head_dim)
            attention = max(attention, heads / tp + 2 * kv)
        elif isinstance(mixer, LatentAttention):
            qk = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
            attention = max(attention, mixer.num_heads * (2 * qk + 2 * mixer.v_head_dim) / tp)
    return Widths(mlp=mlp, attention=attention, experts=experts, passing_experts=passing)
