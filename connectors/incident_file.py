"""A window of readings in one file, to reopen the same charts elsewhere.

What it answers: gzip-compressed JSON of intervals, markers and the verdicts at the end of the window, and
back. Names of targets are in it, addresses and secrets are not. Left out: drawing.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from capacity.errors import CapacityError
from capacity.intervals import HistogramDelta, Interval
from connectors.errors import ConnectorError, TooLarge
from connectors.exposition import gunzip
from connectors.moment import Moment
from connectors.moment import as_json as moment_json
from connectors.moment import from_json as moment_from_json

FORMAT = "waterline-window/1"
CAP_BYTES = 64_000_000


class NotAWindow(ConnectorError):
    """The file is not a saved window, or is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWindow:
    """What was saved: the span, what was read in it, the markers, and what was found at its end (None: an
    older file).
    """

    start_s: float
    end_s: float
    intervals: tuple[Interval, ...]
    markers: tuple[tuple[float, str], ...]
    moment: Moment | None = None


def dump(
    intervals: Sequence[Interval],
    *,
    start_s: float,
    end_s: float,
    markers: Sequence[tuple[float, str]],
    moment: Moment | None = None,
) -> bytes:
    """The file's bytes; the same window gives the same bytes."""
    body = {
        "format": FORMAT,
        "start_s": start_s,
        "end_s": end_s,
        "markers": [list(marker) for marker in markers],
        "intervals": [asdict(interval) for interval in intervals],
        "moment": None if moment is None else moment_json(moment),
    }
    return gzip.compress(json.dumps(body, separators=(",", ":")).encode(), mtime=0)


def load(data: bytes) -> SavedWindow:
    """Read a file back. NotAWindow or TooLarge where it cannot be used."""
    try:
        body = json.loads(gunzip(data, cap_bytes=CAP_BYTES))
    except TooLarge:
        raise
    except (ConnectorError, ValueError, RecursionError):
        raise NotAWindow("the file is not a saved window (expected gzip-compressed JSON)") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise NotAWindow(f"the file is not a saved window; expected the format {FORMAT}")
    try:
        return SavedWindow(
            start_s=_finite(body["start_s"]),
            end_s=_finite(body["end_s"]),
            intervals=tuple(_interval(one) for one in body["intervals"]),
            markers=tuple((_finite(at), str(text)[:200]) for at, text in body["markers"]),
            moment=None if body.get("moment") is None else moment_from_json(body["moment"]),
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, CapacityError):
        raise NotAWindow("the saved window is damaged: a reading is missing or is not a number") from None


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def _numbers(found: Mapping[str, Any]) -> dict[str, float | None]:
    return {str(name): None if value is None else _finite(value) for name, value in found.items()}


def _interval(one: Mapping[str, Any]) -> Interval:
    return Interval(
        target=str(one["target"]),
        engine=str(one["engine"]),
        model_name=None if one["model_name"] is None else str(one["model_name"]),
        release=None if one["release"] is None else str(one["release"]),
        end_s=_finite(one["end_s"]),
        seconds=_finite(one["seconds"]),
        counted_s=_finite(one["counted_s"]),
        state=str(one["state"]),
        demo=bool(one["demo"]),
        values=_numbers(one["values"]),
        increments=_numbers(one["increments"]),
        histograms={
            str(name): HistogramDelta(
                bounds=tuple(_finite(b) for b in h["bounds"]),
                counts=tuple(int(c) for c in h["counts"]),
                sum=None if h["sum"] is None else _finite(h["sum"]),
            )
            for name, h in one["histograms"].items()
        },
    )
