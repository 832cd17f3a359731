"""A scenario made whole: the model, the GPU, the release, and every default that the engine would take.

Each default is listed as an assumption with its source. Left out: bytes (weights, memory, kv_cache).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from capacity.assumptions import Assumption
from capacity.catalog import model_spec
from capacity.engine import EngineRelease, engine_release, on_device, scheduler_defaults
from capacity.errors import CapacityError
from capacity.hardware import Gpu, find_gpu
from capacity.hf_config import parse_config_text
from capacity.kv_cache.state import dtype_bytes
from capacity.model import Attention, LatentAttention, ModelSpec
from capacity.parallelism import Parallelism, cut
from capacity.precision import KvFormat, WeightFormat, resolve_kv_format, resolve_weight_format
from capacity.scenario import Scenario
from capacity.units import GIB, from_gib

# Tokens of one MLA block by the major compute capability that picks the kernel (FlashMLA 64, Triton MLA 16).
MLA_BLOCK_SIZE = {9: 64, 10: 64, 12: 64}
DEFAULT_BLOCK_SIZE = 16
V0_CHUNKED_FROM = 32_768
LENGTH_WITHOUT_LIMIT = 2048
SERVED_DTYPES = ("bfloat16", "float16")
LONGROPE_TRAINED_FROM = (0, 11, 1)
# The one release whose kv_cache_dtype auto means fp8_ds_mla for sparse MLA (models/config.py).
SPARSE_AUTO_PACKED = (0, 11, 0)
# Decode context parallel beside recurrent state: last release known to refuse it, first known to take it.
STATE_CONTEXT_REFUSED = (0, 20, 2)
STATE_CONTEXT_FROM = (0, 29, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Everything the planner needs, nothing left open. ``total_bytes`` None = neither GPU nor memory is known."""

    scenario: Scenario
    spec: ModelSpec
    gpu: Gpu | None
    total_bytes: int | None
    release: EngineRelease
    parallel: Parallelism
    weight_format: WeightFormat
    kv_format: KvFormat
    kv_dtype: str
    model_dtype_bytes: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    prefix_caching: bool
    async_scheduling: bool
    hybrid_manager: bool
    concurrent_steps: int
    speculative_method: str | None
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


@lru_cache(maxsize=256)
def _spec_of_config(text: str, accept_upper_bound: bool) -> ModelSpec:
    return parse_config_text(text, accept_upper_bound=accept_upper_bound)


def model_of(scenario: Scenario) -> ModelSpec:
    """The scenario's model. Raises CapacityError when there is none or it is unknown."""
    if scenario.model_config is not None:
        return _spec_of_config(scenario.model_config, scenario.accept_upper_bound)
    if scenario.model is None:
        raise CapacityError("model is missing; give model (a catalogue id) or model_config", field="model")
    return model_spec(scenario.model)


def resolve(scenario: Scenario) -> Resolved:
    """Fill every open key with the release's default and say so."""
    spec = model_of(scenario)
    taken: list[Assumption] = []
    warnings: list[str] = []
    # Releases of other engines say nothing about vLLM's rules, which stand in for theirs.
    release = engine_release(scenario.engine_version if scenario.engine == "vllm" else None)
    if scenario.engine_version is None:
        taken.append(_assume("engine_version", release.asked, "the latest release whose rules are known"))
    warnings.extend(release.notes)
    if scenario.engine != "vllm":
        warnings.append(
            f"{scenario.engine} sizes its pool by rules of its own; these are vLLM {release.asked}'s, taken as a guide"
        )
    gpu, total_bytes = _memory(scenario, taken)
    release = on_device(release, gpu)
    parallel = cut(
        spec,
        tensor=scenario.tensor_parallel_size,
        pipeline=scenario.pipeline_parallel_size,
        split=scenario.pipeline_layer_split,
        data=scenario.data_parallel_size,
        expert=scenario.enable_expert_parallel,
        decode_context=scenario.decode_context_parallel_size,
    )
    wanted, asked_dtype = scenario.weight_format, _asked_dtype(scenario)
    if (
        wanted is None
        and spec.quantization is None
        and asked_dtype
        and dtype_bytes(asked_dtype, "dtype") == 4
    ):
        wanted = "fp32"
    weight_format = resolve_weight_format(wanted, spec)
    if scenario.weight_format is None or scenario.weight_format != weight_format.id:
        origin = (
            "the checkpoint's own"
            if scenario.weight_format is None
            else f"taken for {scenario.weight_format!r}"
        )
        taken.append(_assume("weight_format", f"{weight_format.id} ({weight_format.name})", origin))
    kv_dtype, kv_format = _kv(scenario, spec, release, taken)
    model_dtype_bytes = dtype_bytes(_dtype(scenario, spec, taken), "dtype")
    if kv_dtype.lower() == "auto":
        kv_format = replace(kv_format, element_bytes=float(model_dtype_bytes))
    max_model_len = _length(scenario, spec, release, taken)
    block = _block_size(scenario, spec, gpu, release, taken)
    if scenario.block_size is not None:
        warnings.extend(_other_block(scenario.block_size, spec, gpu, release))
    seats, tokens = _scheduler(scenario, spec, release, gpu, total_bytes, max_model_len, taken)
    utilization = scenario.gpu_memory_utilization
    if utilization is None:
        utilization = release.gpu_memory_utilization
        taken.append(
            _assume(
                "gpu_memory_utilization",
                f"{utilization:.2f}",
                f"default of {release.asked}: {release.source}",
            )
        )
    prefix = scenario.enable_prefix_caching
    if prefix is None:
        prefix = release.runner == "v1" and (not spec.has_state or release.state_prefix_caching)
        why = (
            "models with recurrent state cache prefixes since 0.26"
            if spec.has_state
            else "on by default in V1"
        )
        taken.append(_assume("enable_prefix_caching", str(prefix).lower(), why))
    asynchronous = scenario.async_scheduling
    if asynchronous is None:
        asynchronous = release.async_scheduling and parallel.pipeline == 1
        taken.append(
            _assume(
                "async_scheduling",
                str(asynchronous).lower(),
                "on by default since 0.14, not with pipeline stages",
            )
        )
    steps = 1
    if release.kv.concurrent_steps_counted:
        steps = (1 if asynchronous else 0) + parallel.pipeline
    hybrid = not scenario.disable_hybrid_kv_cache_manager and release.runner == "v1"
    if parallel.decode_context > 1:
        warnings.extend(_check_decode_context(spec, release, hybrid))
    return Resolved(
        scenario=scenario,
        spec=spec,
        gpu=gpu,
        total_bytes=total_bytes,
        release=release,
        parallel=parallel,
        weight_format=weight_format,
        kv_format=kv_format,
        kv_dtype=kv_dtype,
        model_dtype_bytes=model_dtype_bytes,
        block_size=block,
        max_model_len=max_model_len,
        max_num_seqs=seats,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=utilization,
        prefix_caching=prefix,
        async_scheduling=asynchronous,
        hybrid_manager=hybrid,
        concurrent_steps=steps,
        speculative_method=_speculation(scenario, spec, taken),
        assumptions=tuple(taken),
        warnings=tuple(warnings),
    )


def _assume(key: str, value: str, source: str) -> Assumption:
    return Assumption(key=key, value=value, source=source)


def _memory(scenario: Scenario, taken: list[Assumption]) -> tuple[Gpu | None, int | None]:
    gpu = find_gpu(scenario.gpu) if scenario.gpu is not None else None
    if scenario.gpu_memory_gib is not None:
        return gpu, from_gib(scenario.gpu_memory_gib)
    if gpu is None:
        return None, None
    if gpu.memory_gib is None:
        raise CapacityError(
            f"the memory that the engine sees on {gpu.name} is not known; give gpu_memory_gib",
            field="gpu_memory_gib",
        )
    taken.append(
        _assume("gpu_memory_gib", f"{gpu.memory_gib:g}", f"{gpu.name}, {gpu.memory_basis}: {gpu.source}")
    )
    return gpu, round(gpu.memory_gib * GIB)


def _kv(
    scenario: Scenario, spec: ModelSpec, release: EngineRelease, taken: list[Assumption]
) -> tuple[str, KvFormat]:
    asked = scenario.kv_cache_dtype
    dtype = asked
    if asked is None or asked.lower() == "auto":
        own = spec.quantization.kv_cache_dtype if spec.quantization else None
        dtype = own or "auto"
        why = "the checkpoint's own KV format" if own else "auto: the model's dtype"
        taken.append(_assume("kv_cache_dtype", own or _asked_dtype(scenario) or _served_dtype(spec), why))
    fmt = resolve_kv_format(dtype)
    sparse = any(isinstance(m, LatentAttention) and m.indexer is not None for m in spec.kinds())
    packed_by_itself = (dtype or "auto").lower() == "auto" and release.version == SPARSE_AUTO_PACKED
    if sparse and (fmt.id == "kv-fp8" or packed_by_itself):
        why = "sparse MLA with fp8 keeps the packed 656-byte record"
        if packed_by_itself:
            why = f"{release.asked} takes the packed 656-byte record for sparse MLA unless bfloat16 is asked for"
        taken[:] = [a for a in taken if a.key != "kv_cache_dtype"]
        taken.append(_assume("kv_cache_dtype", "fp8_ds_mla", why))
        return "fp8_ds_mla", resolve_kv_format("fp8_ds_mla")
    return dtype or "auto", fmt


def _served_dtype(spec: ModelSpec) -> str:
    """What the engine's dtype "auto" takes: the checkpoint's where it is 16 bit, else bfloat16."""
    return spec.dtype if spec.dtype in SERVED_DTYPES else SERVED_DTYPES[0]


def _asked_dtype(scenario: Scenario) -> str | None:
    """The dtype that the scenario sets; "auto", the engine's own default, sets none."""
    return None if (scenario.dtype or "auto").lower() == "auto" else scenario.dtype


def _dtype(scenario: Scenario, spec: ModelSpec, taken: list[Assumption]) -> str:
    asked = _asked_dtype(scenario)
    if asked is not None:
        return asked
    served = _served_dtype(spec)
    if served != spec.dtype:
        why = f"the engine's dtype auto takes {served} where the config says {spec.dtype}"
        if spec.dtype == "float32":
            why += "; set dtype to keep it"
        taken.append(_assume("dtype", served, why))
    return served


def _check_decode_context(spec: ModelSpec, release: EngineRelease, hybrid: bool) -> list[str]:
    """Refuses what the engine's start-up asserts forbid beside decode context parallel; the rest is a warning."""
    windowed = any(
        isinstance(m, Attention) and m.window is not None and not m.shares_kv for m in spec.kinds()
    )
    if windowed and hybrid:
        raise CapacityError(
            "decode_context_parallel_size above 1 does not work with sliding-window layers; "
            "expected 1, or disable_hybrid_kv_cache_manager, which keeps every token",
            field="decode_context_parallel_size",
        )
    if spec.has_state and release.version <= STATE_CONTEXT_REFUSED:
        raise CapacityError(
            f"decode_context_parallel_size above 1 does not work with recurrent state in release {release.asked}; "
            "expected 1",
            field="decode_context_parallel_size",
        )
    if spec.has_state and release.version < STATE_CONTEXT_FROM:
        return [
            "decode context parallel beside recurrent state is refused up to 0.20.2 and works in 0.29; "
            f"whether {release.asked} starts with it is not known"
        ]
    return []


def _length(scenario: Scenario, spec: ModelSpec, release: EngineRelease, taken: list[Assumption]) -> int:
    limit = spec.max_position_embeddings
    trained = int(spec.extra.get("longrope_length", 0))
    if scenario.max_model_len is None and trained and release.version >= LONGROPE_TRAINED_FROM:
        why = "LongRoPE: the engine takes the trained length unless a longer one is asked for (0.11.1 and newer)"
        taken.append(_assume("max_model_len", f"{trained:,}", why))
        return trained
    if scenario.max_model_len is None:
        if limit is None:
            why = "the config states no limit: the engine assumes this"
            taken.append(_assume("max_model_len", f"{LENGTH_WITHOUT_LIMIT:,}", why))
            return LENGTH_WITHOUT_LIMIT
        taken.append(
            _assume("max_model_len", f"{limit:,}", "the model's own limit (max_position_embeddings)")
        )
        return limit
    if limit is not None and scenario.max_model_len > limit:
        raise CapacityError(
            f"max_model_len is {scenario.max_model_len:,}, above the model's {limit:,} (max_position_embeddings); "
            f"expected at most {limit:,}",
            field="max_model_len",
        )
    return scenario.max_model_len


def _other_block(asked: int, spec: ModelSpec, gpu: Gpu | None, release: EngineRelease) -> list[str]:
    """A warning where the MLA kernel of the card takes other blocks than the one asked for."""
    major = gpu.compute_capability.split(".")[0] if gpu is not None and gpu.vendor == "NVIDIA" else ""
    wanted = MLA_BLOCK_SIZE.get(int(major)) if major.isdigit() else None
    if not spec.uses_mla or release.runner != "v1" or wanted is None or asked % wanted == 0:
        return []
    return [
        f"block_size {asked} is no multiple of {wanted}, which the MLA kernels of {gpu.name if gpu else 'this card'} take: "
        f"the engine may set {wanted} itself or take another kernel"
    ]


def _block_size(
    scenario: Scenario, spec: ModelSpec, gpu: Gpu | None, release: EngineRelease, taken: list[Assumption]
) -> int:
    if scenario.block_size is not None:
        return scenario.block_size
    block, why = DEFAULT_BLOCK_SIZE, "default of the attention backends"
    if spec.uses_mla and release.runner == "v1":
        capability = gpu.compute_capability if gpu is not None else ""
        major = int(capability.split(".")[0]) if capability.split(".")[0].isdigit() else None
        sparse = any(isinstance(m, LatentAttention) and m.indexer is not None for m in spec.kinds())
        block = 64 if sparse or major is None else MLA_BLOCK_SIZE.get(major, DEFAULT_BLOCK_SIZE)
        why = f"MLA kernel on compute capability {capability or 'not known'}"
    taken.append(_assume("block_size", str(block), why))
    return block


def _scheduler(
    scenario: Scenario,
    spec: ModelSpec,
    release: EngineRelease,
    gpu: Gpu | None,
    total_bytes: int | None,
    max_model_len: int,
    taken: list[Assumption],
) -> tuple[int, int]:
    total = total_bytes / GIB if total_bytes is not None else 0.0
    usage: Literal["api_server", "llm_class"] = "llm_class" if scenario.usage == "llm_class" else "api_server"
    defaults = scheduler_defaults(release, total_gib=total, gpu_name=gpu.name if gpu else "", usage=usage)
    where = f"{release.asked}, {usage}, {gpu.name if gpu else 'GPU not given'}: {defaults.source}"
    seats = scenario.max_num_seqs
    if seats is None:
        seats = defaults.max_num_seqs
        taken.append(_assume("max_num_seqs", f"{seats:,}", f"default of {where}"))
    tokens = scenario.max_num_batched_tokens
    if tokens is None:
        tokens = defaults.max_num_batched_tokens
        if release.runner == "v0" and not _v0_chunks_prefill(spec, gpu, max_model_len):
            tokens = max(tokens, max_model_len)
        else:
            tokens = min(tokens, seats * max_model_len)
        taken.append(_assume("max_num_batched_tokens", f"{tokens:,}", f"default of {where}"))
    return seats, tokens


def _v0_chunks_prefill(spec: ModelSpec, gpu: Gpu | None, max_model_len: int) -> bool:
    """V0 chunks prefill by default above 32K tokens, on CUDA only, not for multimodal, MLA or windowed models."""
    windowed = any(isinstance(m, Attention) and m.window is not None for m in spec.kinds())
    barred = (
        spec.encoder is not None or spec.uses_mla or windowed or (gpu is not None and gpu.vendor != "NVIDIA")
    )
    return max_model_len > V0_CHUNKED_FROM and not barred


def _speculation(scenario: Scenario, spec: ModelSpec, taken: list[Assumption]) -> str | None:
    if scenario.draft_model is not None:
        return "draft_model"
    if scenario.num_speculative_tokens == 0:
        return None
    if scenario.speculative_method is not None:
        if scenario.speculative_method == "draft_model":
            raise CapacityError("speculative_method draft_model needs draft_model", field="draft_model")
        return scenario.speculative_method
    method = "mtp" if spec.mtp_layers else "eagle"
    why = (
        "the checkpoint has such layers"
        if spec.mtp_layers
        else "one extra layer like the model's own is assumed"
    )
    taken.append(_assume("speculative_method", method, why))
    return method
