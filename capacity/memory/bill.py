"""The memory bill of one GPU, term by term, with an interval, a basis and a source for each.

Source: vLLM's start-up accounting (worker memory profiling): budget = ceil(utilization x total); the KV cache gets
what weights, peak, non-torch memory and, where charged, graphs leave. Left out: swap and host memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Literal

from capacity.engine import EngineRelease
from capacity.hardware import Gpu
from capacity.memory.activation import Activation, activation
from capacity.memory.graphs import cuda_graphs
from capacity.memory.lora import lora_width
from capacity.memory.nontorch import non_torch
from capacity.memory.runner import ModelRunner, model_runner
from capacity.model import ModelSpec
from capacity.precision import WeightFormat
from capacity.units import GIB, gib

Basis = Literal["exact", "measured", "fitted", "assumed"]
COMPUTED_WEIGHTS_SPREAD = 0.01
MEASURED_WEIGHTS_SPREAD = 0.0005
GRAPH_VENDORS = ("NVIDIA", "AMD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One line of the bill in bytes, with its 80 % interval, its basis and one sentence of source."""

    name: str
    bytes: float
    low_bytes: float
    high_bytes: float
    basis: Basis
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBill:
    """One GPU's bill. ``terms`` in fixed order: weights, activation, cuda_graphs, non_torch, other.

    ``non_kv_bytes``: what is charged to the budget before KV. ``kv_cache`` may be negative: it does not fit.
    ``graphs_in_budget``: the graphs' estimate is charged (else they need room outside the budget).
    ``effective_utilization``: the utilization without the graphs' charge, as the log prints it.
    """

    total_bytes: int
    budget_bytes: int
    terms: tuple[Term, ...]
    kv_cache: Term
    non_kv_bytes: float
    graphs_in_budget: bool
    effective_utilization: float
    activation: Activation
    runner: ModelRunner


def memory_bill(
    *,
    spec: ModelSpec,
    gpu: Gpu | None,
    total_bytes: int,
    release: EngineRelease,
    gpu_memory_utilization: float,
    weights_bytes: float,
    weights_measured: bool,
    weight_format: WeightFormat,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    data_parallel_size: int,
    expert_parallel: bool,
    last_stage: bool,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    enforce_eager: bool,
    num_speculative_tokens: int,
    images_per_request: int | None,
    image_tokens: int | None,
    cuda_graph_gib: float | None,
    cpu_offload_gib: float,
    max_loras: int,
    max_lora_rank: int,
    draft_weights_bytes: float,
    first_stage: bool | None = None,
    element_bytes: int = 2,
    weights_high_bytes: float = 0.0,
) -> MemoryBill:
    """The bill of one GPU of one pipeline stage.

    ``weights_bytes``: this stage's fullest GPU; ``images_per_request`` 0 switches the vision tower off;
    ``weights_high_bytes``: computed weights with the most padding seen; ``cuda_graph_gib``: a measured figure in
    place of the estimate. Never raises for a model that does not fit.
    """
    version = release.version
    runner = model_runner(spec, release, quantised=weight_format.is_quantised)
    weights = _weights(weights_bytes, weights_measured, cpu_offload_gib, weights_high_bytes)
    first = (pipeline_parallel_size == 1 or not last_stage) if first_stage is None else first_stage
    peak = activation(
        spec=spec,
        version=version,
        runner=runner.name,
        hopper_or_newer=_hopper_or_newer(gpu, total_bytes),
        gpu_id=gpu.id if gpu is not None else "",
        keeps_experts_16_bit_buffers=spec.is_moe and weight_format.id != "mxfp4",
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        expert_parallel=expert_parallel,
        last_stage=last_stage,
        first_stage=first,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        image_tokens=image_tokens,
        images_off=images_per_request == 0,
        element_bytes=element_bytes,
    )
    outside = non_torch(
        gpu=gpu,
        total_gib=gib(total_bytes),
        version=version,
        runner=runner.name,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        max_num_seqs=max_num_seqs,
        vocab_size=spec.vocab_size,
    )
    graphs = _graphs(
        spec, gpu, release, runner, enforce_eager, cuda_graph_gib, pipeline_parallel_size, max_num_seqs,
        max_num_batched_tokens, num_speculative_tokens,
    )  # fmt: skip
    other = _other(spec, tensor_parallel_size, max_loras, max_lora_rank, draft_weights_bytes)
    budget = ceil(total_bytes * gpu_memory_utilization)
    terms = (
        weights,
        Term(
            name="activation",
            bytes=peak.bytes,
            low_bytes=peak.low_bytes,
            high_bytes=peak.high_bytes,
            basis="fitted",
            source=_peak_source(peak, max_num_seqs, max_num_batched_tokens, runner),
        ),
        graphs,
        Term(
            name="non_torch",
            bytes=outside.bytes,
            low_bytes=outside.low_bytes,
            high_bytes=outside.high_bytes,
            basis="fitted" if outside.known else "assumed",
            source=outside.source,
        ),
        other,
    )
    charged = [term for term in terms if term.name != "cuda_graphs" or runner.charges_graphs]
    non_kv = sum(term.bytes for term in charged)
    below = sqrt(
        sum((term.high_bytes - term.bytes) ** 2 for term in charged)
        + _budget_spread(gpu, total_bytes, budget)
    )
    above = sqrt(
        sum((term.bytes - term.low_bytes) ** 2 for term in charged) + _budget_spread(gpu, total_bytes, budget)
    )
    kv = budget - non_kv
    share = graphs.bytes / total_bytes if runner.charges_graphs else 0.0
    return MemoryBill(
        total_bytes=total_bytes,
        budget_bytes=budget,
        # The spread of a fit may reach below 0, which counts for KV; what a term itself takes does not.
        terms=tuple(replace(term, low_bytes=max(0.0, term.low_bytes)) for term in terms),
        kv_cache=Term(
            name="kv_cache",
            bytes=kv,
            low_bytes=kv - below,
            high_bytes=kv + above,
            basis="fitted",
            source=f"{gpu_memory_utilization:g} x {gib(total_bytes):.2f} GiB = {gib(budget):.2f} GiB, less the charged terms",
        ),
        non_kv_bytes=non_kv,
        graphs_in_budget=runner.charges_graphs,
        effective_utilization=round(gpu_memory_utilization - share, 4),
        activation=peak,
        runner=runner,
    )


def _hopper_or_newer(gpu: Gpu | None, total_bytes: int) -> bool:
    if gpu is None:
        return total_bytes > 70 * GIB
    head = gpu.compute_capability.split(".")[0]
    return gpu.vendor == "NVIDIA" and head.isdigit() and int(head) >= 9


def _weights(size: float, measured: bool, offload_gib: float, high: float) -> Term:
    kept = max(0.0, size - offload_gib * GIB)
    spread = (MEASURED_WEIGHTS_SPREAD if measured else COMPUTED_WEIGHTS_SPREAD) * kept
    moved = f", {offload_gib:g} GiB kept in host memory" if offload_gib else ""
    return Term(
        name="weights",
        bytes=kept,
        low_bytes=max(0.0, kept - spread),
        high_bytes=kept + spread + (0.0 if measured else max(0.0, high - size)),
        basis="measured" if measured else "fitted",
        source=(
            "the figure given" if measured else "parameters of the fullest rank times bytes per parameter"
        )
        + moved,
    )


def _graphs(
    spec: ModelSpec,
    gpu: Gpu | None,
    release: EngineRelease,
    runner: ModelRunner,
    enforce_eager: bool,
    given_gib: float | None,
    stages: int,
    seats: int,
    tokens: int,
    speculative: int,
) -> Term:
    charge = "charged to the budget" if runner.charges_graphs else "outside the budget in this release"
    if given_gib is not None:
        size = given_gib * GIB
        return Term(
            name="cuda_graphs",
            bytes=size,
            low_bytes=size,
            high_bytes=size,
            basis="measured",
            source=f"the figure given, {charge}",
        )
    if enforce_eager:
        return Term(
            name="cuda_graphs",
            bytes=0.0,
            low_bytes=0.0,
            high_bytes=0.0,
            basis="exact",
            source="enforce_eager: none is captured",
        )
    if gpu is not None and gpu.vendor not in GRAPH_VENDORS:
        source = f"{gpu.vendor} devices capture no CUDA graphs"
        return Term(
            name="cuda_graphs", bytes=0.0, low_bytes=0.0, high_bytes=0.0, basis="assumed", source=source
        )
    found = cuda_graphs(
        gpu=gpu,
        version=release.version,
        num_layers=len(spec.layers) // stages,
        max_num_seqs=seats,
        max_num_batched_tokens=tokens,
        num_speculative_tokens=speculative,
    )
    return Term(
        name="cuda_graphs",
        bytes=found.bytes,
        low_bytes=found.low_bytes,
        high_bytes=found.high_bytes,
        basis="fitted",
        source=f"{charge}; {found.source}",
    )


def _other(spec: ModelSpec, tp: int, loras: int, rank: int, draft: float) -> Term:
    slots = float(loras) * rank * lora_width(spec, tp) * 2 if loras else 0.0
    parts = []
    if loras:
        parts.append(f"{loras} LoRA slots of rank {rank} on attention and dense MLPs")
    if draft:
        parts.append(f"draft model {gib(draft):.2f} GiB")
    size = slots + draft
    return Term(
        name="other",
        bytes=size,
        low_bytes=0.9 * slots + draft,
        high_bytes=1.3 * slots + 1.02 * draft,
        basis="assumed" if size else "exact",
        source=", ".join(parts) or "no LoRA slots, no draft model",
    )


def _budget_spread(gpu: Gpu | None, total_bytes: int, budget: int) -> float:
    """Square of the budget's half width where the card's total is the catalogue's and not the user's own figure."""
    if gpu is None or gpu.memory_gib is None or abs(total_bytes - gpu.memory_gib * GIB) > GIB / 1024:
        return 0.0
    if gpu.memory_low_gib is None or gpu.memory_high_gib is None:
        return 0.0
    return ((gpu.memory_high_gib - gpu.memory_low_gib) / 4 * GIB * budget / total_bytes) ** 2


def _peak_source(peak: Activation, seats: int, tokens: int, runner: ModelRunner) -> str:
    what = {
        "sampler": f"the dummy sampler of {seats:,} seats ({peak.sampler})",
        "forward pass": f"the forward pass of {tokens:,} tokens",
        "vision tower": "the vision tower with its largest image",
    }[peak.set_by]
    parts = [f"set by {what}, {runner.name} runner"]
    if peak.experts_bytes:
        parts.append(f"expert buffers {gib(peak.experts_bytes):.2f} GiB")
    if peak.encoder_bytes:
        parts.append(f"encoder cache {gib(peak.encoder_bytes):.2f} GiB")
    return "; ".join(parts)
