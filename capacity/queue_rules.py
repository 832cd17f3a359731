"""Why requests wait although the KV cache has room: all seats are taken, or the token budget of a step is.

No release exports max_num_seqs or max_num_batched_tokens; where the target's entry gives them the answer
is firm, else it rests on whether the number of running requests stands still and how many tokens a step
holds. Left out: KV limits.
"""

from __future__ import annotations

from capacity.diagnosis_case import LAST_SCRAPES, Case, load
from capacity.verdicts import Confidence, Evidence, Severity, Verdict, evidence, verdict


def _queue_matters(case: Case, waiting: float) -> bool:
    """A queue worth a verdict: long, or there at each of three scrapes. A single waiting request is not."""
    if waiting >= case.line("waiting_act"):
        return True
    seen = case.last.snapshots
    return len(seen) >= LAST_SCRAPES and all((s.value("waiting").number or 0.0) > 0 for s in seen)


def seat_or_prefill(case: Case) -> Verdict | None:
    """Requests wait although the KV cache has room: seats or the token budget are used up."""
    running, waiting = case.number("running"), (case.number("waiting") or 0.0) - case.deferred
    if running is None or not _queue_matters(case, waiting):
        return None
    config = case.window.latest.config
    step = case.signals["tokens_per_step"]
    budget, seats = config.max_num_batched_tokens, config.max_num_seqs
    name, confidence, found = _which(case, running, step.number, seats, budget)
    usage = case.number("kv_usage")
    room = f"the KV cache has room ({usage:.1%})" if usage is not None else "KV usage is not known"
    if usage is None or usage >= case.line("kv_low"):
        confidence = Confidence.LOW
    what = "all seats are taken" if name == "seat-bound" else "prompts wait for the token budget of a step"
    lines = [Evidence(text=found, signal="running", value=running, metric=case.signals["running"].metric)]
    if step.number is not None:
        lines.append(evidence("tokens_per_step", step, f"{step.number:.0f} tokens per step"))
    return verdict(name, Severity.WARNING, confidence, f"{name}: {what}; {room}", *lines, *load(case))


def _which(
    case: Case, running: float, step: float | None, seats: float | None, budget: float | None
) -> tuple[str, Confidence, str]:
    """Seats or token budget, how sure, and why."""
    if seats:
        if running >= case.line("seat_share") * seats:
            return (
                "seat-bound",
                Confidence.HIGH,
                f"{running:.0f} of {seats:.0f} seats (max_num_seqs) are taken",
            )
        why = f"{running:.0f} of {seats:.0f} seats (max_num_seqs) are taken: seats are free"
        full = budget is not None and step is not None and step >= case.line("step_budget_share") * budget
        return "prefill-bound", Confidence.HIGH if full else Confidence.MEDIUM, why
    if step is not None and (
        step >= case.line("step_budget_share") * budget
        if budget
        else step >= case.line("step_tokens_prefill")
    ):
        return "prefill-bound", Confidence.MEDIUM, "steps are full of prompt tokens"
    seen = {s.value("running").number for s in case.last.snapshots}
    if len(case.last.snapshots) > 1 and len(seen) == 1:
        sure = Confidence.MEDIUM if len(case.last.snapshots) >= LAST_SCRAPES else Confidence.LOW
        return (
            "seat-bound",
            sure,
            f"running stays at {running:.0f} while requests wait (max_num_seqs not known)",
        )
    if step is not None and running > 0 and step <= 2 * running:
        return "seat-bound", Confidence.LOW, "steps hold little more than one token per running request"
    return (
        "prefill-bound",
        Confidence.LOW,
        f"only {running:.0f} run while requests wait (max_num_seqs not known)",
    )
