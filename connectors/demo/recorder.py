"""Counters and histograms of one demonstration engine. Bucket bounds by release: docs/metrics.md."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

_V0_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_V0_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_V0_E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_V0_STEP = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8096.0)
V1_BUCKETS_FROM = (0, 8, 5)


def bounds(kind: str, release: tuple[int, ...], max_model_len: int) -> tuple[float, ...]:
    """Finite upper bounds of a bucket family in a release, ascending.

    >>> bounds("n", (0, 32), 8192)
    (1.0, 2.0, 5.0, 10.0, 20.0)
    """
    new = release >= V1_BUCKETS_FROM
    if kind == "ttft":
        return _V0_TTFT + ((20.0, 40.0, 80.0, 160.0, 640.0, 2560.0) if new else ())
    if kind == "itl":
        return _V0_ITL + ((5.0, 7.5, 10.0, 20.0, 40.0, 80.0) if new else ())
    if kind == "e2e":
        return _V0_E2E + ((120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0) if new else ())
    if kind == "step_tokens":
        return (*_V0_STEP[:-1], 8192.0, 16384.0) if new else _V0_STEP
    if kind == "preemptions":
        return (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
    if kind == "n":
        return (1.0, 2.0, 5.0, 10.0, 20.0)
    found: list[float] = []
    power = 1
    while power <= max_model_len:
        found += [float(m * power) for m in (1, 2, 5) if m * power <= max_model_len]
        power *= 10
    return tuple(found)


HISTOGRAMS = {
    "ttft_s": "ttft",
    "itl_s": "itl",
    "tpot_s": "itl",
    "e2e_s": "e2e",
    "queue_s": "e2e",
    "inference_s": "e2e",
    "prefill_s": "e2e",
    "decode_s": "e2e",
    "iteration_tokens": "step_tokens",
    "request_prompt_tokens": "lengths",
    "request_generation_tokens": "lengths",
    "request_params_max_tokens": "lengths",
    "request_prefill_kv_computed_tokens": "lengths",
    "request_params_n": "n",
    "request_preemptions": "preemptions",
}


class Histogram:
    """Per-bucket counts (the last is +Inf) and the sum.

    >>> h = Histogram((0.1, 1.0)); h.observe(0.1, 3); h.observe(5.0); h.counts, h.count
    ([3, 0, 1], 4)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, upper: tuple[float, ...]) -> None:
        self.bounds = upper
        self.counts = [0] * (len(upper) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Recorder:
    """What one engine process has counted since it started."""

    def __init__(self, *, release: tuple[int, ...], max_model_len: int, started_s: float) -> None:
        self.started_s = started_s
        self.count: dict[str, float] = defaultdict(float)
        self.finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.histogram = {
            name: Histogram(bounds(kind, release, max_model_len)) for name, kind in HISTOGRAMS.items()
        }
