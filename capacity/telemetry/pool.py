"""Several engines as one pool: totals, the worst and the spread, never just a mean.

KV usage of a pool is the maximum over its engines with each listed; counts and rates are totals;
percentiles come from merged bucket increases. An engine whose value is unknown makes the total partial,
never smaller in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from capacity.telemetry.quantiles import merge
from capacity.telemetry.signals import (
    LATENCIES,
    MORE_ACCEPTED,
    MORE_HITS,
    SIGNALS,
    Signals,
    engine_signals,
    percentiles,
    share,
)
from capacity.telemetry.values import Histogram, State, Value, unknown
from capacity.telemetry.window import EngineWindow, Increase

TOTALS = (
    "running",
    "waiting",
    "kv_capacity_tokens",
    "num_blocks",
    "max_concurrency",
    "prompt_tokens_per_s",
    "generation_tokens_per_s",
    "requests_per_s",
    "preemptions_per_s",
    "rejections_per_s",
    "recomputed_tokens_per_s",
    "swapped",
)
UNOWNED = (
    "prompt_tokens_per_s",
    "generation_tokens_per_s",
    "requests_per_s",
    "preemptions_per_s",
    "rejections_per_s",
    "finished_by_reason",
)
NO_ENGINE = "no engine of this pool can be read"


def label(window: EngineWindow, windows: Sequence[EngineWindow]) -> str:
    """A name for an engine that is unique in the pool: its target, with the engine where a target has
    several.

    Without target names it is the engine label alone.
    """
    same = sum(other.target == window.target for other in windows)
    alone = len({other.target for other in windows}) == 1
    if alone or not window.target:
        return window.engine
    return f"{window.target}/{window.engine}" if same > 1 else window.target


def pool_signals(
    windows: Sequence[EngineWindow],
    *,
    shared: Sequence[EngineWindow] = (),
    down: Mapping[str, str] | None = None,
) -> Signals:
    """Signals of a pool. ``shared``: windows over readings of a target that carry no engine label (admission
    rejections, SGLang's counters with several ranks); they count where no engine of the target has its own.

    ``down``: targets that did not answer, with the reason; their share of every total is unknown and said.
    """
    down = down or {}
    if not windows:
        reason = "; ".join(f"{name}: {why}" for name, why in down.items()) or NO_ENGINE
        names = [*SIGNALS, *(n for n in TOTALS if n not in SIGNALS)]
        return Signals(values={n: unknown(State.DOWN, reason) for n in names}, seconds=None)
    each = {label(w, windows): engine_signals(w) for w in windows}
    missing = [*down]
    target_of = {label(w, windows): w.target for w in windows}
    loose = {w.target: engine_signals(w) for w in shared}
    values: dict[str, Value] = {}
    for name in TOTALS:
        extra = _unowned(name, each, target_of, loose)
        covered = {key for key, target in target_of.items() if target in extra}
        values[name] = _total(name, {k: v for k, v in each.items() if k not in covered} | extra, missing)
    values["kv_usage"] = _worst("kv_usage", each, missing)
    values["block_size"] = _same("block_size", each)
    values["waiting_by_reason"] = _merged_parts("waiting_by_reason", each, missing)
    finished = _unowned("finished_by_reason", each, target_of, loose)
    owned = {k: v for k, v in each.items() if target_of[k] not in finished}
    values["finished_by_reason"] = _merged_parts("finished_by_reason", owned | finished, missing)
    values["sleep_state"] = _sleep(each)
    values["lora"] = _lora(each)
    values["prefix_cache_hit_rate"] = _pool_ratio(
        windows, "prefix_hits", "prefix_queries", each, "prefix_cache_hit_rate", MORE_HITS
    )
    values["spec_decode_acceptance"] = _pool_ratio(
        windows, "spec_accepted_tokens", "spec_draft_tokens", each, "spec_decode_acceptance", MORE_ACCEPTED
    )
    for name in LATENCIES:
        values |= percentiles(name, _merged(name, windows, shared))
    steps = _merged("step_tokens", windows, shared)
    values["tokens_per_step"] = (
        Value(value=steps.mean, state=steps.state, metric=steps.metric, reason=steps.reason)
        if isinstance(steps, Histogram) and steps.mean is not None
        else steps
        if isinstance(steps, Value)
        else unknown(State.MISSING, "no step in the window", metric=steps.metric)
    )
    return Signals(
        values=values,
        seconds=max((w.seconds for w in windows if w.seconds is not None), default=None),
        notes=tuple(dict.fromkeys(note for w in windows for note in w.latest.notes)),
        engines=tuple(each),
    )


def _unowned(
    name: str, each: Mapping[str, Signals], target_of: Mapping[str, str], loose: Mapping[str, Signals]
) -> dict[str, Signals]:
    """Targets whose readings without an engine label answer a signal that none of their engines answers."""
    owners = {target_of[key] for key, signals in each.items() if signals[name].known}
    return {
        target: signals
        for target, signals in loose.items()
        if target not in owners and name in UNOWNED and signals[name].metric is not None
    }


def _numbers(name: str, each: Mapping[str, Signals]) -> dict[str, float | None]:
    return {key: signals.number(name) for key, signals in each.items()}


def _unknown_of(name: str, each: Mapping[str, Signals]) -> Value:
    first = next(iter(each.values()))[name]
    state = State.MISSING if first.state is State.OK else first.state
    return unknown(state, first.reason or "not known", metric=first.metric)


def _gaps(numbers: Mapping[str, float | None], missing: Sequence[str]) -> str | None:
    absent = [key for key, number in numbers.items() if number is None] + list(missing)
    return f"without {', '.join(absent)}" if absent else None


def _state(name: str, each: Mapping[str, Signals], gap: str | None) -> State:
    if gap is not None:
        return State.PARTIAL
    states = [signals[name].state for signals in each.values()]
    return next((s for s in states if s is not State.OK), State.OK)


def _total(name: str, each: Mapping[str, Signals], missing: Sequence[str]) -> Value:
    numbers = _numbers(name, each)
    known = [n for n in numbers.values() if n is not None]
    if not known:
        return _unknown_of(name, each)
    gap = _gaps(numbers, missing)
    answered = [s[name] for s in each.values() if s.number(name) is not None]
    first = next((v for v in answered if v.state is not State.OK), answered[0])
    return Value(
        value=math.fsum(known),
        state=_state(name, each, gap),
        metric=first.metric,
        reason=gap or first.reason,
        by_engine=numbers if len(numbers) > 1 else None,
    )


def _worst(name: str, each: Mapping[str, Signals], missing: Sequence[str]) -> Value:
    numbers = _numbers(name, each)
    known = [n for n in numbers.values() if n is not None]
    if not known:
        return _unknown_of(name, each)
    gap = _gaps(numbers, missing)
    first = next(s[name] for s in each.values() if s.number(name) is not None)
    spread = f"maximum of {len(known)} engines; mean {sum(known) / len(known):.1%}, lowest {min(known):.1%}"
    reason = first.reason if len(known) == 1 else spread
    return Value(
        value=max(known),
        state=_state(name, each, gap),
        metric=first.metric,
        reason=f"{reason}; {gap}" if gap and reason else gap or reason,
        by_engine=numbers if len(numbers) > 1 else None,
    )


def _same(name: str, each: Mapping[str, Signals]) -> Value:
    numbers = {n for n in _numbers(name, each).values() if n is not None}
    if not numbers:
        return _unknown_of(name, each)
    if len(numbers) > 1:
        seen = ", ".join(f"{n:g}" for n in sorted(numbers))
        return unknown(State.PARTIAL, f"the engines differ: {seen}")
    return next(s[name] for s in each.values() if s.number(name) is not None)


def _merged_parts(name: str, each: Mapping[str, Signals], missing: Sequence[str]) -> Value:
    parts: dict[str, float] = {}
    absent = list(missing)
    first: Value | None = None
    for key, signals in each.items():
        found = signals[name]
        if not isinstance(found.value, Mapping):
            absent.append(key)
            continue
        first = first or found
        for part, number in found.value.items():
            parts[part] = parts.get(part, 0.0) + number
    if first is None:
        return _unknown_of(name, each)
    state = State.PARTIAL if absent else first.state
    reason = f"without {', '.join(absent)}" if absent else first.reason
    return Value(value=parts, state=state, metric=first.metric, reason=reason)


def _sleep(each: Mapping[str, Signals]) -> Value:
    known = {key: s["sleep_state"] for key, s in each.items() if s["sleep_state"].known}
    if not known:
        return _unknown_of("sleep_state", each)
    first = next(iter(known.values()))
    if len({v.value for v in known.values()}) == 1 and len(known) == len(each):
        return first
    return Value(value={k: v.value for k, v in known.items()}, state=State.PARTIAL, metric=first.metric)


def _lora(each: Mapping[str, Signals]) -> Value:
    found = [s["lora"] for s in each.values() if isinstance(s["lora"].value, Mapping)]
    if not found:
        return _unknown_of("lora", each)
    if len(found) == 1:
        return found[0]
    merged: dict[str, list[str]] = {
        key: sorted({n for v in found if isinstance(v.value, Mapping) for n in v.value.get(key, ())})
        for key in ("running", "waiting")
    }
    limits = [v.value.get("max_lora") for v in found if isinstance(v.value, Mapping)]
    return replace(found[0], value={"max_lora": max((n for n in limits if n), default=None), **merged})


def _pool_ratio(
    windows: Sequence[EngineWindow], top: str, bottom: str, each: Mapping[str, Signals], name: str, over: str
) -> Value:
    """Ratio of totals over the engines that know both parts; a single engine's own value as it is."""
    if len(windows) == 1:
        return next(iter(each.values()))[name]
    tops, bottoms = [w.increase(top) for w in windows], [w.increase(bottom) for w in windows]
    pairs = [
        (t, b) for t, b in zip(tops, bottoms, strict=True) if t.amount is not None and b.amount is not None
    ]
    if not pairs:
        own = [signals[name] for signals in each.values()]
        if any(one.known for one in own):
            reason = "averages of the engines' own cannot be put together"
            return replace(
                unknown(State.PARTIAL, reason, metric=own[0].metric), by_engine=_numbers(name, each)
            )
        return _unknown_of(name, each)
    return share(
        _sum([t for t, _ in pairs]),
        _sum([b for _, b in pairs]),
        idle="nothing was counted in the window",
        over=over,
    )


def _sum(increases: Sequence[Increase]) -> Increase:
    worst = next((one for one in increases if one.state is not State.OK), increases[0])
    return replace(worst, amount=math.fsum(one.amount or 0.0 for one in increases))


def _merged(name: str, windows: Sequence[EngineWindow], shared: Sequence[EngineWindow]) -> Histogram | Value:
    """The engines' histograms as one, with those of a target that carry no engine label."""
    found = [w.histograms.get(name, w.latest.value(name)) for w in windows]
    owners = {w.target for w, h in zip(windows, found, strict=True) if isinstance(h, Histogram)}
    loose = {w.target: w.histograms[name] for w in shared if w.target not in owners and name in w.histograms}
    found = [h for w, h in zip(windows, found, strict=True) if w.target not in loose] + [*loose.values()]
    known = [h for h in found if isinstance(h, Histogram)]
    if not known:
        return next(h for h in found if isinstance(h, Value))
    merged = merge(known)
    if isinstance(merged, Histogram) and len(known) < len(found):
        return replace(merged, state=State.PARTIAL, reason=f"{len(known)} of {len(found)} engines")
    return merged
