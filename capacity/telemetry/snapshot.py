"""What one scrape of one target said: a record per engine, each reading with its state and metric name.

Readings are cumulative counters, gauges, breakdowns and histograms keyed by the signal names of
docs/metrics.md (``running``, ``waiting``, ``kv_usage``, ``prompt_tokens``, ``ttft_s`` ...). Left out:
anything that needs two scrapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capacity.telemetry.values import Breakdown, Histogram, Reading, State, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The cache configuration an engine exports (``cache_config_info``) and limits the operator told us.

    ``num_blocks`` includes the null block where the engine has one. ``kv_capacity_tokens`` is what the
    engine states itself; ``num_blocks * block_size`` is only a fallback (wrong for hybrid models) and says
    so in its reason. ``max_num_seqs`` and ``max_num_batched_tokens`` are exported by no vLLM release: they
    come from the target's settings.
    """

    block_size: Value
    num_blocks: Value
    kv_capacity_tokens: Value
    max_concurrency: Value
    gpu_memory_utilization: float | None = None
    max_num_seqs: float | None = None
    max_num_batched_tokens: float | None = None
    max_model_len: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """One engine at one moment.

    ``engine`` is the label that tells engines behind one URL apart ("0", "1" ...). ``kind`` is the
    vocabulary that answered (``vllm``, ``sglang`` ...), ``release`` a range such as "0.20.2 to 0.23" or
    None where the names do not tell. ``time_s`` is the wall clock, ``monotonic_s`` the scraper's steady
    clock (None when read back from a file or database); ``started_at_s`` changes when the engine restarts.
    ``sampled_s`` is
    the newest time stamp that the page itself gives its samples (None: it gives none). ``reachable`` is False
    where the source knows that the engine is down and these are its last values. ``names`` are all model
    names seen (base, adapters).
    """

    engine: str
    kind: str
    model_name: str | None
    release: str | None
    time_s: float
    readings: Mapping[str, Reading]
    config: EngineConfig
    monotonic_s: float | None = None
    started_at_s: float | None = None
    sampled_s: float | None = None
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True
    reachable: bool = True

    def value(self, signal: str) -> Value:
        """A scalar reading; a missing one is a Value that says so."""
        found = self.readings.get(signal)
        return found if isinstance(found, Value) else _absent(signal, found)

    def breakdown(self, signal: str) -> Breakdown | None:
        """A reading by label, or None."""
        found = self.readings.get(signal)
        return found if isinstance(found, Breakdown) else None

    def histogram(self, signal: str) -> Histogram | None:
        """A histogram reading, or None."""
        found = self.readings.get(signal)
        return found if isinstance(found, Histogram) else None


def _absent(signal: str, found: Reading | None) -> Value:
    if found is None:
        return Value(value=None, state=State.MISSING, reason=f"{signal} was not in the scrape")
    return Value(
        value=None, state=State.MISSING, metric=found.metric, reason=f"{signal} is not a single number"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSnapshot:
    """One scrape of one target. ``state`` is ok, partial or down; ``reason`` says why it is not ok.

    ``shared`` holds readings that carry no engine label (admission rejections with several engines, GPU
    counters). ``address`` is the final address without credentials; ``scrape_s`` how long the scrape took.
    """

    target: str
    time_s: float
    state: State = State.OK
    reason: str | None = None
    monotonic_s: float | None = None
    scrape_s: float | None = None
    payload_bytes: int | None = None
    address: str | None = None
    engines: tuple[EngineSnapshot, ...] = ()
    shared: Mapping[str, Reading] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        """Whether the target answered with metrics."""
        return self.state is not State.DOWN


def down(target: str, *, time_s: float, reason: str, monotonic_s: float | None = None) -> TargetSnapshot:
    """A scrape that failed: no engines, no numbers, and the reason."""
    return TargetSnapshot(
        target=target, time_s=time_s, monotonic_s=monotonic_s, state=State.DOWN, reason=reason
    )
