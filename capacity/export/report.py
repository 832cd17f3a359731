"""A plan as one HTML file that prints on A4: verdict, figures, charts, tables with sources, equations.

Nothing is loaded from elsewhere, no script runs, every text is escaped. Left out: speed and traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from capacity.answer import verdict
from capacity.explain import explain
from capacity.export.report_inputs import reproduce, settings, workload_words
from capacity.export.report_parts import bullets, table
from capacity.export.report_style import MEMORY_COLOURS, STATE, STYLE
from capacity.export.serve_command import serve_command, serve_notes
from capacity.export.svg import Line, Mark, Part, bars, log_log, stacked_bar
from capacity.length_curve import length_curve
from capacity.plan import Plan
from capacity.textbook_steps import steps
from capacity.units import GIB, gib

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
TERMS = {
    "weights": "Weights",
    "activation": "Activation peak",
    "cuda_graphs": "CUDA graphs",
    "non_torch": "Non-torch",
    "other": "Other",
    "kv_cache": "KV cache",
}
UNKNOWN = "–"


def report_html(
    plan: Plan,
    *,
    fixes: Sequence[dict[str, Any]] = (),
    made_at: str | None = None,
    page_url: str | None = None,
) -> str:
    """The whole report. ``fixes``: what to change when it does not fit.

    ``made_at``: the date, as it is to be read; ``page_url``: the link that opens the plan. Without them the report
    does not speak of them: it never looks at a clock.
    """
    title = _title(plan)
    body = (
        f"<h1>{escape(title)}</h1><p class='quiet'>{escape(_subtitle(plan))}<br>{escape(workload_words(plan))}"
        f"{f'<br>Made {escape(made_at)}' if made_at else ''}</p>"
        f"{_verdict(plan)}{_figures(plan)}{_fixes(fixes)}{_memory(plan)}{_curve(plan)}{_allocation(plan)}"
        f"{_logs(plan)}{_serve(plan)}{_textbook(plan)}{_equations(plan)}{_assumptions(plan)}{_warnings(plan)}"
        f"{reproduce(plan, page_url=page_url)}"
        f"<footer class='quiet'>Planned by Waterline with the rules of vLLM {escape(plan.resolved.release.asked)}. "
        "Estimates carry an 80 % interval; what is exact says so.</footer>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}: KV cache plan</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{STYLE}</style></head><body><main>{body}</main></body>'
        "</html>\n"
    )


def _title(plan: Plan) -> str:
    r = plan.resolved
    name = r.spec.model_id.rsplit("/", 1)[-1][:120]
    per_engine = r.parallel.tensor * r.parallel.pipeline
    card = r.gpu.name if r.gpu is not None else "GPU"
    if r.gpu is None and r.total_bytes is None:
        return name
    return f"{name} on {per_engine} x {card}"


def _subtitle(plan: Plan) -> str:
    r = plan.resolved
    kv = next((a.value for a in plan.assumptions if a.key == "kv_cache_dtype"), r.kv_dtype)
    parts = [f"vLLM {r.release.asked}", f"{r.weight_format.id} weights", f"KV cache {kv}"]
    parts.append(f"max_model_len {r.max_model_len:,}")
    if r.parallel.tensor > 1:
        parts.append(f"TP {r.parallel.tensor}")
    if r.parallel.pipeline > 1:
        parts.append(f"PP {r.parallel.pipeline}")
    if r.parallel.data > 1:
        parts.append(f"{r.parallel.data} replicas")
    return ", ".join(parts)


def _verdict(plan: Plan) -> str:
    colour, icon, word = STATE[plan.fit]
    return (
        f"<div class='verdict' style='border-color:{colour}'><b style='background:{colour}' role='img' "
        f"aria-label='{word}'>{icon}</b><span>{escape(verdict(plan))}</span></div>"
    )


def _figures(plan: Plan) -> str:
    counted, pool, usual = plan.concurrency, plan.pool, plan.concurrency.typical
    stage = pool.stage if pool else 0
    low, high = gib(plan.kv_low_bytes[stage]), gib(plan.kv_high_bytes[stage])
    measured = "as given" if plan.kv_given else f"{_gib(low)}-{_gib(high)}"
    typical = (UNKNOWN, "no prompt or output lengths given")
    if usual:
        starts = "" if pool and pool.starts else "if it starts: "
        typical = (
            f"{usual.mean:,}",
            f"{starts}full on average; {usual.safe:,} hold at {usual.percentile:g} %",
        )
    if usual and plan.fit == "no":
        typical = ("0", "the engine does not start")
    if plan.fit == "no" and not plan.kv_high_bytes[stage]:  # the engine stops before it has a pool
        pool, measured = None, "no memory is left"
    spread = f"{counted.low:,}-{counted.high:,}; " if counted.low != counted.high else ""
    cells = [
        (
            "Guaranteed requests",
            f"{counted.guaranteed:,}",
            f"{spread}each at {plan.inputs.max_model_len:,} tokens",
        ),
        ("Typical requests", *typical),
        ("KV cache tokens", _count(pool.tokens_logged) if pool else UNKNOWN, "as the engine logs them"),
        (
            "Blocks",
            _count(pool.num_blocks) if pool else UNKNOWN,
            f"{pool.blocks_per_max_request:,} per full-length request" if pool else "no pool",
        ),
        ("KV cache, GiB per GPU", _gib(gib(plan.kv_bytes[stage])) if pool else UNKNOWN, measured),
    ]
    inner = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in cells
    )
    return f"<dl class='figures'>{inner}</dl>"


def _fixes(fixes: Sequence[dict[str, Any]]) -> str:
    if not fixes:
        return ""
    rows = [(_sure(fix), f"{fix['guaranteed']:,}", settings(fix["changes"])) for fix in fixes]
    return "<h2>What would make it fit</h2>" + table(
        ("Change", "Guaranteed requests", "Settings"), rows, numbers={1}, quiet={2}
    )


def _sure(fix: dict[str, Any]) -> str:
    """The change, and whether only the estimate and not the low end of its interval holds a request."""
    return fix["action"] if fix["fit"] == "yes" else f"{fix['action']} (marginal: not at the low end)"


def _memory(plan: Plan) -> str:
    bill = plan.bill
    if bill is None:
        return ""
    stage = plan.pool.stage if plan.pool else 0
    kv = gib(plan.kv_bytes[stage])
    inside = [t for t in bill.terms if t.name != "cuda_graphs" or bill.graphs_in_budget]
    outside = [t for t in bill.terms if t not in inside]
    parts = [_part(t.name, t.bytes / GIB) for t in inside]
    parts.append(_part("kv_cache", kv))
    parts += [_part(t.name, t.bytes / GIB, ", outside the budget") for t in outside]
    total, budget = gib(bill.total_bytes), gib(bill.budget_bytes)
    unused = total - sum(part.value for part in parts)
    if unused > 0:
        parts.append(Part(label="Unused", value=unused, colour="#999999", hatched=True))
    marks = [
        Mark(
            label=f"budget {budget:.1f} GiB ({plan.resolved.gpu_memory_utilization:g} of what is seen)",
            at=budget,
        ),
        Mark(label=f"{total:.1f} GiB seen by the engine", at=total),
    ]
    message = f"KV cache gets {_gib(kv)} of the {_gib(budget)} GiB that the engine may use per GPU"
    if plan.kv_bytes[stage] <= 0:
        message = f"Nothing is left for KV cache: {_gib(gib(bill.non_kv_bytes))} GiB are charged to {_gib(budget)} GiB"
    legend = "".join(
        f"<li><i style='background:{part.colour if not part.hatched else 'var(--soft)'}'></i>{escape(part.label)} "
        f"{_gib(part.value)}</li>"
        for part in parts
        if part.value > 0
    )
    rows: list[tuple[str, ...]] = [
        (
            TERMS.get(t.name, t.name),
            _gib(t.bytes / GIB),
            f"{_gib(t.low_bytes / GIB)}-{_gib(t.high_bytes / GIB)}"
            if t.low_bytes != t.high_bytes
            else UNKNOWN,
            t.basis,
            t.source,
        )
        for t in bill.terms
    ]
    given = plan.kv_given
    low, high = gib(plan.kv_low_bytes[stage]), gib(plan.kv_high_bytes[stage])
    rows.append(
        (
            "KV cache",
            _gib(kv),
            "–" if given else f"{_gib(low)}-{_gib(high)}",
            "given" if given else bill.kv_cache.basis,
            "the scenario" if given else bill.kv_cache.source,
        )
    )
    chart = stacked_bar(parts, marks=marks, unit="GiB", alt=message)
    return f"<h2>{escape(message)}</h2><figure>{chart}<ul class='legend'>{legend}</ul></figure>" + table(
        ("Term, GiB per GPU", "Value", "80 % interval", "Basis", "Source"), rows, numbers={1, 2}, quiet={4}
    )


def _part(name: str, value: float, more: str = "") -> Part:
    return Part(
        label=TERMS.get(name, name) + more, value=max(0.0, value), colour=MEMORY_COLOURS.get(name, "#999999")
    )


def _curve(plan: Plan) -> str:
    points = length_curve(plan)
    if len(points) < 2 or points[0].high <= 0:
        return ""
    last, counted = points[-1], plan.concurrency
    marks = [
        Mark(label=f"{counted.guaranteed:,} at {last.tokens:,} tokens", at=last.tokens, height=last.requests)
    ]
    usual = counted.typical
    if usual is not None and usual.mean > 0:
        marks.append(Mark(label=f"typical: {usual.mean:,}", at=usual.tokens_mean, height=float(usual.mean)))
    message = (
        f"The pool holds {counted.guaranteed:,} full-length request{'' if counted.guaranteed == 1 else 's'}"
    )
    short = [p.tokens for p in points if p.requests > counted.seats]
    if short and short[-1] < last.tokens:
        message += f"; below about {_round_tokens(short[-1])} tokens the {counted.seats:,} seats bind first"
    elif short:
        message += f", more than the {counted.seats:,} seats"
    chart = log_log(
        Line(points=[(p.tokens, p.requests, p.low, p.high) for p in points], colour="#0072B2"),
        points=marks,
        level=Mark(label=f"seats: {counted.seats:,} (max_num_seqs)", at=float(counted.seats)),
        x_title="tokens per request (log scale)",
        y_title="requests at once (log scale)",
        alt=message,
    )
    windowed = any(g.cache.kind in ("sliding", "chunked") for g in plan.grouping.groups)
    more = ", with a full step in flight as the start-up check counts" if windowed else ""
    if windowed and usual is not None:
        more += "; typical requests are in decode and have given back what their windows left behind"
    note = "" if plan.kv_given else "The band is the 80 % interval of the memory estimate. "
    return (
        f"<h2>{escape(message)}</h2><figure>{chart}</figure><p class='quiet'>{note}"
        f"Requests of one length in the pool planned above{more}.</p>"
    )


def _allocation(plan: Plan) -> str:
    f = plan.fragmentation
    if f is None or plan.pool is None or plan.pool.num_blocks == 0:
        return ""
    block = max(g.cache.block_size for g in plan.grouping.groups)
    used, tail = "#0072B2", "#E69F00"
    rows = [
        (
            "Contiguous",
            (
                Part(label="used", value=f.used_tokens, colour=used),
                Part(
                    label="reserved, empty",
                    value=f.reserved_tokens - f.used_tokens,
                    colour=tail,
                    hatched=True,
                ),
            ),
            f"{f.contiguous_requests:,} requests",
        ),
        (
            "Blocks",
            (
                Part(label="used", value=f.used_tokens, colour=used),
                Part(label="tail of last block", value=f.paged_waste_tokens, colour=tail),
            ),
            f"{f.paged_requests:,} requests",
        ),
    ]
    message = f"Blocks hold {f.paged_requests:,} such requests, reserving max_model_len holds {f.contiguous_requests:,}"
    sizes = table(
        ("Block size", "Empty tokens in the last block", "Requests"),
        [(f"{size:,}", f"{waste:,.1f}", f"{requests:,}") for size, waste, requests in f.by_block_size],
        numbers={0, 1, 2},
    )
    return (
        f"<h2>{escape(message)}</h2><figure>{bars(rows, unit='tokens per request', alt=message)}</figure>"
        f"<p class='quiet'>Reserving leaves {100 * f.waste_share:.0f} % of the memory empty, blocks of {block:,} leave "
        f"{100 * f.paged_waste_share:.1f} %.</p>{sizes}"
    )


def _logs(plan: Plan) -> str:
    if plan.pool is None or plan.pool.num_blocks == 0:
        return ""
    title = (
        "What the engine will log" if plan.pool.starts else "What the engine logs before it refuses to start"
    )
    return f"<h2>{title}</h2><pre>{escape(chr(10).join(plan.pool.log_lines))}</pre>"


def _serve(plan: Plan) -> str:
    notes = bullets(serve_notes(plan))
    title = "Command that starts it" if plan.fit != "no" else "Command as planned (it does not fit)"
    return f"<h2>{title}</h2><pre>{escape(serve_command(plan))}</pre>{notes}"


def _textbook(plan: Plan) -> str:
    walk = steps(plan)
    if not walk:
        return ""
    rows = [(step.name, step.detail, f"{step.requests:,.2f}") for step in walk]
    return "<h2>From the textbook's answer to the engine's</h2>" + table(
        ("Step", "What changes", "Full-length requests after it"), rows, numbers={2}, quiet={1}
    )


def _equations(plan: Plan) -> str:
    out, section = ["<h2>How this number came about</h2>"], ""
    rows: list[tuple[str, ...]] = []
    heads = ("Step", "Formula", "Values put in", "Result", "Source")

    def flush() -> None:
        if rows:
            out.append(f"<h3>{escape(section)}</h3>" + table(heads, rows, quiet={1, 4}, kind="equations"))

    for step in explain(plan):
        if step.section != section:
            flush()
            section, rows = step.section, []
        rows.append((step.name, step.formula, step.values, step.result, step.source))
    flush()
    return "".join(out)


def _assumptions(plan: Plan) -> str:
    rows = [(a.key, a.value, a.source) for a in plan.assumptions]
    if not rows:
        return ""
    return "<h2>Assumed because it was not given</h2>" + table(
        ("Key", "Value", "Source"), rows, quiet={2}, kind="keys"
    )


def _warnings(plan: Plan) -> str:
    notes = [*plan.warnings, *plan.resolved.spec.notes]
    return f"<h2>Mind</h2>{bullets(notes)}" if notes else ""


def _gib(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}"


def _round_tokens(value: int) -> str:
    """Two digits are enough for a figure read off a curve.

    >>> _round_tokens(447)
    '450'
    """
    digits = max(0, len(str(value)) - 2)
    return f"{round(value, -digits):,}"


def _count(value: float) -> str:
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value:,.0f}"
