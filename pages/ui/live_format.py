"""Numbers, ages and states of the Live page as short text. Unknown is an en dash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from capacity.telemetry import State, Value

UNKNOWN = "–"
OK, ACT, CRITICAL, INFO, DEMO, GREY = "#009E73", "#E69F00", "#D55E00", "#0072B2", "#CC79A7", "#7A828C"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a severity is shown: a Streamlit colour name, a Material icon, a hex colour."""

    colour: str
    icon: str
    hex: str


SEVERITY_LOOKS = {
    "ok": Look(colour="green", icon=":material/check_circle:", hex=OK),
    "info": Look(colour="blue", icon=":material/info:", hex=INFO),
    "warning": Look(colour="orange", icon=":material/warning:", hex=ACT),
    "critical": Look(colour="red", icon=":material/error:", hex=CRITICAL),
    "unknown": Look(colour="gray", icon=":material/help:", hex=GREY),
}


def percent(share: float | None) -> str:
    """A share as a percentage, one decimal under 10 only.

    >>> percent(0.971), percent(0.0312), percent(None)
    ('97 %', '3.1 %', '–')
    """
    if share is None:
        return UNKNOWN
    value = share * 100
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def count(value: float | None) -> str:
    """A number of things; thousands separated up to a million.

    >>> count(1234.4), count(1_310_000), count(2.5)
    ('1,234', '1.31M', '2.5')
    """
    if value is None:
        return UNKNOWN
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f}M"
    if abs(value) < 10 and abs(value - round(value)) > 0.05:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Events per second, two digits under one.

    >>> rate(0.0), rate(0.034), rate(12.3), rate(2345.6)
    ('0', '0.034', '12', '2,346')
    """
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """A latency: ms under one second, seconds with two digits above.

    >>> seconds(0.0234), seconds(1.25), seconds(75)
    ('23 ms', '1.2 s', '75 s')
    """
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.1f} ms"
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"


def duration(value: float | None) -> str:
    """A longer time in words.

    >>> duration(45), duration(190), duration(7300), duration(200000)
    ('45 s', '3 min', '2 h', '2 d')
    """
    if value is None:
        return UNKNOWN
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if value < limit:
            return f"{value / size:.0f} {unit}"
    return f"{value / 86_400:.0f} d"


def latency_value(value: Value) -> str:
    """A percentile with what its bucket allows to say.

    >>> latency_value(Value(value=10.0, state=State.ABOVE_HIGHEST, low=10.0, count=3.0))
    '≥ 10 s'
    >>> latency_value(Value(value=0.2, state=State.BELOW_LOWEST, low=0.0, high=0.3, count=3.0))
    '< 300 ms'
    """
    if value.number is None:
        return UNKNOWN
    if value.state is State.ABOVE_HIGHEST:
        return f"≥ {seconds(value.number)}"
    if value.state is State.BELOW_LOWEST and value.high is not None:
        return f"< {seconds(value.high)}"
    return seconds(value.number)


def latencies(values: Sequence[Value]) -> str:
    """Several percentiles, the unit once where they share it.

    >>> latencies([Value(value=0.1), Value(value=0.2), Value(value=0.5)])
    '100 · 200 · 500 ms'
    """
    shown = [latency_value(v) for v in values]
    units = {text.rpartition(" ")[2] for text in shown}
    if len(units) == 1 and UNKNOWN not in shown:
        return f"{' · '.join(text.rpartition(' ')[0] for text in shown)} {units.pop()}"
    return " · ".join(shown)


def why(value: Value) -> str | None:
    """The reason and the metric name behind a value, for a tooltip."""
    parts = [value.reason or (value.state.value if value.state is not State.OK else None)]
    if value.low is not None and value.high is not None and value.count:
        parts.append(
            f"between {seconds(value.low)} and {seconds(value.high)}, {value.count:,.0f} observations"
        )
    if value.metric:
        parts.append(f"`{value.metric}`")
    found = [part for part in parts if part]
    return "; ".join(found) if found else None


def clock(at_s: float, *, utc: bool = False, zone: str | None = None) -> str:
    """A moment with its zone: UTC, the named one (a browser's), or the server's.

    >>> clock(0, zone="Asia/Tokyo"), clock(0, utc=True, zone="Asia/Tokyo")
    ('1970-01-01 09:00:00 JST', '1970-01-01 00:00:00 UTC')
    """
    return datetime.fromtimestamp(at_s, tz=UTC).astimezone(_zone(utc, zone)).strftime("%Y-%m-%d %H:%M:%S %Z")


def _zone(utc: bool, name: str | None) -> tzinfo | None:
    if utc:
        return UTC
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, ValueError, OSError):  # a browser's zone that this machine does not know
        return None


def short(name: str, limit: int = 20) -> str:
    """A long name with its middle left out: its end tells replicas apart.

    >>> short("demo-2"), short("http://pool-a.serving.svc:8000", 14)
    ('demo-2', 'http:…svc:8000')
    """
    if len(name) <= limit:
        return name
    head = (limit - 1) * 2 // 5
    return f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"


def span(low: float | None, high: float | None) -> str:
    """Two durations, the unit once where they share it.

    >>> span(130, 300), span(45, 300), span(60, 60)
    ('2-5 min', '45 s-5 min', '60 s')
    """
    first, last = duration(low), duration(high)
    if first == last:
        return first
    same = first.rpartition(" ")[2] == last.rpartition(" ")[2]
    return f"{first.rpartition(' ')[0] if same else first}-{last}"


def listing(names: Sequence[str], *, limit: int = 3) -> str:
    """A short list in words.

    >>> listing(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"
