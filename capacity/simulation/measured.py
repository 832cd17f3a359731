"""Timings of single requests of a real engine: text in, arrivals, first tokens and ends out.

Source of the column names: vLLM's per-request time stamps and what load generators write. Left out: reading the file
itself; fitting (calibration).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from capacity.errors import CapacityError
from capacity.request_trace import (
    ARRIVAL,
    MAX_SPAN_S,
    OUTPUT,
    PROMPT,
    TimeKinds,
    check_span,
    table_rows,
    tokens_in,
)
from capacity.workload import Requests

FIELD = "measured"
PLAIN = "arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s"
MOST_ROWS = 20_000
ONE_CLOCK_S = 3600.0
ROUNDING_S = 2e-3
SHORTEST_S = 0.001
START = (*ARRIVAL, "start_s", "start_time", "sent_s")
QUEUED = ("queued_ts", "queued_s")
FIRST_AT = ("first_token_s", "first_token_ts", "first_token_time")
FIRST_AFTER = ("ttft_s", "ttft", "ttft_ms")
END_AT = ("end_s", "last_token_s", "last_token_ts", "last_token_time", "finish_s", "finished_at")
END_AFTER = ("e2e_s", "e2e_latency_s", "latency_s", "latency", "e2e_ms", "latency_ms")
TPOT = ("tpot_s", "tpot", "tpot_ms")
COLUMNS = (*START, *PROMPT, *OUTPUT, *QUEUED, *FIRST_AT, *FIRST_AFTER, *END_AT, *END_AFTER, *TPOT)
MISSING = (None, "", "null", "none", "nan", "NaN", "None")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Requests in order of arrival with the seconds (from the first arrival) of first and last token, NaN where there was
    none. ``columns`` are the names that were read, ``notes`` what was done to them.
    """

    requests: Requests
    first_token_s: np.ndarray
    end_s: np.ndarray
    columns: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def answered(self) -> np.ndarray:
        """Rows with an answer: what a simulation is compared with."""
        found: np.ndarray = (
            np.isfinite(self.first_token_s)
            & np.isfinite(self.end_s)
            & (self.requests.output_tokens > 0)
            & (self.requests.prompt_tokens > 0)
        )
        return found


def parse_measured(text: str) -> Measured:
    """Timings from CSV or JSON lines. Raises CapacityError that names the line.

    First and last token are times on the clock of the arrivals, or seconds after them (``ttft_s``, ``e2e_s``; ``tpot_s`` in
    place of an end). With ``queued_ts`` arrivals may be on another clock: the smallest gap between the two is taken as
    no wait.

    >>> found = parse_measured("arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\\n100,8,3,0.5,0.9\\n")
    >>> found.first_token_s.tolist(), found.end_s.tolist()
    ([0.5], [0.9])
    """
    try:
        return _read(text)
    except CapacityError as error:
        said = str(error).replace("the trace", "the measured file")
        raise CapacityError(said, field=FIELD) from None


def _read(text: str) -> Measured:
    columns: dict[str, list[float]] = {}
    names: dict[str, str] = {}
    kinds: dict[str, TimeKinds] = {}
    lines: list[int] = []
    for line, row in table_rows(text, PLAIN, COLUMNS):
        if not names:
            names = _columns(row)
            columns = {what: [] for what in names}
            kinds = {what: TimeKinds() for what in names}
        if len(lines) >= MOST_ROWS:
            raise CapacityError(f"the trace has more than {MOST_ROWS:,} requests; expected at most that")
        lines.append(line)
        for what, name in names.items():
            columns[what].append(_cell(row.get(name), what, name, line, kinds[what]))
    if not lines:
        raise CapacityError(f"the trace has a header but no requests; expected rows of {PLAIN}")
    table = {what: np.array(values) * _unit(names[what]) for what, values in columns.items()}
    notes = [note for what, kind in kinds.items() for note in kind.notes(names[what])]
    arrival = _arrival(table, names, notes)
    zero = float(arrival.min())
    arrival = arrival - zero
    check_span(float(arrival.max()))
    first = table["first_after"] + arrival if "first_after" in table else table["first_at"] - zero
    if "end_after" in table:
        end = table["end_after"] + arrival
    elif "end_at" in table:
        end = table["end_at"] - zero
    else:
        end = first + table["tpot"] * np.maximum(table["output"] - 1, 0)
    _check_order(lines, names, arrival, first, end)
    _check_times(arrival, end)
    if (np.diff(arrival) < 0).any():
        notes.append("arrivals were not in order of time and have been sorted")
    order = np.argsort(arrival, kind="stable")
    requests = Requests.of(
        arrival_s=arrival[order],
        prompt_tokens=table["prompt"][order].astype(np.int64),
        output_tokens=table["output"][order].astype(np.int64),
    )
    found = Measured(
        requests=requests,
        first_token_s=np.maximum(first, arrival)[order],
        end_s=end[order],
        columns=tuple(names.values()),
        notes=(),
    )
    answered = int(found.answered.sum())
    if not answered:
        raise CapacityError("no request of the trace has a first token and an end; expected timings")
    if answered < len(lines):
        notes.append(
            f"{len(lines) - answered:,} of {len(lines):,} requests have no answer: they are part of the load and of no error"
        )
    return Measured(
        requests=found.requests,
        first_token_s=found.first_token_s,
        end_s=found.end_s,
        columns=found.columns,
        notes=tuple(notes),
    )


def _columns(row: dict[str, Any]) -> dict[str, str]:
    """What is read -> the column it is in."""
    found = {
        what: name
        for what, many in (
            ("arrival", START),
            ("prompt", PROMPT),
            ("output", OUTPUT),
            ("queued", QUEUED),
            ("first_after", FIRST_AFTER),
            ("first_at", FIRST_AT),
            ("end_after", END_AFTER),
            ("end_at", END_AT),
            ("tpot", TPOT),
        )
        if (name := next((name for name in many if name in row), None)) is not None
    }
    if "arrival" not in found and "queued" in found:
        found["arrival"] = found.pop("queued")
    groups = {
        "arrival": ("arrival",),
        "prompt": ("prompt",),
        "output": ("output",),
        "first token (first_token_s or ttft_s)": ("first_after", "first_at"),
        "end (end_s, e2e_s or tpot_s)": ("end_after", "end_at", "tpot"),
    }
    missing = [words for words, many in groups.items() if not any(what in found for what in many)]
    if missing:
        seen = ", ".join(list(row)[:12])[:160]
        raise CapacityError(
            f"the trace has no {' and no '.join(missing)} column; seen {seen}; expected {PLAIN}"
        )
    for preferred, other in (("first_after", "first_at"), ("end_after", "end_at"), ("end_at", "tpot")):
        if preferred in found:
            found.pop(other, None)
    if "end_after" in found:
        found.pop("tpot", None)
    return found


def _cell(value: Any, what: str, name: str, line: int, kind: TimeKinds) -> float:
    if what in ("prompt", "output"):
        if what == "output" and value in MISSING:  # a request that failed
            return 0.0
        return float(tokens_in(value, line, name))
    if what != "arrival" and (value in MISSING or (isinstance(value, float) and math.isnan(value))):
        return float("nan")
    return kind.seconds(value, line, name)


def _unit(name: str) -> float:
    return 1e-3 if name.endswith("_ms") else 1.0


def _arrival(table: dict[str, np.ndarray], names: dict[str, str], notes: list[str]) -> np.ndarray:
    """Arrivals on the clock of the first and last tokens."""
    arrival = table["arrival"]
    on_clock = [what for what in ("first_at", "end_at") if what in table]
    if not on_clock:
        return arrival
    queued = table.get("queued")
    if queued is not None and np.isfinite(queued).any():
        offset = float(np.nanmin(queued - arrival))
        if not 0 <= offset <= ONE_CLOCK_S:
            notes.append(
                f"{names['arrival']} and {names['queued']} are on two clocks, {abs(offset):.6g} s apart: the smallest gap "
                "between them was taken as no wait"
            )
            return arrival + offset
        return arrival
    gaps = table[on_clock[0]] - arrival
    if np.isfinite(gaps).any() and not -ROUNDING_S <= float(np.nanmin(gaps)) <= ONE_CLOCK_S:
        raise CapacityError(
            f"{names[on_clock[0]]} lies {float(np.nanmin(gaps)):.6g} s after {names['arrival']}: two clocks; expected one, or "
            "queued_ts beside them, or seconds after the arrival (ttft_s, e2e_s)"
        )
    return arrival


def _check_times(arrival: np.ndarray, end: np.ndarray) -> None:
    """Answers that took some time, and not for ever: nothing else can be fitted."""
    took = (end - arrival)[np.isfinite(end)]
    if took.size and not SHORTEST_S <= float(took.max()) <= MAX_SPAN_S:
        raise CapacityError(
            f"the longest answer of the trace took {float(took.max()):.3g} s; expected seconds, from {SHORTEST_S:g} to "
            f"{MAX_SPAN_S:,.0f}"
        )


def _check_order(
    lines: list[int], names: dict[str, str], arrival: np.ndarray, first: np.ndarray, end: np.ndarray
) -> None:
    """No token before the arrival, no end before the first token."""
    for early, late, what in (
        (arrival, first, "its first token before its arrival"),
        (first, end, "its end before its first token"),
    ):
        wrong = np.nonzero(late < early - ROUNDING_S)[0]
        if wrong.size:
            raise CapacityError(
                f"line {lines[int(wrong[0])]} of the trace has {what}; expected them in order"
            )
