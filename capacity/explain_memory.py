"""The memory bill as equations: the budget, each term with the values put in, what is left for the KV cache.

Source: the plan's own bill (memory_terms). Left out: layout and blocks (explain_layout, explain).
"""

from __future__ import annotations

from collections.abc import Iterator

from capacity.equations import Equation, bytes_text
from capacity.memory import MemoryBill
from capacity.memory.bill import Term
from capacity.parameters import count_parameters
from capacity.plan import Plan
from capacity.units import GIB, gib

SECTION = "Memory per GPU"
TERM_NAMES = {
    "weights": "Weights",
    "activation": "Activation peak",
    "cuda_graphs": "CUDA graphs",
    "non_torch": "Non-torch memory",
    "other": "Other (LoRA, draft model, encoder cache)",
}


def memory_equations(plan: Plan) -> Iterator[Equation]:
    """Budget, terms and KV memory of the GPU that sets the pool; one line when the KV memory was given."""
    r, bill = plan.resolved, plan.bill
    stage = plan.pool.stage if plan.pool else 0
    if plan.kv_given:
        yield Equation(
            section=SECTION,
            name="KV cache memory",
            formula="as given, not estimated",
            values=" / ".join(bytes_text(value) for value in plan.kv_bytes),
            result=bytes_text(plan.kv_bytes[stage]),
            source="the scenario",
            value=float(plan.kv_bytes[stage]),
            unit="B",
        )
        return
    if bill is None or r.total_bytes is None:
        return
    yield Equation(
        section=SECTION,
        name="Budget",
        formula="ceil(memory that the engine sees x gpu_memory_utilization)",
        values=f"{gib(r.total_bytes):.2f} GiB x {r.gpu_memory_utilization:g}",
        result=f"{gib(bill.budget_bytes):.2f} GiB",
        source=taken_from(plan, "gpu_memory_gib"),
        value=float(bill.budget_bytes),
        unit="B",
    )
    for term in bill.terms:
        formula, values = _term(plan, bill, term, stage)
        charged = term.name != "cuda_graphs" or bill.graphs_in_budget
        yield Equation(
            section=SECTION,
            name=TERM_NAMES.get(term.name, term.name),
            formula=formula if charged else f"{formula}; outside the budget in this release",
            values=values,
            result=f"{term.bytes / GIB:.2f} GiB{_spread(term)}",
            source=term.source,
            value=term.bytes,
            unit="B",
        )
    yield Equation(
        section=SECTION,
        name="KV cache memory",
        formula="budget - everything that is charged to it",
        values=f"{gib(bill.budget_bytes):.2f} - {bill.non_kv_bytes / GIB:.2f} GiB",
        result=f"{gib(plan.kv_bytes[stage]):.2f} GiB "
        f"({gib(plan.kv_low_bytes[stage]):.2f}-{gib(plan.kv_high_bytes[stage]):.2f})",
        source=bill.kv_cache.source,
        value=float(plan.kv_bytes[stage]),
        unit="B",
    )


def taken_from(plan: Plan, key: str) -> str:
    """Where an input came from in a few words; the assumptions hold the whole source."""
    found = next((a.source for a in plan.assumptions if a.key == key), None)
    return "the scenario" if found is None else f"{found.split(';')[0].split(': ')[0]} (see the assumptions)"


def _spread(term: Term) -> str:
    low, high = f"{term.low_bytes / GIB:.2f}", f"{term.high_bytes / GIB:.2f}"
    return "" if low == high else f" ({low}-{high})"


def _term(plan: Plan, bill: MemoryBill, term: Term, stage: int) -> tuple[str, str]:
    """The equation of one term and the same with its values."""
    if term.basis == "measured":
        return "as given", f"{term.bytes / GIB:.2f} GiB"
    if term.name == "weights":
        return _weights(plan, term, stage)
    if term.name == "activation":
        return _activation(plan, bill)
    if term.basis == "exact" or not term.bytes:
        return "none in this plan" if not term.bytes else "computed", f"{term.bytes / GIB:.2f} GiB"
    return "fitted to start-up logs", f"{term.bytes / GIB:.2f} GiB"


def _weights(plan: Plan, term: Term, stage: int) -> tuple[str, str]:
    """Parameters times their bytes on one GPU, else what ranks share and keep; then padding, then host memory."""
    r = plan.resolved
    part = plan.weights.stages[min(stage, len(plan.weights.stages) - 1)]
    offloaded = r.scenario.cpu_offload_gib
    counted = r.scenario.parameters or count_parameters(r.spec).total
    scale = counted / count_parameters(r.spec).total
    loaded, padded = (part.sharded + part.replicated) * scale, part.padded * scale
    if r.parallel.tensor == r.parallel.pipeline == 1 and r.speculative_method != "mtp":
        formula, values = "parameters x bytes each", f"{counted / 1e9:.3f}e9 x {loaded / counted:.3f} B"
    else:
        formula = "this rank's share + kept whole on every rank"
        values = f"{part.sharded * scale / GIB:.2f} + {part.replicated * scale / GIB:.2f} GiB"
    if padded:
        formula, values = f"{formula} + padding", f"{values} + {padded / GIB:.2f} GiB"
    if offloaded:
        formula, values = f"{formula} - kept in host memory", f"{values} - {offloaded:g} GiB"
    return formula, values


def _activation(plan: Plan, bill: MemoryBill) -> tuple[str, str]:
    """The larger of the profile's passes, and what is held beside it."""
    peak = bill.activation
    passes = {"forward pass": peak.forward_bytes, "sampler": peak.sampler_bytes}
    top, held = max(passes.values()), peak.encoder_bytes
    if peak.set_by == "vision tower":
        passes["vision tower"], top, held = peak.tower_bytes, peak.tower_bytes, 0.0
    rest = peak.bytes - top - held - peak.experts_bytes
    formula, values = (
        f"max({', '.join(passes)})",
        f"max({', '.join(f'{size / GIB:.2f}' for size in passes.values())})",
    )
    others = "stage buffers and workspace" if plan.resolved.parallel.pipeline > 1 else "workspace"
    for name, size in (("encoder cache", held), ("expert buffers", peak.experts_bytes), (others, rest)):
        if size:
            formula, values = f"{formula} + {name}", f"{values} + {size / GIB:.2f}"
    return formula, f"{values} GiB"
