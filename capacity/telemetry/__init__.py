"""Live telemetry: honest values, engine snapshots, windows over them (rates, quantiles) and pools."""

from capacity.telemetry.snapshot import EngineConfig, EngineSnapshot, TargetSnapshot, down
from capacity.telemetry.values import Breakdown, Histogram, Reading, State, Value, unknown

__all__ = [
    "Breakdown",
    "EngineConfig",
    "EngineSnapshot",
    "Histogram",
    "Reading",
    "State",
    "TargetSnapshot",
    "Value",
    "down",
    "unknown",
]
