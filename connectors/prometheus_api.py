"""Queries to a Prometheus-compatible server: Prometheus, Thanos, Mimir, VictoriaMetrics.

Instant and range queries with errors explained, warnings kept, replicas of a high-availability pair
counted once and at most 11,000 points per series and request. Left out: what the series mean
(``prometheus_snapshots``, ``prometheus_history``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from connectors.errors import QueryFailed, Unreachable
from connectors.http import HttpClient
from connectors.targets import Target

MAX_POINTS = 11_000
CAP_BYTES = 64_000_000
REPLICA_LABELS = ("prometheus_replica", "__replica__", "replica", "prometheus", "monitor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series: labels (``__name__`` among them) and (time, value) points; NaN points are left out."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """The metric name, empty for an expression."""
        return self.labels.get("__name__", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An answer: series and what the server or the merging had to say. ``partial`` where the server
    warned.
    """

    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()
    partial: bool = False


def choose_step(seconds: float, wanted_s: float, *, max_points: int = MAX_POINTS) -> float:
    """The smallest whole-second step, at least ``wanted_s``, with which a range fits in one request.

    >>> choose_step(172_743, 10)
    16.0
    >>> choose_step(3_600, 15)
    15.0
    """
    if seconds < 0 or not wanted_s > 0:
        raise QueryFailed(f"range {seconds:g} s at step {wanted_s:g} s is not valid; valid: both above 0")
    if math.floor(seconds / wanted_s) + 1 <= max_points:
        return float(wanted_s)
    return float(math.ceil(seconds / (max_points - 1)))


def split_range(
    start_s: float, end_s: float, step_s: float, *, max_points: int = MAX_POINTS
) -> list[tuple[float, float]]:
    """A range cut into requests of at most ``max_points``, on one grid and without overlap.

    >>> split_range(0, 100, 10, max_points=6)
    [(0, 50), (60, 100)]
    """
    out = []
    start = start_s
    while start <= end_s:
        end = min(end_s, start + step_s * (max_points - 1))
        out.append((start, end))
        start = end + step_s
    return out


class PrometheusClient:
    """Queries to one server; base path, tenant and authentication headers come with the target."""

    def __init__(self, target: Target, *, client: HttpClient | None = None) -> None:
        self._base = target.url.rstrip("/")
        self._client = client or HttpClient(target.access, policy=target.policy, cap_bytes=CAP_BYTES)

    def query(self, expression: str, *, time_s: float | None = None) -> Result:
        """An instant query; a range selector (``[2m]``) gives the stored samples with their own times."""
        parameters = {"query": expression}
        if time_s is not None:
            parameters["time"] = f"{time_s:.3f}"
        return self._ask("query", parameters)

    def query_range(self, expression: str, *, start_s: float, end_s: float, step_s: float) -> Result:
        """A range query on the grid ``start_s + k * step_s``, split where one request would be too large."""
        parts = [
            self._ask(
                "query_range",
                {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"},
            )
            for start, end in split_range(start_s, end_s, step_s)
        ]
        if len(parts) == 1:
            return parts[0]
        joined: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        for part in parts:
            for one in part.series:
                joined.setdefault(tuple(sorted(one.labels.items())), []).extend(one.points)
        return Result(
            series=tuple(Series(labels=dict(key), points=tuple(points)) for key, points in joined.items()),
            notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
            partial=any(part.partial for part in parts),
        )

    def _ask(self, path: str, parameters: Mapping[str, str]) -> Result:
        url = f"{self._base}/api/v1/{path}?{urlencode(parameters)}"
        answer = self._client.get(url, accept="application/json", errors_too=True)
        if answer.status == 404:
            raise Unreachable(
                "no Prometheus API at this address (404); a base path such as /prometheus missing?"
            )
        return parse_answer(answer.body, status=answer.status)


def parse_answer(body: bytes, *, status: int = 200) -> Result:
    """An answer of the query API. QueryFailed with an explanation where it is an error or no such answer."""
    try:
        answer = json.loads(body)
        state = answer["status"]
    except (ValueError, TypeError, KeyError, RecursionError):
        if status == 401:
            raise QueryFailed("the server asks for credentials (401)") from None
        if status == 403:
            raise QueryFailed("the server refuses these credentials (403)") from None
        raise QueryFailed(f"no answer of a Prometheus query API (status {status})") from None
    if state != "success":
        raise QueryFailed(explain(str(answer.get("errorType", "error")), str(answer.get("error", ""))))
    data = answer.get("data")
    kind, found = (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)
    if kind not in ("vector", "matrix") or not isinstance(found, list):
        raise QueryFailed(f"result type {str(kind)[:20]!r} cannot be read; valid: vector, matrix")
    try:
        series = [_series(kind, one) for one in found]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise QueryFailed("the answer holds a series that cannot be read") from None
    merged, notes = once(series)
    warnings = _said(answer, "warnings")
    notes += [f"the server warns: {warning}" for warning in warnings]
    notes += [f"the server says: {info}" for info in _said(answer, "infos")]
    return Result(series=tuple(merged), notes=tuple(notes), partial=bool(warnings))


def explain(kind: str, error: str) -> str:
    """An API error in words that say what to do.

    >>> explain("bad_data", "exceeded maximum resolution of 11,000 points per timeseries. Try ...")
    'the server gives at most 11,000 points per series: a larger step or a shorter window is needed'
    """
    if "maximum resolution" in error:
        return (
            "the server gives at most 11,000 points per series: a larger step or a shorter window is needed"
        )
    if kind == "timeout":
        return (
            "the query took longer than the server allows: a narrower selector or a shorter window is needed"
        )
    if "no org id" in error:
        return "the server needs a tenant: give the header X-Scope-OrgID by environment or secrets file"
    return f"the server answered {kind}: {' '.join(error.split())[:200]}"


def _said(answer: Mapping[str, Any], name: str) -> list[str]:
    found = answer.get(name) or []
    return [str(one)[:200] for one in (found if isinstance(found, list) else [found])]


def _series(kind: str, one: Mapping[str, Any]) -> Series:
    raw = [one["value"]] if kind == "vector" else one.get("values", [])
    points = [(float(t), value) for t, v in raw if not math.isnan(value := float(v))]
    labels = one["metric"]
    if not all(isinstance(v, str) for v in labels.values()):
        raise ValueError("a label is no text")
    if not all(math.isfinite(t) for t, _ in points):
        raise ValueError("a time is no number")
    return Series(labels=labels, points=tuple(points))


def once(series: Sequence[Series]) -> tuple[list[Series], list[str]]:
    """Series of a high-availability pair once: those that differ in a replica label alone.

    Of each pair the copy with the newest, then the most, points is kept; for equal ones the larger last
    value.
    """
    if not any(name in one.labels for one in series for name in REPLICA_LABELS):
        return list(series), []
    groups: dict[tuple[tuple[str, str], ...], list[Series]] = {}
    for one in series:
        kept = tuple(sorted(item for item in one.labels.items() if item[0] not in REPLICA_LABELS))
        groups.setdefault(kept, []).append(one)
    out: list[Series] = []
    doubled = 0
    for kept, copies in groups.items():
        best = max(copies, key=lambda s: (s.points[-1][0] if s.points else 0.0, len(s.points), _last(s)))
        if len(copies) > 1:
            doubled += 1
            best = Series(labels=dict(kept), points=best.points)
        out.append(best)
    notes = []
    if doubled:
        notes.append(f"{doubled} series come from several Prometheus replicas and are counted once")
    return out, notes


def _last(series: Series) -> float:
    return series.points[-1][1] if series.points else -math.inf
