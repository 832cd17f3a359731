"""The memory bill of one GPU, term by term, with an interval, a basis and a source for each.

Source: public start-up logs (docs/memory.md). Left out: what other processes do after start-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from capacity.engine import EngineRelease
from capacity.hardware import Gpu
from capacity.model import DenseMlp, ModelSpec, MoeMlp
from capacity.precision import WeightFormat
from capacity.units import GIB, gib

Basis = Literal["exact", "measured", "fitted", "assumed"]


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
    """

    total_bytes: int
    budget_bytes: int
    terms: tuple[Term, ...]
    kv_cache: Term
    non_kv_bytes: float
    graphs_in_budget: bool
    effective_utilization: float


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
) -> MemoryBill:
    """The bill of one GPU."""
    hidden, tokens, tp = spec.hidden_size, max_num_batched_tokens, tensor_parallel_size
    dense = max(
        (layer.mlp.intermediate_size for layer in spec.layers if isinstance(layer.mlp, DenseMlp)), default=0
    )
    forward = tokens * (3 * dense / tp + 4.25 * hidden) * 2
    moe = 0.0
    if spec.is_moe and release.version >= (0, 17, 0) and weight_format.id != "mxfp4":
        mlp = next(layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoeMlp))
        n = 2 * mlp.moe_intermediate_size / tp
        moe = tokens * mlp.num_experts_per_tok * (max(n / 2, hidden) + max(n, hidden)) * 2
    sampler = release.activation_factor * max_num_seqs * spec.vocab_size * 4 + tokens * hidden * 2
    encoder = tokens * hidden * 2 if spec.encoder is not None else 0.0
    peak = max(forward, (sampler if last_stage else 0.0) + moe) + encoder
    non_torch = (0.25 if tp == 1 else 2.1 if release.version >= (0, 18, 0) else 0.54) * GIB
    graphs = 0.0 if enforce_eager else 0.9 * GIB
    if cuda_graph_gib is not None:
        graphs = cuda_graph_gib * GIB
    loras = max_loras * max_lora_rank * hidden * 14 * len(spec.layers) * 2 / tp
    weights = max(0.0, weights_bytes - cpu_offload_gib * GIB)
    other = loras + draft_weights_bytes
    budget = ceil(total_bytes * gpu_memory_utilization)
    charged = weights + peak + non_torch + other + (graphs if release.graphs_in_budget else 0.0)
    kv = budget - charged
    source = "formula of docs/memory.md"
    spread = 0.15 * peak + 0.2 * GIB

    def term(name: str, value: float, width: float, basis: Basis) -> Term:
        low = max(0.0, value - width)
        return Term(
            name=name, bytes=value, low_bytes=low, high_bytes=value + width, basis=basis, source=source
        )

    return MemoryBill(
        total_bytes=total_bytes,
        budget_bytes=budget,
        terms=(
            term(
                "weights",
                weights,
                0.0 if weights_measured else 0.01 * weights,
                "measured" if weights_measured else "fitted",
            ),
            term("activation", peak, 0.15 * peak, "fitted"),
            term("cuda_graphs", graphs, 0.4 * graphs, "fitted"),
            term("non_torch", non_torch, 0.3 * non_torch, "fitted"),
            term("other", other, 0.0, "assumed"),
        ),
        kv_cache=Term(
            name="kv_cache",
            bytes=kv,
            low_bytes=kv - spread,
            high_bytes=kv + spread,
            basis="fitted",
            source=f"{gib(budget):.2f} GiB less the terms above",
        ),
        non_kv_bytes=charged,
        graphs_in_budget=release.graphs_in_budget,
        effective_utilization=gpu_memory_utilization,
    )
