"""Why requests wait although the KV cache has room: all seats are taken, or the token budget of a step is.

No release exports max_num_seqs or max_num_batched_tokens; where the target's entry gives them the answer is
firm, else it rests on whether the number of running requests stands still and how many tokens a step holds.
"""

from __future__ import annotations

from capacity.diagnosis_case import LAST_SCRAPES, Case, load
from capacity.telemetry import Histogram
from capacity.verdicts import Confidence, Evidence, Severity, Verdict, evidence, verdict

WORDS = {
    "seat-bound": "all seats are taken",
    "prefill-bound": "prompts wait for the token budget of a step",
}


def seat_or_prefill(case: Case) -> Verdict | None:
    """Requests wait although the KV cache has room: seats or the token budget are used up."""
    running, waiting = case.number("running"), (case.number("waiting") or 0.0) - case.deferred
    if running is None or not _queue_matters(case, waiting):
        return None
    step = case.signals["tokens_per_step"]
    name, confidence, found = _which(case, running, step.number)
    usage = case.number("kv_usage")
    room = "KV usage is not known" if usage is None else f"the KV cache has room ({usage:.1%})"
    if usage is not None and usage >= case.line("kv_act"):
        room = f"the KV cache fills up as well ({usage:.1%})"
    if (usage is None or usage >= case.line("kv_low")) and not seats_are_taken(case):
        confidence = Confidence.LOW
    lines = [Evidence(text=found, signal="running", value=running, metric=case.signals["running"].metric)]
    if step.number is not None:
        lines.append(evidence("tokens_per_step", step, f"{step.number:.0f} tokens per step"))
    summary = f"{name}: {WORDS[name]}; {room}"
    return verdict(name, Severity.WARNING, confidence, summary, *lines, *load(case))


def _queue_matters(case: Case, waiting: float) -> bool:
    """A queue worth a verdict: long, or there at each of three scrapes. A single waiting request is not."""
    if waiting >= case.line("waiting_act"):
        return True
    seen = case.last.snapshots
    return len(seen) >= LAST_SCRAPES and all((s.value("waiting").number or 0.0) > 0 for s in seen)


def steps_are_full(case: Case) -> bool:
    """Whether steps hold what the token budget allows: the entry's budget, else more than decoding can
    reach.
    """
    found = case.recent.histograms.get("step_tokens")
    step = found.mean if isinstance(found, Histogram) else case.number("tokens_per_step")
    budget = case.window.latest.config.max_num_batched_tokens
    heavy = case.line("step_budget_share") * budget if budget else case.line("step_tokens_prefill")
    return step is not None and step >= heavy


def seats_are_taken(case: Case) -> bool:
    """Whether the entry gives max_num_seqs and as many requests run."""
    seats, running = case.window.latest.config.max_num_seqs, case.number("running")
    return bool(seats) and running is not None and running >= case.line("seat_share") * (seats or 0.0)


def _stands_still(case: Case) -> bool:
    """Whether running keeps near its highest value at the scrapes with a queue."""
    queued = [s for s in case.recent.snapshots if (s.value("waiting").number or 0.0) > 0]
    seen = [n for s in queued if (n := s.value("running").number) is not None]
    if len(seen) < 2:
        return False
    top = max(seen)
    near = sum(n >= top - max(1.0, case.line("seat_slack") * top) for n in seen)
    return top > 0 and near >= case.line("seat_scrapes") * len(seen)


def _which(case: Case, running: float, step: float | None) -> tuple[str, Confidence, str]:
    """Seats or token budget, how sure, and why."""
    seats = case.window.latest.config.max_num_seqs
    if seats:
        why = f"{running:.0f} of {seats:.0f} seats (max_num_seqs) are taken"
        if seats_are_taken(case):
            return "seat-bound", Confidence.HIGH, why
        full = steps_are_full(case)
        return "prefill-bound", Confidence.HIGH if full else Confidence.MEDIUM, f"{why}: seats are free"
    if steps_are_full(case):
        return "prefill-bound", Confidence.MEDIUM, "steps are full of prompt tokens"
    if _stands_still(case):
        sure = Confidence.MEDIUM if len(case.recent.snapshots) >= LAST_SCRAPES else Confidence.LOW
        why = f"running stays at about {running:.0f} while requests wait (max_num_seqs not known)"
        return "seat-bound", sure, why
    if step is not None and running > 0 and step <= 2 * running:
        return "seat-bound", Confidence.LOW, "steps hold little more than one token per running request"
    why = f"only {running:.0f} run while requests wait (max_num_seqs not known)"
    return "prefill-bound", Confidence.LOW, why
