"""A report as lines for a terminal: verdicts first, then what is known; what is not known says why.

Left out: JSON (``report``).
"""

from __future__ import annotations

from capacity.forecast import Forecast
from capacity.telemetry import SIGNALS, Signals, State, Value
from connectors.report import PoolReport

MARKS = {"ok": "[ok]      ", "info": "[info]    ", "warning": "[warning] ", "critical": "[critical]"}
PERCENT = ("kv_usage", "prefix_cache_hit_rate", "spec_decode_acceptance")


def _plain(number: float) -> str:
    """A number without exponents.

    >>> _plain(73744.0), _plain(0.02163), _plain(443.21)
    ('73,744', '0.02163', '443.2')
    """
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def shown(name: str, value: Value) -> str:
    """One value in words.

    >>> shown("kv_usage", Value(value=0.375))
    '37.5 %'
    """
    if value.value is None:
        return f"- ({value.state.value}: {value.reason})" if value.reason else f"- ({value.state.value})"
    if isinstance(value.value, int | float):
        number = float(value.value)
        text = f"{number * 100:.1f} %" if name in PERCENT else _plain(number)
        if value.state is State.ABOVE_HIGHEST:
            text = f"at least {text}"
        elif value.state is State.BELOW_LOWEST:
            text = f"below {value.high:g}"
    elif isinstance(value.value, str):
        text = value.value
    else:
        text = ", ".join(f"{key} {part}" for key, part in value.value.items())
    if value.count is not None and value.low is not None and value.high is not None:
        text += f" (between {value.low:g} and {value.high:g}, {value.count:.0f} samples)"
    if value.state not in (State.OK, State.BELOW_LOWEST, State.ABOVE_HIGHEST):
        text += f" ({value.state.value}: {value.reason})"
    return text


def _full(forecast: Forecast) -> str:
    if forecast.expected_s is None:
        return f"- ({forecast.reason})"
    if not forecast.low_s or forecast.high_s is None:
        return f"{forecast.expected_s:.0f}"
    return f"{forecast.expected_s:.0f} ({forecast.low_s:.0f} to {forecast.high_s:.0f})"


def _table(signals: Signals) -> list[str]:
    return [f"    {name:<26} {shown(name, signals[name])}" for name in SIGNALS]


def lines(report: PoolReport) -> list[str]:
    """The report for a terminal."""
    out = [f"{MARKS[report.verdict.severity]} {report.target}: {report.verdict.summary}"]
    out += [f"    {one.line}" for one in report.verdict.evidence]
    out += [f"    do: {one.text}" for one in report.verdict.actions]
    for one in report.engines:
        latest = one.window.latest
        model = latest.model_name or "no model name"
        release = f", {latest.kind} {latest.release}" if latest.release else f", {latest.kind}"
        out.append(f"{MARKS[one.verdict.severity]} engine {one.label} ({model}{release})")
        if len(report.engines) > 1:
            out.append(f"    {one.verdict.summary}")
        out += _table(one.signals)
        out.append(f"    {'time_to_full_s':<26} {_full(one.forecast)}")
    if len(report.engines) > 1:
        out.append("pool")
        out += _table(report.signals)
    if report.seconds is not None:
        out.append(f"window {report.seconds:.1f} s")
    out += [f"note: {note}" for note in report.notes]
    return out
