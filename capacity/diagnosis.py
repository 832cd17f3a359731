"""Which limit an engine has hit, from its recent scrapes: one verdict with evidence, confidence, action
and price.

Rules run from "cannot serve" to "all is well" and compare with ``catalog/thresholds.csv``. Source:
runbooks and public dashboards named in the tables. Left out: several engines (``pool_diagnosis``) and how
long until full (``forecast``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

from capacity.diagnosis_case import LAST_SCRAPES, LOAD, Case, load, recent
from capacity.queue_rules import seat_or_prefill, seats_are_taken, steps_are_full
from capacity.telemetry import EngineSnapshot, EngineWindow, Histogram, Signals, State, Value, open_window
from capacity.telemetry.window import elapsed_s
from capacity.verdicts import (
    SEVERITIES,
    Confidence,
    Evidence,
    Severity,
    Verdict,
    actions,
    down_actions,
    evidence,
    named_for,
    verdict,
)


def diagnose(
    window: EngineWindow, signals: Signals, *, now_s: float | None = None, interval_s: float | None = None
) -> Verdict:
    """The verdict on one engine. ``now_s`` (wall clock) and the scrape interval let it see stale values."""
    reasons = signals["waiting_by_reason"].value
    deferred = float(reasons.get("deferred", 0.0)) if isinstance(reasons, Mapping) else 0.0
    gaps = [elapsed_s(a, b) for a, b in zip(window.snapshots[:-1], window.snapshots[1:], strict=True)]
    case = Case(
        window=window,
        signals=signals,
        last=open_window(window.snapshots[-LAST_SCRAPES:], only=LOAD),
        recent=recent(window),
        deferred=deferred,
        age_s=None if now_s is None else now_s - window.latest.time_s,
        interval_s=interval_s if interval_s is not None else (median(gaps) if gaps else None),
    )
    found = next((one for rule in RULES if (one := rule(case)) is not None), None) or _healthy(case)
    found = with_rejections(found, signals["rejections_per_s"])
    return replace(found, actions=named_for(window.latest.kind, found.actions))


def down_verdict(reason: str) -> Verdict:
    """The verdict on a target that does not answer with metrics."""
    found = verdict("down", Severity.CRITICAL, Confidence.HIGH, f"down: {reason}", Evidence(text=reason))
    return replace(found, actions=down_actions(reason))


def with_rejections(found: Verdict, rate: Value) -> Verdict:
    """Rejected requests are errors that users see: they raise any verdict to at least a warning."""
    if not rate.number:
        return found
    seen = evidence("rejections_per_s", rate, f"{rate.number:.3g} requests/s are rejected: users see errors")
    severity = max(found.severity, Severity.WARNING, key=SEVERITIES.index)
    return replace(
        found,
        severity=severity,
        summary=f"{found.summary}; requests are rejected",
        evidence=(*found.evidence, seen),
        actions=(*actions("rejections"), *(one for one in found.actions if one.cost != "none")),
    )


def _gone(case: Case) -> Verdict | None:
    if not case.window.latest.reachable:
        return down_verdict("its last values are old and its scraper cannot reach it")
    states = {case.signals[name].state for name in ("running", "kv_usage")}
    if State.DOWN in states:
        return down_verdict(case.signals["running"].reason or case.signals["kv_usage"].reason or "not known")
    return None


def _asleep(case: Case) -> Verdict | None:
    state = case.signals["sleep_state"]
    if not state.known or state.value == "awake":
        return None
    sent = (case.number("running") or 0.0) + (case.number("waiting") or 0.0)
    says = "this is not an outage" if not sent else f"{sent:.0f} requests were sent to it all the same"
    return verdict(
        "asleep",
        Severity.WARNING if sent else Severity.INFO,
        Confidence.HIGH,
        f"asleep: it was put to sleep and serves nothing; {says}",
        evidence("sleep_state", state, f"sleep state {state.value}"),
        *(load(case) if sent else ()),
    )


def _stale(case: Case) -> Verdict | None:
    old = next((s for n in ("running", "kv_usage") if (s := case.signals[n]).state is State.STALE), None)
    if old is not None:
        return verdict(
            "stale",
            Severity.WARNING,
            Confidence.HIGH,
            f"stale: {old.reason}",
            Evidence(text=old.reason or "values are old", metric=old.metric),
        )
    if case.age_s is None or case.interval_s is None:
        return None
    if case.age_s <= case.line("stale_intervals") * max(case.interval_s, 1.0):
        return None
    text = f"the last scrape is {case.age_s:.0f} s old; one is due every {case.interval_s:.0f} s"
    return verdict("stale", Severity.WARNING, Confidence.HIGH, f"stale: {text}", Evidence(text=text))


def _restarting(case: Case) -> Verdict | None:
    ago = case.window.last_restart
    if ago is None or ago >= case.line("restart_scrapes"):
        return None
    metric = case.window.increase("generation_tokens").metric
    return verdict(
        "restarting",
        Severity.WARNING,
        Confidence.HIGH,
        "restarting: it started anew within the last three scrapes",
        Evidence(text="counters fell or the start time changed", metric=metric),
        *load(case),
    )


def _just_started(case: Case) -> Verdict | None:
    """Served with room, but a series that has just begun and a fresh start time: whoever looks first now would
    take its small counters for a quiet engine. One that was seen idle since its start is no news.
    """
    age, seen = case.started_s_ago, case.window.snapshots
    seen_from_zero = not any(seen[0].value(n).number for n in ("running", "waiting", "generation_tokens"))
    if age is None or len(seen) > case.line("restart_scrapes") or seen_from_zero or _idle(case) is not None:
        return None
    started = case.window.latest.started_at_s
    return verdict(
        "restarting",
        Severity.WARNING,
        Confidence.MEDIUM,
        f"restarting: it started {age:.0f} s ago and serves again; its totals count from there",
        Evidence(text=f"start time {age:.0f} s before the newest scrape", signal="start", value=started),
        *load(case),
    )


def _quiet(window: EngineWindow) -> EngineWindow | None:
    """The newest scrapes over which work was at hand and no token counter moved; None where it moved just
    now.
    """
    kept: list[EngineSnapshot] = []
    for snapshot in reversed(window.snapshots):
        load_ = (snapshot.value("running").number or 0.0) + (snapshot.value("waiting").number or 0.0)
        if load_ <= 0 or (kept and _tokens(snapshot) != _tokens(kept[-1])):
            break
        kept.append(snapshot)
    return open_window(kept[::-1], only=LOAD) if len(kept) > 1 else None


def _tokens(snapshot: EngineSnapshot) -> tuple[float | None, ...]:
    return tuple(snapshot.value(name).number for name in ("generation_tokens", "prompt_tokens"))


def _frozen(case: Case) -> Verdict | None:
    """Work at hand, but no step and no token over the last scrapes."""
    quiet = _quiet(case.recent)
    if quiet is None or quiet.seconds is None:
        return None
    tokens = quiet.increase("generation_tokens")
    steps = quiet.histograms.get("step_tokens")
    counted = isinstance(steps, Histogram)
    if tokens.amount is None or (isinstance(steps, Histogram) and steps.count > 0):
        return None
    if quiet.seconds < case.line("stall_s" if counted else "stall_without_steps_s"):
        return None
    text = f"no token for {quiet.seconds:.0f} s although requests are there"
    sure = len(quiet.snapshots) >= LAST_SCRAPES and counted
    return verdict(
        "stalled",
        Severity.CRITICAL,
        Confidence.HIGH if sure else Confidence.MEDIUM,
        f"stalled: {text}; the gauges may be frozen",
        Evidence(text=text, signal="generation_tokens_per_s", value=0.0, metric=tokens.metric),
        *load(case),
    )


def _not_admitting(case: Case) -> Verdict | None:
    """Requests wait, nothing runs and the pool is empty: the engine does not admit work."""
    seen = case.last.snapshots[-2:]
    for snapshot in seen:
        running, waiting, kv = (snapshot.value(n).number for n in ("running", "waiting", "kv_usage"))
        if running != 0 or not waiting or (kv is not None and kv > case.line("kv_empty")):
            return None
    if (case.last.increase("generation_tokens").amount or 0.0) > 0:
        return None
    return verdict(
        "stalled",
        Severity.CRITICAL,
        Confidence.HIGH if len(seen) > 1 else Confidence.MEDIUM,
        "stalled: the engine is not admitting work; requests wait, nothing runs and the KV cache is empty",
        *load(case),
    )


def _deferred(case: Case) -> Verdict | None:
    waiting = case.number("waiting")
    if not waiting or case.deferred <= case.line("deferred_share") * waiting:
        return None
    if case.window.seconds is not None and case.number("running") and _frozen(case) is not None:
        return None
    worse = _preempting(case) or _kv_bound(case)
    if worse is not None and (worse.name == "preempting" or worse.severity is Severity.CRITICAL):
        return None
    reasons = case.signals["waiting_by_reason"]
    return verdict(
        "deferred",
        Severity.WARNING,
        Confidence.HIGH,
        f"deferred: {case.deferred:.0f} of {waiting:.0f} waiting requests wait for an adapter or a KV "
        f"transfer, "
        "not for capacity",
        evidence("waiting_by_reason", reasons, f"deferred {case.deferred:.0f}"),
        *load(case),
    )


def _preempting(case: Case) -> Verdict | None:
    rate = case.recent.increase("preemptions").rate()
    nothing_there = _nothing_there(case)
    if nothing_there and (_rests(case) or len(case.last.snapshots) < LAST_SCRAPES):
        return None  # a lull between two bursts is no recovery; three scrapes without a token are
    if rate.number is None or rate.number <= case.line("preemptions_warn_per_s"):
        return None
    storm = rate.number >= case.line("preemptions_critical_per_s")
    found = [evidence("preemptions_per_s", rate, f"{rate.number:.3g} preemptions/s")]
    price = case.signals.values.get("recomputed_tokens_per_s")
    if price is not None and price.number:
        found.append(
            evidence(
                "recomputed_tokens_per_s", price, f"about {price.number:,.0f} tokens/s are computed again"
            )
        )
    return verdict(
        "preempting",
        Severity.CRITICAL if storm else Severity.WARNING,
        Confidence.HIGH,
        "preempting: running requests lose their KV blocks and are computed again"
        + ("; no request at this moment" if nothing_there else ""),
        *found,
        *load(case),
    )


def _kv_bound(case: Case) -> Verdict | None:
    usage = case.number("kv_usage")
    if usage is None or usage < case.line("kv_act") - case.line("kv_hysteresis"):
        return None
    if _rests(case):
        return None
    lately = [n for s in case.last.snapshots if (n := s.value("kv_usage").number) is not None]
    if max([*lately, usage]) < case.line("kv_act"):
        return None
    waiting = (case.number("waiting") or 0.0) - case.deferred
    critical = usage >= case.line("kv_critical")
    if (
        not critical
        and waiting >= case.line("waiting_act")
        and (steps_are_full(case) or seats_are_taken(case))
    ):
        return None
    line = case.line("kv_act")
    summary = f"KV-bound: the KV cache is {_percent(usage)} full"
    if waiting > 0:
        summary += f" and {waiting:.0f} requests wait for blocks"
    elif usage >= line:
        summary += f", over the act line of {_percent(line)}"
    else:
        summary += f" and was over the act line of {_percent(line)} a moment ago"
    return verdict(
        "KV-bound",
        Severity.CRITICAL if critical and waiting > 0 else Severity.WARNING,
        Confidence.HIGH if critical or waiting <= 0 else Confidence.MEDIUM,
        summary,
        *load(case),
    )


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _unknown(case: Case) -> Verdict | None:
    missing = [n for n in ("running", "waiting") if case.number(n) is None]
    if not missing:
        return None
    lines = [
        Evidence(text=f"{name}: {case.signals[name].reason}", signal=name, metric=case.signals[name].metric)
        for name in missing
    ]
    return verdict(
        "unknown",
        Severity.INFO,
        Confidence.LOW,
        f"unknown: {' and '.join(missing)} cannot be read",
        *lines,
        *load(case),
    )


def _nothing_there(case: Case) -> bool:
    return case.number("running") == 0 and case.number("waiting") == 0


def _rests(case: Case) -> bool:
    """No request on it and no token of late; what its KV gauge shows is left from its last step."""
    if not _nothing_there(case):
        return False
    return not any(case.last.increase(name).amount for name in ("generation_tokens", "prompt_tokens"))


def _idle(case: Case) -> Verdict | None:
    if not _rests(case):
        return None
    known = case.last.increase("generation_tokens").amount is not None
    left = (case.number("kv_usage") or 0.0) >= case.line("kv_act") - case.line("kv_hysteresis")
    says = "; its KV gauge is left from its last step, or holds blocks for a KV transfer" if left else ""
    return verdict(
        "idle",
        Severity.INFO if left else Severity.OK,
        Confidence.HIGH if known and not left else Confidence.MEDIUM,
        f"idle: no request is running or waiting{says}{_age(case)}",
        *load(case),
    )


def _age(case: Case) -> str:
    age = case.started_s_ago
    return "" if age is None else f"; it started {age:.0f} s ago"


def _healthy(case: Case) -> Verdict:
    rate = case.signals["generation_tokens_per_s"]
    flow = (
        (evidence("generation_tokens_per_s", rate, f"{rate.number:,.0f} output tokens/s"),)
        if rate.number
        else ()
    )
    known = case.number("kv_usage") is not None
    return verdict(
        "healthy",
        Severity.OK,
        Confidence.HIGH if flow and known else Confidence.MEDIUM if known else Confidence.LOW,
        f"healthy: requests are served with room in the KV cache{_age(case)}"
        if known
        else f"healthy as far as it can be seen: requests are served; KV usage is not exported{_age(case)}",
        *flow,
        *load(case),
    )


RULES: tuple[Callable[[Case], Verdict | None], ...] = (
    _gone,
    _asleep,
    _stale,
    _restarting,
    _deferred,
    _frozen,
    _not_admitting,
    _preempting,
    _kv_bound,
    seat_or_prefill,
    _unknown,
    _just_started,
    _idle,
)
