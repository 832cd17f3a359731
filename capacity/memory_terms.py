"""The memory bill of each pipeline stage's fullest GPU for a resolved scenario.

Joins the weights, the memory terms and the scenario's own measured figures. Left out: how a term is estimated
(memory).
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.assumptions import Assumption
from capacity.catalog import model_spec
from capacity.errors import CapacityError
from capacity.memory import MemoryBill, memory_bill
from capacity.model import ModelSpec
from capacity.parallelism import cut
from capacity.parameters import count_parameters
from capacity.precision import resolve_weight_format
from capacity.resolve import Resolved
from capacity.units import GIB
from capacity.weights import Weights, expert_padding, weights_per_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBills:
    """One bill per pipeline stage. ``tightest``: the stage with the least KV memory."""

    bills: tuple[MemoryBill, ...]
    weights: Weights
    tightest: int
    kv_bytes: tuple[int, ...]
    kv_low_bytes: tuple[int, ...]
    kv_high_bytes: tuple[int, ...]
    assumptions: tuple[Assumption, ...] = ()


def stage_bills(r: Resolved) -> StageBills | None:
    """Bills of all stages; None when neither the GPU nor its memory is known."""
    if r.total_bytes is None:
        return None
    s = r.scenario
    weights = weights_of(r)
    scale = s.parameters / count_parameters(r.spec).total if s.parameters else 1.0
    last = r.parallel.pipeline - 1
    bills = []
    for index, stage in enumerate(weights.stages):
        measured = s.weights_gib * GIB if s.weights_gib is not None else None
        bills.append(
            memory_bill(
                spec=r.spec,
                gpu=r.gpu,
                total_bytes=r.total_bytes,
                release=r.release,
                gpu_memory_utilization=r.gpu_memory_utilization,
                weights_bytes=measured if measured is not None else stage.total * scale,
                weights_measured=measured is not None,
                weights_high_bytes=stage.high * scale,
                weight_format=r.weight_format,
                tensor_parallel_size=r.parallel.tensor,
                pipeline_parallel_size=r.parallel.pipeline,
                data_parallel_size=r.parallel.data,
                expert_parallel=r.parallel.expert,
                last_stage=index == last,
                first_stage=index == 0,
                element_bytes=r.model_dtype_bytes,
                max_num_seqs=r.max_num_seqs,
                max_num_batched_tokens=r.max_num_batched_tokens,
                max_model_len=r.max_model_len,
                enforce_eager=s.enforce_eager,
                num_speculative_tokens=s.num_speculative_tokens,
                images_per_request=s.images_per_request,
                image_tokens=s.image_tokens,
                cuda_graph_gib=s.cuda_graph_gib,
                cpu_offload_gib=s.cpu_offload_gib,
                max_loras=s.max_loras,
                max_lora_rank=s.max_lora_rank,
                draft_weights_bytes=_draft_weights(r) if index == last else 0.0,
            )
        )
    kv = tuple(max(0, int(b.kv_cache.bytes)) for b in bills)
    return StageBills(
        bills=tuple(bills),
        weights=weights,
        tightest=min(range(len(kv)), key=lambda i: bills[i].kv_cache.bytes),
        kv_bytes=kv,
        kv_low_bytes=tuple(max(0, int(b.kv_cache.low_bytes)) for b in bills),
        kv_high_bytes=tuple(max(0, int(b.kv_cache.high_bytes)) for b in bills),
        assumptions=_padding_assumption(weights),
    )


def _padding_assumption(weights: Weights) -> tuple[Assumption, ...]:
    """What the expert kernel's padding adds, said where a rule applies."""
    worst = weights.worst
    if not weights.padding.source:
        return ()
    added, most = worst.padded / GIB, max(worst.padded, worst.padded_high) / GIB
    value = f"{added:.2f} GiB per GPU" if added == most else f"{added:.2f} GiB per GPU, up to {most:.2f}"
    return (Assumption(key="weights padding", value=value, source=weights.padding.source),)


def weights_of(r: Resolved) -> Weights:
    """The weights of every stage, with the padding of the kernel that the card and release pick."""
    padding = expert_padding(r.weight_format, r.release.version, r.gpu.compute_capability if r.gpu else "9.0")
    return weights_per_gpu(
        r.spec, r.weight_format, r.parallel, load_mtp=r.speculative_method == "mtp", padding=padding
    )


def draft_spec(name: str) -> ModelSpec:
    """A catalogue model named as ``draft_model``. Raises CapacityError that names that key."""
    try:
        return model_spec(name)
    except CapacityError as error:
        said = str(error).removesuffix(", or give a config.json")
        raise CapacityError(f"draft_{said}", field="draft_model") from None


def _draft_weights(r: Resolved) -> float:
    """A draft model's weights on the fullest GPU, in bytes (the whole model when its own TP is 1)."""
    if r.scenario.draft_model is None:
        return 0.0
    draft = draft_spec(r.scenario.draft_model)
    tensor = r.scenario.draft_tensor_parallel_size or r.parallel.tensor
    fmt = resolve_weight_format(None, draft)
    return weights_per_gpu(draft, fmt, cut(draft, tensor=tensor, pipeline=1)).worst.total
