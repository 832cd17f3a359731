"""Live telemetry: honest values, engine snapshots, windows over them (rates, quantiles) and pools."""

from capacity.telemetry.pool import pool_signals
from capacity.telemetry.quantiles import merge, quantile
from capacity.telemetry.signals import LATENCIES, PERCENTILES, SIGNALS, Signals, engine_signals
from capacity.telemetry.snapshot import EngineConfig, EngineSnapshot, TargetSnapshot, down
from capacity.telemetry.values import Breakdown, Histogram, Reading, State, Value, unknown
from capacity.telemetry.window import EngineWindow, Increase, open_window

__all__ = [
    "LATENCIES",
    "PERCENTILES",
    "SIGNALS",
    "Breakdown",
    "EngineConfig",
    "EngineSnapshot",
    "EngineWindow",
    "Histogram",
    "Increase",
    "Reading",
    "Signals",
    "State",
    "TargetSnapshot",
    "Value",
    "down",
    "engine_signals",
    "merge",
    "open_window",
    "pool_signals",
    "quantile",
    "unknown",
]
