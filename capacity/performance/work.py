"""What one token costs a model: bytes to read and operations to do, before any layout or GPU.

Source: parameter counts of the modeling classes, bytes per module of the weight and KV formats.
Left out: vision and audio towers, LoRA adapters, draft models.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from capacity.model import Attention, LatentAttention, ModelSpec, MoeMlp, RecurrentState
from capacity.precision import KvFormat, WeightFormat
from capacity.weight_bytes import checkpoint_modules

# What a format computes in, best first; the GPU decides (Hopper runs nvfp4 weights in 16 bit).
COMPUTE_TYPES = {
    "fp8-": ("fp8",),
    "mxfp8": ("fp8",),
    "int8-w8a8": ("int8",),
    "bnb-int8": ("int8",),
    "nvfp4": ("fp4",),
    "mxfp4": ("fp4_as_fp8",),
}
PRECISIONS = (("nvfp4", "fp4"), ("mxfp4", "fp4"), ("fp8", "fp8"), ("mxfp8", "fp8"), ("int8-w8a8", "int8"))
DENSE_MODULES = ("attention", "state", "mlp", "shared_experts", "router", "norms", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLayers:
    """Sliding or chunked attention layers of one window: bytes per token and operations per query-key pair."""

    window: int
    kv_bytes: float
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Whole-model totals. Bytes of weights by group, parameters that a token multiplies with, cache per token.

    ``kv_bytes``: full attention, per token of context, all layers, before any split; ``kv_heads`` says how far tensor
    parallelism divides it (1 for a latent cache). ``sparse_topk``: tokens that sparse attention reads, 0 = all of them;
    ``indexer_bytes``: index keys read per context token. ``state_bytes``: recurrent state of one sequence.
    ``decode_flops`` per query and context token, ``prefill_flops`` per query-key pair.
    """

    model_id: str
    format_id: str
    precision: str
    dense_compute: tuple[str, ...]
    expert_compute: tuple[str, ...]
    hidden: int
    layers: int
    moe_layers: int
    state_layers: int
    latent_layers: int
    dense_bytes: float
    dense_parameters: float
    head_bytes: float
    head_parameters: float
    expert_bytes: float
    expert_parameters: float
    num_experts: int
    experts_per_token: int
    kv_bytes: float
    kv_heads: int
    windows: tuple[WindowLayers, ...]
    sparse_topk: int
    indexer_bytes: float
    state_bytes: float
    decode_flops: float
    prefill_flops: float

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def weight_bytes(self) -> float:
        """Bytes of one whole copy that decoding may read (no embedding table beyond a tied head)."""
        return self.dense_bytes + self.head_bytes + self.expert_bytes


def compute_types(format_id: str) -> tuple[str, ...]:
    """What matrix products of a weight format run in when the GPU can; 16 bit otherwise.

    >>> compute_types("fp8-block128"), compute_types("awq-int4-g128")
    (('fp8',), ())
    """
    return next((types for start, types in COMPUTE_TYPES.items() if format_id.startswith(start)), ())


def precision_of(format_id: str) -> str:
    """The coarse precision under which coefficients are kept: bf16, fp8, fp4, int8 or int4.

    >>> precision_of("fp8-tensor"), precision_of("ct-int4-g32-sym"), precision_of("bf16"), precision_of("int8-w8a16")
    ('fp8', 'int4', 'bf16', 'int8')
    """
    for start, name in PRECISIONS:
        if format_id.startswith(start):
            return name
    if format_id in ("bf16", "fp32"):
        return "bf16"
    return "int8" if "int8" in format_id or "q8" in format_id else "int4"


_cache: OrderedDict[tuple[int, str, str], tuple[ModelSpec, StepWork]] = OrderedDict()


def step_work(spec: ModelSpec, fmt: WeightFormat, kv: KvFormat) -> StepWork:
    """The work of ``spec`` stored as ``fmt`` with a cache of ``kv``.

    >>> from capacity.catalog import model_spec
    >>> from capacity.precision import resolve_kv_format, resolve_weight_format
    >>> work = step_work(model_spec("llama-3.1-8b"), resolve_weight_format("bf16"), resolve_kv_format("auto"))
    >>> round(work.weight_bytes / 1e9, 2), work.kv_bytes
    (15.01, 131072.0)
    """
    key = (id(spec), fmt.id, kv.id)
    kept = _cache.get(key)
    if kept is None or kept[0] is not spec:
        kept = (spec, _step_work(spec, fmt, kv))
        _cache[key] = kept
        while len(_cache) > 512:
            _cache.popitem(last=False)
    return kept[1]


def _step_work(spec: ModelSpec, fmt: WeightFormat, kv: KvFormat) -> StepWork:
    modules = checkpoint_modules(spec, fmt)
    dense_parameters = float(sum(modules[name][0] for name in DENSE_MODULES))
    dense_bytes = sum(modules[name][0] * modules[name][1] for name in DENSE_MODULES)
    head, head_each = modules["embedding"] if spec.tie_word_embeddings else modules["lm_head"]
    experts, expert_each = modules["experts"]
    moe = next((layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoeMlp)), None)
    element = kv.element_bytes or 2.0
    kv_bytes = decode = prefill = state = indexer = 0.0
    heads, topk, latent = 10**9, 0, 0
    windows: dict[int, list[float]] = {}
    for mixer in spec.mixers():
        if isinstance(mixer, LatentAttention):
            width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
            kv_bytes += kv.record_bytes or width * element
            decode += 2.0 * mixer.num_heads * (width + mixer.kv_lora_rank)
            prefill += (
                2.0 * mixer.num_heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim)
            )
            heads, latent = 1, latent + 1
            if mixer.indexer is not None:
                topk = mixer.indexer.topk
                indexer += mixer.indexer.head_dim + 4
        elif isinstance(mixer, Attention):
            width = mixer.num_kv_heads * (mixer.head_dim + mixer.v_head_dim)
            flops = 2.0 * mixer.num_heads * (mixer.head_dim + mixer.v_head_dim)
            if mixer.window is None:
                kv_bytes += width * element
                decode += flops
                prefill += flops
                heads = min(heads, mixer.num_kv_heads)
            else:
                pair = windows.setdefault(mixer.window, [0.0, 0.0])
                pair[0] += width * element
                pair[1] += flops
        elif isinstance(mixer, RecurrentState):
            state += (
                mixer.num_heads
                * mixer.head_dim
                * mixer.state_size
                * (4.0 if mixer.state_dtype == "float32" else 2.0)
            )
    dense_share = dense_bytes / dense_parameters if dense_parameters else 2.0
    expert_types = compute_types(fmt.id) if expert_each < 1.9 else ()
    return StepWork(
        model_id=spec.model_id,
        format_id=fmt.id,
        precision=precision_of(fmt.id),
        dense_compute=compute_types(fmt.id) if dense_share < 1.5 else (),
        expert_compute=expert_types,
        hidden=spec.hidden_size,
        layers=spec.num_hidden_layers,
        moe_layers=sum(isinstance(layer.mlp, MoeMlp) for layer in spec.layers),
        state_layers=sum(any(isinstance(m, RecurrentState) for m in layer.mixers) for layer in spec.layers),
        latent_layers=latent,
        dense_bytes=dense_bytes,
        dense_parameters=dense_parameters,
        head_bytes=head * head_each,
        head_parameters=float(head),
        expert_bytes=experts * expert_each,
        expert_parameters=float(experts),
        num_experts=moe.num_experts if moe else 0,
        experts_per_token=min(moe.num_experts, moe.num_experts_per_tok) if moe else 0,
        kv_bytes=kv_bytes,
        kv_heads=heads
        if heads < 10**9
        else min((m.num_kv_heads for m in spec.mixers() if isinstance(m, Attention)), default=1),
        windows=tuple(
            WindowLayers(window=w, kv_bytes=pair[0], flops=pair[1]) for w, pair in sorted(windows.items())
        ),
        sparse_topk=topk,
        indexer_bytes=indexer,
        state_bytes=state,
        decode_flops=decode,
        prefill_flops=prefill,
    )
