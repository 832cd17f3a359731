"""Runs in words and rows: the verdict with its cause, what must be said loudly, and the table side by side.

Pure: reports in, text out. Source of figures: capacity.simulation.report. Left out: charts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pages.ui.format import UNKNOWN, count, percent
from pages.ui.simulate_runs import Outcome

NOTABLE = 0.02
NO_FIGURES = ("everything_rejected", "nothing_finished", "nothing_after_warmup")
Severity = Literal["ok", "act", "critical", "information"]
WAITED = {
    "blocks": "for KV blocks: the head of the line did not fit the pool",
    "seats": "for a seat: max_num_seqs requests were running",
    "budget": "for prefill budget: max_num_batched_tokens was used up",
    "preempted": "because nobody is admitted in a step that preempted",
    "batch": "for the batch in progress, which nobody can join",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The banner: how grave, the answer in bold, why."""

    severity: Severity
    answer: str
    cause: str


def seconds(value: float | None) -> str:
    """ms under a second, then seconds with two digits.

    >>> seconds(0.0123), seconds(8.225), seconds(67.75), seconds(None)
    ('12.3 ms', '8.2 s', '68 s', '–')
    """
    if value is None:
        return UNKNOWN
    if value < 0.0995:
        return f"{value * 1000:.1f} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 9.95 else f"{value:,.0f} s"


def rate(value: float | None) -> str:
    """Requests per second with two decimals."""
    return UNKNOWN if value is None else f"{value:,.2f}"


def refused(answer: dict[str, Any]) -> int:
    return sum(answer["requests"]["rejected"].values())


def wasted(answer: dict[str, Any]) -> int:
    """Tokens computed twice, or for a client that had gone."""
    return int(answer["recomputed_tokens"] + answer["aborted_tokens"]["computed"])


def loud(answer: dict[str, Any]) -> str | None:
    """What makes a run's figures worthless or unsteady, None when nothing does."""
    requests = answer["requests"]
    arrived = requests["arrived"]
    if arrived == 0:
        return "nothing arrived"
    if refused(answer) == arrived:
        return f"all {arrived:,} requests were refused ({', '.join(_reasons(answer))})"
    if requests["finished"] == 0:
        return f"nothing finished: none of {arrived:,} requests got an answer"
    for text in answer["warnings"]:
        if text.startswith(
            ("nothing was measured", "no steady state", "fault of the scheduler", "cancelled", "cut at")
        ):
            return str(text)
    return None


def cause(answer: dict[str, Any]) -> str:
    """Why a run is as it is, in one sentence without a subject."""
    parts = []
    requests = answer["requests"]
    peak = answer["kv_usage"]["peak"]
    if requests["preemptions"]:
        times = "once" if requests["preemptions"] == 1 else f"{requests['preemptions']:,} times"
        parts.append(
            f"decode outgrew the pool: preempted {times}, {count(answer['recomputed_tokens'])} tokens "
            "computed again"
        )
    else:
        total = sum(answer["waiting_cause_s"].values())
        if total > 0.02 * answer["steps"]["busy_s"]:
            main = max(answer["waiting_cause_s"], key=lambda key: answer["waiting_cause_s"][key])
            parts.append(f"requests waited during {seconds(total)}, mostly {WAITED[main]}")
        else:
            parts.append(f"nobody waited long, the pool peaked at {percent(peak)}")
    if refused(answer):
        parts.append(f"{refused(answer):,} of {requests['arrived']:,} refused")
    if requests["aborted"]:
        parts.append(f"{requests['aborted']:,} gave up after {answer['retries']:,} retries" if answer["retries"] else
                     f"{requests['aborted']:,} gave up")  # fmt: skip
    return ", ".join(parts)


def verdict(outcomes: Sequence[Outcome]) -> Verdict:
    """The banner for one to three runs."""
    problems = [(one, loud(one.answer)) for one in outcomes]
    dead = [(one, text) for one, text in problems if text and one.answer["status"] in NO_FIGURES]
    unsteady = [(one, text) for one, text in problems if text and one.answer["status"] not in NO_FIGURES]
    causes = " ".join(f"{one.letter}: {cause(one.answer)}." for one in outcomes)
    if dead:
        said = " ".join(f"{one.letter}: {text}." for one, text in dead)
        return Verdict(
            severity="critical", answer=_sentence(said), cause=causes if len(dead) < len(outcomes) else ""
        )
    answer, severity = _compared(outcomes)
    if unsteady:
        said = " ".join(f"{one.letter}: {text}." for one, text in unsteady)
        return Verdict(severity="act", answer=answer, cause=f"{said} {causes}")
    return Verdict(severity=severity, answer=answer, cause=causes)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] if text else text


def winner(outcomes: Sequence[Outcome]) -> int:
    """The place of the run that serves most; the first one unless another is notably better."""
    scores = _scores(outcomes)
    best = max(range(len(scores)), key=lambda i: scores[i])
    return 0 if scores[best] - scores[0] <= NOTABLE * scores[0] else best


def _scores(outcomes: Sequence[Outcome]) -> list[float]:
    """Requests within the objective of the same arrivals; their rate where the arrivals differ (a closed loop that was
    cut). The rate alone would praise a gate for a run that is over sooner.
    """
    arrived = {one.answer["requests"]["arrived"] for one in outcomes}
    if len(arrived) == 1:
        return [float(one.answer["goodput_requests"] or 0) for one in outcomes]
    return [one.answer["goodput_rps"] or 0.0 for one in outcomes]


def _compared(outcomes: Sequence[Outcome]) -> tuple[str, Severity]:
    first = outcomes[0]
    objective = _has_objective(first)
    if len(outcomes) == 1:
        answer = first.answer
        arrived, good = answer["requests"]["arrived"], answer["goodput_requests"]
        kind = "within the objective" if objective else "finished (no objective is set)"
        severity: Severity = "ok" if good >= 0.95 * arrived else "act"
        return f"{good:,} of {arrived:,} requests {kind}, {rate(answer['goodput_rps'])} a second.", severity
    scores, best = _scores(outcomes), winner(outcomes)
    arrivals = {one.answer["requests"]["arrived"] for one in outcomes}
    whole = f" of {arrivals.pop():,} requests" if len(arrivals) == 1 else " requests/s"
    shown = [f"{score:,.0f}" if "of" in whole else rate(score) for score in scores]
    ttft = ", ".join(f"{one.letter} {seconds(one.answer['ttft_s']['p99'])}" for one in outcomes)
    tail = f" TTFT p99: {ttft}."
    kind = "within the objective" if objective else "(no objective is set)"
    if all(abs(score - scores[0]) <= NOTABLE * max(scores[0], 1e-12) for score in scores):
        same = ", ".join(f"{one.letter} {text}" for one, text in zip(outcomes, shown, strict=True))
        verb = "serve" if objective else "finish"
        return f"The policies {verb} as much {kind}: {same}{whole}.{tail}", "information"
    verb = "serves" if objective else "finishes"
    if best == 0:
        others = ", ".join(
            f"{one.letter} {text}" for one, text in list(zip(outcomes, shown, strict=True))[1:]
        )
        return f"A {verb} most {kind}: {shown[0]}{whole} against {others}.{tail}", "information"
    gain = scores[best] / scores[0] - 1 if scores[0] else None
    more = "" if gain is None else f", {gain:+.0%}" if gain < 2 else f", {gain + 1:.1f} times as many"
    return (
        f"{outcomes[best].letter} {verb} more {kind}: {shown[best]}{whole} against {shown[0]} of A{more}.{tail}",
        "ok",
    )


def _has_objective(one: Outcome) -> bool:
    slo = one.scenario.get("slo")
    return isinstance(slo, dict) and any(value is not None for value in slo.values())


def offered(answer: dict[str, Any]) -> float | None:
    """Requests that arrived, per second from the first arrival to the last answer."""
    span = answer["duration_s"]
    return answer["requests"]["arrived"] / span if span and span > 0 else None


def _reasons(answer: dict[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' ')} {number:,}" for name, number in answer["requests"]["rejected"].items()]


Row = tuple[str, Callable[[dict[str, Any]], Any], Callable[[Any], str]]


def _part(key: str, part: str) -> Callable[[dict[str, Any]], Any]:
    return lambda answer: answer[key].get(part)


def _spread(label: str, key: str, parts: Sequence[str]) -> list[Row]:
    return [(f"{label} {part}", _part(key, part), seconds) for part in parts]


ROWS: tuple[Row, ...] = (
    ("Goodput, requests/s", lambda a: a["goodput_rps"], rate),
    ("Requests within the objective", lambda a: a["goodput_requests"], count),
    ("Share of finished within it", lambda a: a["slo_attainment"], percent),
    ("Finished", lambda a: a["requests"]["finished"], count),
    ("Refused", refused, count),
    ("Gave up", lambda a: a["requests"]["aborted"], count),
    ("Retries", lambda a: a["retries"], count),
    ("Preemptions", lambda a: a["requests"]["preemptions"], count),
    *_spread("TTFT", "ttft_s", ("p50", "p90", "p99")),
    *_spread("TPOT", "tpot_s", ("p50", "p90", "p99")),
    *_spread("ITL", "itl_s", ("p50", "p99")),
    *_spread("E2E", "e2e_s", ("p50", "p90", "p99")),
    *_spread("Queue time", "queue_s", ("p50", "p99")),
    ("Waterline, mean", lambda a: a["kv_usage"]["mean"], percent),
    ("Waterline, peak", lambda a: a["kv_usage"]["peak"], percent),
    ("Engines busy", lambda a: a["utilisation"], percent),
    ("Output tokens/s", lambda a: a["output_tokens_per_s"], count),
    ("Tokens computed again", lambda a: a["recomputed_tokens"], count),
    ("Tokens for clients gone", lambda a: a["aborted_tokens"]["computed"], count),
    ("Prefix cache hits", lambda a: a["prefix_cache"]["hit_rate"], percent),
    ("Time in queue", lambda a: a["time_share"]["queue"], percent),
    ("Time in prefill", lambda a: a["time_share"]["prefill"], percent),
    ("Time in decode", lambda a: a["time_share"]["decode"], percent),
    ("Time preempted", lambda a: a["time_share"]["preempted"], percent),
)


def result_rows(outcomes: Sequence[Outcome]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The table as shown and as numbers (seconds, shares)."""
    shown, plain = [], []
    for label, get, show in ROWS:
        values = [get(one.answer) for one in outcomes]
        shown.append(
            {"figure": label, **{one.policy.title: show(v) for one, v in zip(outcomes, values, strict=True)}}
        )
        plain.append(
            {"figure": label, **{one.policy.title: v for one, v in zip(outcomes, values, strict=True)}}
        )
    return shown, plain


def interval_rows(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """Means with their 95 % intervals from batch means."""
    rows = []
    for label, key in (("TTFT mean", "ttft_s"), ("E2E mean", "e2e_s")):
        row = {"figure": f"{label} (95 %)"}
        for one in outcomes:
            found = one.answer["confidence"][key]
            mean, half = found["mean"], found["half_width"]
            row[one.policy.title] = seconds(mean) + (
                f" ({seconds(max(mean - half, 0.0))}-{seconds(mean + half)})"
                if mean is not None and half
                else ""
            )
        rows.append(row)
    return rows


def fairness_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """How requests of each prompt length fared."""
    rows = []
    for one in outcomes:
        for item in one.answer["length_classes"]:
            rows.append(
                {
                    "policy": one.letter,
                    "prompt tokens": item["prompt_tokens"],
                    "arrived": count(item["arrived"]),
                    "finished": count(item["finished"]),
                    "refused": count(item["rejected"]),
                    "TTFT p50": seconds(item["ttft_p50_s"]),
                    "TTFT p99": seconds(item["ttft_p99_s"]),
                    "TPOT p50": seconds(item["tpot_p50_s"]),
                    "preemptions": count(item["preemptions"]),
                }
            )
    return rows
