"""Formats, caches and layouts of one model side by side at one load, and disaggregated prefill as an option.

Source: estimate.py per variant; which quality warnings exist, with their source, in QUALITY. Left out: a quality figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capacity.errors import CapacityError
from capacity.parallelism import valid_tensor_parallel_sizes
from capacity.performance.deployment import Planned, planned
from capacity.performance.predict import forecast
from capacity.performance.records import SLOWEST_PCIE_GBS, Forecast
from capacity.precision import resolve_weight_format
from capacity.resolve import model_of
from capacity.scenario import Scenario
from capacity.speed_grid import side_by_side
from capacity.units import GIB
from capacity.weight_bytes import quantised_share

WEIGHTS = ("bf16", "fp8", "int8-w8a8", "awq", "gptq", "nvfp4", "mxfp4")
CACHES = ("auto", "fp8")
QUALITY = {
    "16 bit": "the checkpoint's own quality",
    "8 bit": "near lossless in published evaluations; check long contexts (Kurtic et al., 2024, arXiv 2411.02355)",
    "4 bit": "small losses on average, larger on hard reasoning and small models (Kurtic et al., 2024, arXiv 2411.02355)",
    "fp8 cache": "small losses; needs calibrated scales for some models (vLLM documentation, quantized KV cache)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """A choice of what stays in host memory."""

    key: str
    label: str
    changes: Mapping[str, float]


OFFLOADS = (
    Offload(key="none", label="nothing in host memory", changes={}),
    Offload(key="kv", label="KV blocks, 64 GiB in host memory", changes={"kv_offloading_size_gib": 64.0}),
    Offload(key="weights", label="weights, 8 GiB per GPU in host memory", changes={"cpu_offload_gib": 8.0}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row. Figures are None with ``reason`` where it cannot run. ``weights_gib``: on the fullest GPU.

    ``traffic_gb_per_s``: bytes that one GPU sends over its link per second of decoding, in 1e9. ``note``: what a host tier does.
    """

    changes: dict[str, Any]
    gpus: int | None
    weights_gib: float | None
    kv_concurrency: float | None
    forecast: Forecast | None
    traffic_gb_per_s: float | None
    quality: str
    quality_kinds: tuple[str, ...]
    reason: str | None
    note: str = ""


def format_variants(
    scenario: Scenario,
    *,
    concurrency: float,
    weights: Sequence[str] = WEIGHTS,
    caches: Sequence[str] = CACHES,
    prefix: bool | None = None,
    offload: Offload | None = None,
) -> list[Variant]:
    """Weight formats x cache formats at one choice of prefix sharing (None: as the scenario has it) and offload. A format
    that would quantise nothing of this model (mxfp4 without experts) is left out."""
    spec = model_of(scenario)
    useful = [w for w in weights if w == "bf16" or quantised_share(spec, resolve_weight_format(w, spec)) > 0]
    common: dict[str, Any] = {} if prefix is None else {"enable_prefix_caching": prefix}
    if offload is not None:
        common |= offload.changes
    return _variants(
        scenario,
        [{"weight_format": w, "kv_cache_dtype": c, **common} for w in useful for c in caches],
        concurrency,
    )


def option_variants(scenario: Scenario, *, concurrency: float) -> list[Variant]:
    """Every weight format x cache format x prefix sharing x offload, in that order."""
    return [
        row
        for prefix in (False, True)
        for offload in OFFLOADS
        for row in format_variants(scenario, concurrency=concurrency, prefix=prefix, offload=offload)
    ]


def prefix_note(scenario: Scenario, prefix: bool | None) -> str:
    """What a choice of prefix sharing means for this workload."""
    shared = scenario.shared_prefix_tokens
    if prefix is False or (prefix is None and scenario.enable_prefix_caching is False):
        return "each request keeps and computes its whole prompt"
    if not shared:
        return "no shared_prefix_tokens are given, so sharing saves nothing"
    return f"the first {shared:,} tokens of all prompts are kept and computed once"


def host_tier(found: Planned) -> str:
    """What a tier of KV blocks in host memory holds and what a prompt that comes back from it costs; empty without one."""
    size = found.plan.resolved.scenario.kv_offloading_size_gib
    if not size:
        return ""
    d = found.deployment
    cache = found.prompt_tokens * d.work.kv_bytes + d.work.state_bytes
    load = cache / d.layout.tensor / ((d.gpu.pcie_gbs or SLOWEST_PCIE_GBS) * 1e9)
    alone = forecast(d, np.array([1.0]), found.prompt_tokens, found.output_tokens)
    held = int(size * GIB / cache) if cache else 0
    return (
        f"{size:g} GiB of host memory hold {held:,} more prompts of {found.prompt_tokens:,.0f} tokens for when they come back; "
        f"loading one takes at least {load * 1e3:,.1f} ms, computing it about {float(alone.ttft_s.value[0]) * 1e3:,.0f} ms"
    )


def layout_variants(scenario: Scenario, *, gpus: int, concurrency: float) -> list[Variant]:
    """Every legal TP x PP x DP of exactly ``gpus`` GPUs, with and without whole experts where the model has them."""
    spec = model_of(scenario)
    legal = set(valid_tensor_parallel_sizes(spec))
    changes: list[dict[str, Any]] = []
    for tensor in sorted(t for t in legal if gpus % t == 0):
        for pipeline in (
            p for p in (1, 2, 4, 8, 16) if (gpus // tensor) % p == 0 and p <= spec.num_hidden_layers
        ):
            data = gpus // tensor // pipeline
            for whole in (False, True) if spec.is_moe and tensor * data > 1 else (False,):
                changes.append(
                    {
                        "tensor_parallel_size": tensor,
                        "pipeline_parallel_size": pipeline,
                        "data_parallel_size": data,
                        "enable_expert_parallel": whole,
                    }
                )
    return _variants(scenario, changes, concurrency)


def _variants(scenario: Scenario, changes: Sequence[dict[str, Any]], concurrency: float) -> list[Variant]:
    found = []
    for row, change in zip(side_by_side(scenario, changes, concurrency=concurrency), changes, strict=True):
        plan, speed = row["planned"], row["forecast"]
        kinds = quality_kinds(change, plan)
        found.append(
            Variant(
                changes=change,
                gpus=plan.deployment.layout.gpus if plan else None,
                weights_gib=_weights_gib(plan) if plan else None,
                kv_concurrency=plan.kv_requests if plan else None,
                forecast=speed,
                traffic_gb_per_s=_traffic(plan, speed) if plan else None,
                quality=_quality(kinds),
                quality_kinds=kinds,
                reason=row["reason"],
                note=host_tier(plan) if plan else "",
            )
        )
    return found


def _weights_gib(found: Planned) -> float:
    return float(max(stage.total for stage in found.plan.weights.stages) - found.deployment.host_bytes) / GIB


def _traffic(plan: Any, speed: Forecast) -> float:
    work, layout = plan.deployment.work, plan.deployment.layout
    batch = max(float(speed.running[0]) / layout.pipeline / layout.data, 1.0)
    tensor = layout.tensor
    reduce_ = 4.0 * work.layers * work.hidden * 2.0 * (tensor - 1) / tensor * batch
    ranks = tensor * layout.data
    exchange = 0.0
    if layout.experts_whole and ranks > 1:
        exchange = (
            (ranks - 1)
            / ranks
            * work.moe_layers
            * work.hidden
            * 3.0
            * work.experts_per_token
            * batch
            * layout.data
            / layout.gpus
        )
    step_s = sum(float(part[0]) for part in speed.parts.values())
    return float((reduce_ + exchange) / step_s / 1e9)


def quality_kinds(change: Mapping[str, Any], found: Planned | None) -> tuple[str, ...]:
    """Keys of QUALITY that apply to a variant."""
    parts = []
    if found is not None:
        size = found.deployment.work.precision
        parts.append("16 bit" if size == "bf16" else "8 bit" if size in ("fp8", "int8") else "4 bit")
    if str(change.get("kv_cache_dtype", "")).startswith("fp8"):
        parts.append("fp8 cache")
    return tuple(parts)


def _quality(kinds: Sequence[str]) -> str:
    return "; ".join(
        QUALITY[kind] if kind != "fp8 cache" else f"fp8 cache: {QUALITY[kind]}" for kind in kinds
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregated:
    """Prefill and decode on GPUs of their own. Figures for the given split; ``transfer_s``: one prompt's cache over a link.

    The decode side runs without neighbours' prompts, the prefill side one prompt at a time.
    """

    prefill_replicas: int
    decode_replicas: int
    gpus: int
    requests_per_s: float
    limited_by: str
    ttft_s: float
    tpot_s: float
    transfer_s: float
    colocated_requests_per_s: float
    notes: tuple[str, ...]


def disaggregated(
    scenario: Scenario, *, prefill_replicas: int, decode_replicas: int, concurrency: float
) -> Disaggregated:
    """A pool with ``prefill_replicas`` and ``decode_replicas`` of the scenario's layout, ``concurrency`` requests per decode
    replica, against the same GPUs each doing both. No measured point: extrapolated throughout."""
    if prefill_replicas < 1 or decode_replicas < 1:
        raise CapacityError(
            "a disaggregated pool needs at least one prefill and one decode replica",
            field="data_parallel_size",
        )
    found = planned(scenario)
    if found.output_tokens <= 1:
        raise CapacityError(
            "output_tokens is 1; expected at least 2: with one token there is no decode to move to other GPUs",
            field="output_tokens",
        )
    d, gpu = found.deployment, found.deployment.gpu
    link = (gpu.interconnect_gbs if gpu.has_fast_links else None) or (gpu.pcie_gbs or 16.0) / 2
    one = forecast(d, np.array([1.0]), found.prompt_tokens, found.output_tokens)
    together = forecast(d, np.array([float(concurrency)]), found.prompt_tokens, found.output_tokens)
    prefill_s = float(together.parts["prefill"][0])
    tpot = float(together.tpot_s.value[0]) - prefill_s
    first = float(one.ttft_s.value[0])
    cache = found.prompt_tokens * d.work.kv_bytes + d.work.state_bytes
    transfer = cache / (link * 1e9 * d.layout.tensor)
    decode_rate = decode_replicas * float(together.running[0]) / (found.output_tokens * tpot)
    prefill_rate = prefill_replicas / first
    replicas = prefill_replicas + decode_replicas
    return Disaggregated(
        prefill_replicas=prefill_replicas,
        decode_replicas=decode_replicas,
        gpus=replicas * d.layout.gpus,
        requests_per_s=min(decode_rate, prefill_rate),
        limited_by="prefill" if prefill_rate < decode_rate else "decode",
        ttft_s=first + transfer,
        tpot_s=tpot,
        transfer_s=transfer,
        colocated_requests_per_s=replicas * float(together.requests_per_s.value[0]),
        notes=(
            "no measured point of a disaggregated pool is behind this",
            "the cache moves over the GPUs' own link; a network is slower",
        ),
    )


def disaggregated_splits(scenario: Scenario, *, replicas: int, concurrency: float) -> list[Disaggregated]:
    """Every split of ``replicas`` of the scenario's layout into prefill and decode, the most requests/s first.

    Raises CapacityError for fewer than 2 replicas, or where one does not fit.
    """
    if not 2 <= replicas <= 64:
        raise CapacityError(
            f"{replicas:,} replicas cannot be split into prefill and decode; expected 2 to 64",
            field="data_parallel_size",
        )
    rows = [
        disaggregated(scenario, prefill_replicas=n, decode_replicas=replicas - n, concurrency=concurrency)
        for n in range(1, replicas)
    ]
    return sorted(rows, key=lambda row: -row.requests_per_s)
