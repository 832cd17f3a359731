"""A plan as the JSON object that the CLI, the API, the report and the page's download share.

Keys are a contract: they are extended, never renamed. Figures are plain numbers; unknown is null with a reason.
"""

from __future__ import annotations

from typing import Any

from capacity.memory import Term
from capacity.parameters import total_parameters
from capacity.plan import Plan
from capacity.textbook_steps import steps
from capacity.units import GIB, gib


def answer(plan: Plan, *, fixes: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """The answer to one scenario. ``fixes``: what to change when it does not fit (fixes)."""
    r, pool, counted = plan.resolved, plan.pool, plan.concurrency
    usual = counted.typical
    return {
        "verdict": verdict(plan),
        "fits": plan.fit == "yes",
        "fit": plan.fit,
        "binding_constraint": plan.binding_constraint,
        "reason": plan.reason or None,
        "fixes": list(fixes),
        "model": {
            "id": r.spec.model_id,
            "architecture": r.spec.architecture,
            "config_section": r.spec.config_section or None,
            "parameters": _parameters(plan),
            "notes": list(r.spec.notes),
        },
        "engine_version": r.release.asked,
        "weight_format": r.weight_format.id,
        "kv_cache_dtype": r.kv_dtype,
        "settings": {
            "max_model_len": r.max_model_len,
            "max_num_seqs": r.max_num_seqs,
            "max_num_batched_tokens": r.max_num_batched_tokens,
            "gpu_memory_utilization": r.gpu_memory_utilization,
            "block_size": plan.layout.block_size,
            "enable_prefix_caching": r.prefix_caching,
            "async_scheduling": r.async_scheduling,
            "gpus": r.parallel.gpus,
        },
        "memory": _memory(plan),
        "kv_cache": {
            "bytes_per_token_per_gpu": plan.bytes_per_token_per_gpu,
            "bytes_per_block": pool.bytes_per_block if pool else None,
            "num_blocks": pool.num_blocks if pool else None,
            "usable_blocks": max(0, pool.num_blocks - (1 if r.release.runner == "v1" else 0))
            if pool
            else None,
            "blocks_per_max_request": pool.blocks_per_max_request if pool else None,
            "tokens": pool.tokens_logged if pool else None,
            "tokens_at_max_model_len": pool.tokens if pool else None,
            "max_concurrency": pool.max_concurrency if pool else None,
            "longest_max_model_len": pool.longest_max_model_len if pool else None,
            "log_lines": list(pool.log_lines) if pool else [],
            "num_groups": len(plan.grouping.groups),
            "layers_per_group": [len(group.layers) for group in plan.grouping.groups],
            "group_block_sizes": [group.cache.block_size for group in plan.grouping.groups],
            "padding_layers": plan.grouping.padding_layers,
            "state_bytes": plan.layout.state_bytes or None,
        },
        "concurrency": {
            "guaranteed": counted.guaranteed,
            "guaranteed_low": counted.low,
            "guaranteed_high": counted.high,
            "typical": (usual.mean if plan.fit != "no" else 0) if usual else None,
            "typical_safe": (usual.safe if plan.fit != "no" else 0) if usual else None,
            "typical_safe_percentile": usual.percentile if usual else None,
            "typical_blocks": usual.blocks_mean if usual else None,
            "typical_reason": _typical_reason(plan),
            "prefix_hit_rate": usual.hit_rate if usual else None,
            "seats": counted.seats,
            "binding": counted.binding,
            "replicas": r.parallel.data,
        },
        "textbook": {
            "bytes_per_token": plan.textbook.bytes_per_token,
            "kv_gib_per_request": plan.textbook.kv_gib_per_request,
            "concurrency": plan.textbook.concurrency,
            "memory": plan.textbook.memory_text,
            "windowed_gib_per_request": plan.textbook.windowed_gib_per_request,
            "steps": [{"name": s.name, "detail": s.detail, "requests": s.requests} for s in steps(plan)],
        },
        "fragmentation": _fragmentation(plan),
        "assumptions": [{"key": a.key, "value": a.value, "source": a.source} for a in plan.assumptions],
        "warnings": list(plan.warnings),
    }


def _typical_reason(plan: Plan) -> str | None:
    """Why no workload is counted, None when one is."""
    if plan.concurrency.typical is None:
        return "no prompt_tokens or output_tokens given"
    return "the engine does not start" if plan.fit == "no" else None


def verdict(plan: Plan) -> str:
    """The answer in one sentence."""
    counted, r = plan.concurrency, plan.resolved
    if plan.fit == "no":
        return f"Does not fit: {plan.reason}."
    per = " per replica" if r.parallel.data > 1 else ""
    spread = f" ({counted.low:,}-{counted.high:,})" if counted.low != counted.high else ""
    requests = (
        f"{counted.guaranteed:,} full-length request{'' if counted.guaranteed == 1 else 's'}{spread}{per}"
    )
    if plan.fit == "marginal" and counted.guaranteed == 0 and counted.high > 0:
        most = f"{counted.high:,} request{'' if counted.high == 1 else 's'}{per}"
        return f"Marginal: by the estimate {plan.reason}; at the high end of its interval {most} would fit."
    if plan.fit == "marginal":
        return f"Marginal: {requests}; {plan.reason}."
    if counted.typical is not None and counted.guaranteed < counted.seats:
        fit = f"of this workload {counted.typical.mean:,} fit"
        bound = (
            f"seats allow {counted.seats:,}"
            if counted.binding == "kv_cache"
            else f"there {_seats(counted.seats)} first"
        )
        return f"Fits. {requests}, bound by KV cache; {fit}, {bound}."
    if counted.binding == "kv_cache":
        return f"Fits. {requests}, bound by KV cache; seats allow {counted.seats:,}."
    return f"Fits. {requests}; {_seats(counted.seats)} before KV cache does."


def term_json(term: Term) -> dict[str, Any]:
    """One line of the bill with GiB figures."""
    return {
        "name": term.name,
        "gib": term.bytes / GIB,
        "low_gib": term.low_bytes / GIB,
        "high_gib": term.high_bytes / GIB,
        "basis": term.basis,
        "source": term.source,
    }


def _parameters(plan: Plan) -> int | float:
    return plan.resolved.scenario.parameters or total_parameters(plan.resolved.spec)


def _memory(plan: Plan) -> dict[str, Any]:
    bill, r = plan.bill, plan.resolved
    stage = plan.pool.stage if plan.pool else 0
    given = plan.kv_given
    weights = plan.weights.stages[stage]
    return {
        "total_gib": gib(r.total_bytes) if r.total_bytes is not None else None,
        "budget_gib": gib(bill.budget_bytes) if bill else None,
        "terms": [term_json(term) for term in bill.terms] if bill else [],
        "kv_cache_gib": gib(plan.kv_bytes[stage]),
        "kv_cache_low_gib": gib(plan.kv_low_bytes[stage]),
        "kv_cache_high_gib": gib(plan.kv_high_bytes[stage]),
        "kv_cache_basis": "measured" if given else bill.kv_cache.basis if bill else "measured",
        "kv_cache_gib_by_stage": [gib(value) for value in plan.kv_bytes],
        "graphs_in_budget": bill.graphs_in_budget if bill else None,
        "effective_utilization": bill.effective_utilization
        if bill and bill.effective_utilization > 0
        else None,
        "minimum_gib": gib(plan.minimum_bytes) if plan.minimum_bytes is not None else None,
        "reserved_gib": gib(bill.budget_bytes) if bill else None,
        "weights": {
            "sharded_gib": weights.sharded / GIB,
            "replicated_gib": weights.replicated / GIB,
            "padded_gib": weights.padded / GIB,
            "fullest_stage": stage,
            "source": plan.weights.source,
        },
    }


def _fragmentation(plan: Plan) -> dict[str, Any]:
    parts = plan.fragmentation
    if parts is None:
        reason = "no prompt_tokens or output_tokens given"
        keys = ("reserved_tokens", "used_tokens", "waste_share", "contiguous_requests", "paged_requests")
        return {**dict.fromkeys(keys), "reason": reason}
    return {
        "reserved_tokens": parts.reserved_tokens,
        "used_tokens": parts.used_tokens,
        "waste_share": parts.waste_share,
        "contiguous_requests": parts.contiguous_requests,
        "paged_requests": parts.paged_requests,
        "paged_waste_tokens": parts.paged_waste_tokens,
        "paged_waste_share": parts.paged_waste_share,
        "by_block_size": [
            {"block_size": size, "waste_tokens": waste, "requests": requests}
            for size, waste, requests in parts.by_block_size
        ],
    }


def _seats(seats: int) -> str:
    return "the one seat (max_num_seqs) binds" if seats == 1 else f"the {seats:,} seats (max_num_seqs) bind"
