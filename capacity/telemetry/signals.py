"""The signals of one engine over a window: what every panel, API answer and verdict is made of.

Gauges come from the newest snapshot, rates and percentiles from the window. Every name of ``SIGNALS`` is
always there; an unknown one is a Value that says why. Left out: several engines together (``pool``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from capacity.telemetry.quantiles import quantile
from capacity.telemetry.values import Breakdown, Histogram, State, Value, unknown
from capacity.telemetry.window import ONE_SCRAPE, EngineWindow, Increase

PERCENTILES = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99))
LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s", "prefill_s", "decode_s")
SIGNALS = (
    "running",
    "waiting",
    "waiting_by_reason",
    "kv_usage",
    "kv_capacity_tokens",
    "num_blocks",
    "block_size",
    "max_concurrency",
    "prompt_tokens_per_s",
    "generation_tokens_per_s",
    "requests_per_s",
    "finished_by_reason",
    "preemptions_per_s",
    "rejections_per_s",
    "prefix_cache_hit_rate",
    "tokens_per_step",
    *(f"{name}.{p}" for name in LATENCIES for p, _ in PERCENTILES),
    "sleep_state",
    "lora",
    "spec_decode_acceptance",
)
IMPLAUSIBLE_MEAN_SHARE = 0.1
MORE_HITS = "more hits than look-ups were reported"
MORE_ACCEPTED = "more accepted than drafted tokens were reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Values by name (percentiles as ``ttft_s.p90``), the seconds they cover, and what should be said
    about them.

    Beyond ``SIGNALS`` there are ``swapped``, ``abort_share``, ``recomputed_tokens_per_s``,
    ``output_tokens_mean``, ``prompt_tokens_mean``, ``user_requests_per_s`` and the lifecycle shares
    ``share.queue|prefill|decode``.
    """

    values: Mapping[str, Value]
    seconds: float | None
    notes: tuple[str, ...] = ()
    engines: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def number(self, name: str) -> float | None:
        """The number of a signal, None where it is not known."""
        found = self.values.get(name)
        return None if found is None else found.number

    def as_json(self) -> dict[str, Any]:
        """The named signals as nested plain data, percentiles under their family."""
        out: dict[str, Any] = {}
        for name in SIGNALS:
            family, _, part = name.partition(".")
            if part:
                out.setdefault(family, {})[part] = _percentile_json(self.values[name])
            else:
                out[name] = self.values[name].as_json()
        return out


def _percentile_json(value: Value) -> dict[str, Any]:
    out = value.as_json()
    return {"low": value.low, "high": value.high, "count": value.count} | out


def percentiles(name: str, histogram: Histogram | Value) -> dict[str, Value]:
    """p50, p90 and p99 of one family; an impossible distribution is not offered as a latency."""
    if isinstance(histogram, Value):
        return {f"{name}.{p}": histogram for p, _ in PERCENTILES}
    doubt = _implausible(histogram)
    out = {}
    for p, q in PERCENTILES:
        value = quantile(q, histogram)
        if doubt is not None and value.known:
            value = replace(value, value=None, reason=doubt)
        elif value.known and value.reason is None:
            value = replace(value, reason=histogram.reason)
        elif value.known and histogram.reason and histogram.reason != value.reason:
            value = replace(value, reason=f"{value.reason}; {histogram.reason}")
        out[f"{name}.{p}"] = value
    return out


def _implausible(histogram: Histogram) -> str | None:
    """All observations in the lowest bucket and a mean far below it: the engine recorded zeros, not
    latencies.
    """
    if not histogram.bounds or histogram.count <= 0 or histogram.mean is None:
        return None
    lowest = histogram.bounds[0]
    everything = histogram.counts[0] >= histogram.count
    tiny = histogram.mean < lowest * IMPLAUSIBLE_MEAN_SHARE
    if everything and tiny and lowest <= 0.001:
        return (
            f"implausible: all {histogram.count:.0f} observations are below {lowest:g} s with a mean of "
            f"{histogram.mean:.2g} s; the engine seems to record zeros"
        )
    return None


def share(top: Increase, bottom: Increase, *, idle: str, over: str) -> Value:
    """``top / bottom`` of the same window, a part of a whole; unknown where either is, where nothing happened
    (``idle`` says it) or where the part is larger than the whole (``over``).
    """
    metric = " / ".join(m for m in (top.metric, bottom.metric) if m) or None
    if top.amount is None or bottom.amount is None:
        one = bottom if bottom.amount is None else top
        return unknown(one.state, one.reason or "not known", metric=one.metric)
    if bottom.amount <= 0:
        return unknown(State.MISSING, idle, metric=metric)
    if top.amount > bottom.amount:
        return unknown(State.MISSING, over, metric=metric)
    state = top.state if top.state is not State.OK else bottom.state
    return Value(
        value=top.amount / bottom.amount, state=state, metric=metric, reason=top.reason or bottom.reason
    )


def _mean(histogram: Histogram | Value | None, *, idle: str) -> Value:
    if histogram is None:
        return unknown(State.MISSING, "not in the window")
    if isinstance(histogram, Value):
        return histogram
    if histogram.mean is None:
        return unknown(State.MISSING, idle, metric=histogram.metric)
    return Value(
        value=histogram.mean, state=histogram.state, metric=histogram.metric, reason=histogram.reason
    )


def _by_label(window: EngineWindow, signal: str) -> Value:
    """A gauge by label, from the newest snapshot."""
    found = window.latest.readings.get(signal)
    if isinstance(found, Breakdown):
        return Value(value=dict(found.parts), state=found.state, metric=found.metric, reason=found.reason)
    return window.latest.value(signal)


def _finished(window: EngineWindow) -> Value:
    """Finished requests by reason: in the window, or since the start where there is one scrape."""
    parts = window.parts.get("finished")
    if not parts:
        total = window.increase("finished_total")
        if total.amount is not None:
            return Value(value={"finished": total.amount}, metric=total.metric, reason=total.reason)
        return window.latest.value("finished")
    known = {name: inc.amount for name, inc in parts.items() if inc.amount is not None}
    one = next((inc for inc in parts.values() if inc.state is not State.OK), next(iter(parts.values())))
    newest = window.latest.breakdown("finished")
    if newest is not None and newest.state is State.PARTIAL:
        one = replace(one, state=newest.state, reason=newest.reason)
    if not known:
        return unknown(one.state, one.reason or "not known", metric=one.metric)
    return Value(value=known, state=one.state, metric=one.metric, reason=one.reason)


def _sleep_state(window: EngineWindow) -> Value:
    found = window.latest.breakdown("sleep_state")
    if found is None:
        return window.latest.value("sleep_state")
    on = [name for name, value in found.parts.items() if value > 0]
    if len(on) != 1:
        return unknown(State.MISSING, f"{len(on)} sleep states are set at once", metric=found.metric)
    return Value(value=on[0], metric=found.metric)


def _prefix_hit_rate(window: EngineWindow) -> Value:
    hits, queries = window.increase("prefix_hits"), window.increase("prefix_queries")
    gauge = window.latest.value("prefix_hit_rate")
    if queries.amount is None and gauge.known:
        return replace(gauge, reason="the engine's own figure, not of this window")
    if queries.amount is None and queries.state is not State.MISSING and gauge.metric is not None:
        return gauge
    value = share(hits, queries, idle="no prefix was looked up in the window", over=MORE_HITS)
    if value.known and (window.increase("preemptions").amount or 0.0) > 0 and window.seconds is not None:
        return replace(value, reason="preempted requests look up their own blocks again and inflate this")
    return value


def _acceptance(window: EngineWindow) -> Value:
    drafted = window.increase("spec_draft_tokens")
    gauge = window.latest.value("spec_acceptance_rate")
    if drafted.amount is None and gauge.known:
        return gauge
    accepted = window.increase("spec_accepted_tokens")
    return share(accepted, drafted, idle="nothing was drafted in the window", over=MORE_ACCEPTED)


def recomputed(preemptions: Value, kv_usage: Value, capacity: Value, running: Value) -> Value:
    """Tokens per second thrown away by preemption: preemptions/s x mean tokens held per running request
    (estimate).
    """
    rate, held, tokens, sequences = (v.number for v in (preemptions, kv_usage, capacity, running))
    if rate is None:
        return preemptions
    if rate == 0:
        return Value(value=0.0, metric=preemptions.metric)
    if not held or not tokens or not sequences or sequences < 1:
        return unknown(
            State.MISSING, "needs KV usage, capacity and running requests", metric=preemptions.metric
        )
    return Value(
        value=rate * held * tokens / sequences,
        metric=preemptions.metric,
        reason="estimate: preemptions/s x mean tokens held per running request",
    )


def _lifecycle(window: EngineWindow) -> dict[str, Value]:
    """Queue, prefill and decode as shares of the finished requests' E2E time."""
    total = window.histograms.get("e2e_s")
    out = {}
    for name in ("queue", "prefill", "decode"):
        part = window.histograms.get(f"{name}_s")
        if not isinstance(total, Histogram) or not isinstance(part, Histogram):
            out[f"share.{name}"] = unknown(State.MISSING, "needs the E2E and phase histograms")
        elif not total.sum or part.sum is None:
            out[f"share.{name}"] = unknown(State.MISSING, "no request finished in the window")
        else:
            out[f"share.{name}"] = Value(value=min(1.0, part.sum / total.sum), metric=part.metric)
    return out


def engine_signals(window: EngineWindow) -> Signals:
    """All signals of one engine over its window."""
    latest, config = window.latest, window.latest.config
    values: dict[str, Value] = {
        "running": latest.value("running"),
        "waiting": latest.value("waiting"),
        "waiting_by_reason": _by_label(window, "waiting_by_reason"),
        "kv_usage": latest.value("kv_usage"),
        "kv_capacity_tokens": config.kv_capacity_tokens,
        "num_blocks": config.num_blocks,
        "block_size": config.block_size,
        "max_concurrency": config.max_concurrency,
        "prompt_tokens_per_s": window.increase("prompt_tokens").rate(),
        "generation_tokens_per_s": _generation_rate(window),
        "requests_per_s": _requests_rate(window),
        "finished_by_reason": _finished(window),
        "preemptions_per_s": window.increase("preemptions").rate(),
        "rejections_per_s": window.increase("rejections").rate(),
        "prefix_cache_hit_rate": _prefix_hit_rate(window),
        "sleep_state": _sleep_state(window),
        "lora": latest.value("lora"),
        "spec_decode_acceptance": _acceptance(window),
        "tokens_per_step": _mean(
            window.histograms.get("step_tokens", latest.value("step_tokens")), idle="no step in the window"
        ),
        "swapped": latest.value("swapped"),
    }
    for name in LATENCIES:
        values |= percentiles(name, window.histograms.get(name, latest.value(name)))
    values["recomputed_tokens_per_s"] = recomputed(
        values["preemptions_per_s"], values["kv_usage"], values["kv_capacity_tokens"], values["running"]
    )
    values["abort_share"] = _abort_share(values["finished_by_reason"])
    for signal, name in (
        ("request_prompt_tokens", "prompt_tokens_mean"),
        ("request_generation_tokens", "output_tokens_mean"),
    ):
        values[name] = _mean(
            window.histograms.get(signal, latest.value(signal)), idle="no request finished in the window"
        )
    values["user_requests_per_s"] = _user_requests_rate(window)
    values |= _lifecycle(window)
    return Signals(values=values, seconds=window.seconds, notes=latest.notes, engines=(window.engine,))


def _generation_rate(window: EngineWindow) -> Value:
    rate = window.increase("generation_tokens").rate()
    own = window.latest.value("generation_tokens_per_s")
    if not rate.known and own.known:
        return replace(own, reason="the engine's own average")
    return rate


def _requests_rate(window: EngineWindow) -> Value:
    for signal in ("finished", "finished_total"):
        found = window.increase(signal)
        if found.amount is not None or found.metric is not None:
            return found.rate()
    return window.increase("finished").rate()


def _user_requests_rate(window: EngineWindow) -> Value:
    """Requests as users count them: one observation each, however many sequences it asks for."""
    found = window.histograms.get("request_params_n", window.latest.value("request_params_n"))
    if isinstance(found, Value):
        return found
    if window.seconds is None:
        return unknown(State.MISSING, ONE_SCRAPE, metric=found.metric)
    rate = found.count / window.seconds
    return Value(value=rate, state=found.state, metric=found.metric, reason=found.reason)


def _abort_share(finished: Value) -> Value:
    if not isinstance(finished.value, Mapping):
        return finished
    total = math.fsum(finished.value.values())
    if total <= 0:
        return unknown(State.MISSING, "no request finished in the window", metric=finished.metric)
    return Value(value=finished.value.get("abort", 0.0) / total, metric=finished.metric)
