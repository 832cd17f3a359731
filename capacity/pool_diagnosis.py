"""The verdict on a pool from the verdicts on its engines: the worst one, unless the load is only badly
spread.

Left out: rules about a single engine (``diagnosis``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from statistics import median

from capacity.diagnosis import down_verdict, with_rejections
from capacity.telemetry import Signals
from capacity.verdicts import (
    NAMES,
    SEVERITIES,
    Confidence,
    Evidence,
    Severity,
    Verdict,
    thresholds,
    verdict,
)

BOUND = ("preempting", "KV-bound", "seat-bound", "prefill-bound")
FINE = ("healthy", "idle")
LISTED = 4


def diagnose_pool(
    verdicts: Mapping[str, Verdict],
    pool: Signals,
    *,
    down: Mapping[str, str] | None = None,
) -> Verdict:
    """The verdict on a pool: ``verdicts`` by engine, ``down`` by target with the reason.

    A part of the pool that is down is a warning, the whole pool is critical. Rejected requests raise it.
    """
    found = _of_all(verdicts, pool, down or {})
    told = any(one.signal == "rejections_per_s" for one in found.evidence)
    return found if told else with_rejections(found, pool["rejections_per_s"])


def _of_all(verdicts: Mapping[str, Verdict], pool: Signals, down: Mapping[str, str]) -> Verdict:
    if not verdicts and not down:
        return verdict("unknown", Severity.INFO, Confidence.LOW, "unknown: the pool has no engine")
    if not verdicts and len(set(down.values())) == 1:
        return replace(down_verdict(next(iter(down.values()))), evidence=tuple(_down_lines(down)))
    every = dict(verdicts) | {name: down_verdict(reason) for name, reason in down.items()}
    spread = _imbalance(verdicts, pool)
    if spread is not None and not any(v.name in ("stalled", "restarting", "down") for v in every.values()):
        return spread
    if len(every) == 1:
        return next(iter(every.values()))
    asleep = [name for name, v in every.items() if v.name == "asleep" and v.severity is Severity.INFO]
    if 0 < len(asleep) < len(every):
        awake = {name: v for name, v in verdicts.items() if name not in asleep}
        found = _of_all(awake, pool, down)
        text = f"{len(asleep)} of {len(every)} engines ({_some(asleep)}) {'sleeps' if len(asleep) == 1 else 'sleep'}"
        return replace(
            found, summary=f"{found.summary}; {text}", evidence=(*found.evidence, Evidence(text=text))
        )
    first = max(every, key=lambda name: _rank(every[name]))
    worst = every[first]
    same = [name for name, v in every.items() if v.name == worst.name]
    if worst.name == "down" and len({every[name].summary for name in same}) > 1:
        each = dict.fromkeys(one for name in same for one in every[name].actions)
        worst = replace(worst, summary="down: no metrics, for different reasons", actions=tuple(each))
    severity = worst.severity
    if worst.name == "down" and len(same) < len(every):
        others = max((v.severity for n, v in every.items() if n not in same), key=SEVERITIES.index)
        severity = max(Severity.WARNING, others, key=SEVERITIES.index)
    whole = len(same) == len(every)
    who = f"all {len(every)} engines" if whole else f"{len(same)} of {len(every)} engines ({_some(same)})"
    lines = [Evidence(text=f"{who}: {worst.summary}")]
    own = worst.evidence if worst.name == "down" else tuple(_of(first, one) for one in worst.evidence)
    lines += own if not down else [*_down_lines(down), *own]
    return replace(
        worst, severity=severity, summary=f"{worst.summary}: {who}" if not whole else worst.summary,
        evidence=tuple(lines),
    )  # fmt: skip


def _of(name: str, one: Evidence) -> Evidence:
    """An engine's own evidence with its name, since it stands under the pool's verdict."""
    return replace(one, text=f"{name}: {one.text}")


def _rank(one: Verdict) -> tuple[int, int]:
    severity = Severity.OK if _left_over(one) else one.severity
    return SEVERITIES.index(severity), -NAMES.index(one.name)


def _left_over(one: Verdict) -> bool:
    """Idle with a KV gauge that still shows its last load."""
    return one.name == "idle" and one.severity is Severity.INFO


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def _down_lines(down: Mapping[str, str]) -> list[Evidence]:
    return [Evidence(text=f"{name}: {reason}") for name, reason in down.items()]


def _imbalance(verdicts: Mapping[str, Verdict], pool: Signals) -> Verdict | None:
    """One part of the pool is loaded or queueing while the rest has room."""
    line = thresholds()
    serving = [name for name, v in verdicts.items() if v.name in (*BOUND, *FINE)]
    usage = _known(pool, "kv_usage", [name for name in serving if not _left_over(verdicts[name])])
    running, waiting = _known(pool, "running", serving), _known(pool, "waiting", serving)
    if len(verdicts) < 2 or (len(usage) < 2 and len(running) < 2):
        return None
    bound = [name for name, v in verdicts.items() if v.name in BOUND]
    hot = max(usage or running, key=lambda name: (usage or running)[name])
    if 2 * len(bound) > len(verdicts):
        return None
    lines: list[Evidence] = []
    if len(usage) > 1:
        gap = usage[hot] - min(usage.values())
        if gap >= line["imbalance_kv_gap"].value and usage[hot] >= line["kv_low"].value:
            text = f"KV {usage[hot]:.1%} on {hot} against {min(usage.values()):.1%} on the emptiest"
            lines.append(Evidence(text=text, signal="kv_usage", metric=pool["kv_usage"].metric))
    if len(running) > 1:
        busiest = max(running, key=lambda name: running[name])
        middle = median(value for name, value in running.items() if name != busiest)
        apart = running[busiest] - middle
        pressed = waiting.get(busiest, 0.0) > 0 or usage.get(busiest, 0.0) >= line["kv_low"].value
        if (
            pressed
            and apart > line["imbalance_running_gap"].value
            and running[busiest] >= line["imbalance_running_ratio"].value * middle
        ):
            hot = busiest
            text = f"{running[busiest]:.0f} run on {busiest} against {middle:.0f} on the others (median)"
            lines.append(Evidence(text=text, signal="running", metric=pool["running"].metric))
    pressed = usage.get(hot, 0.0) >= line["kv_act"].value or waiting.get(hot, 0.0) > 0
    fine = [name for name in serving if verdicts[name].name in FINE and name != hot]
    if not fine or not lines or (len(lines) < 2 and not pressed):
        return None
    severity = max(Severity.WARNING, verdicts[hot].severity, key=SEVERITIES.index)
    return verdict(
        "imbalanced",
        severity,
        Confidence.HIGH if len(lines) > 1 else Confidence.MEDIUM,
        f"imbalanced: {hot} is loaded while {_some(fine)} {'has' if len(fine) == 1 else 'have'} room",
        *lines,
        Evidence(text=f"{hot}: {verdicts[hot].summary}"),
    )


def _known(pool: Signals, name: str, among: Collection[str]) -> dict[str, float]:
    each = pool[name].by_engine or {}
    return {key: value for key, value in each.items() if value is not None and key in among}
