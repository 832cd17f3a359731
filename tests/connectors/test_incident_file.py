"""Saved windows: what was saved is what is opened, and anything else is named, never trusted."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.diagnosis import down_verdict
from capacity.intervals import HistogramDelta, Interval
from capacity.verdicts import Confidence, Evidence, Severity, verdict
from capacity.window_summary import summarise
from connectors.errors import ConnectorError, TooLarge
from connectors.incident_file import NotAWindow, dump, load
from connectors.moment import EngineMoment, Moment

ONE = Interval(
    target="pool-a",
    engine="0",
    model_name="m",
    release="0.32",
    end_s=1005.0,
    seconds=5.0,
    counted_s=5.0,
    values={"kv_usage": 0.97, "waiting": 12.0, "running": 30.0},
    increments={"generation_tokens": 500.0, "prefix_queries": 200.0, "prefix_hits": 50.0},
    histograms={"ttft_s": HistogramDelta(bounds=(0.1, 1.0), counts=(1, 0, 3), sum=40.0)},
)
GONE = replace(
    ONE, end_s=1010.0, state="down: refused", counted_s=0.0, values={}, increments={}, histograms={}
)


def test_what_was_saved_is_what_is_opened() -> None:
    data = dump([ONE, GONE], start_s=1000.0, end_s=1010.0, markers=[(1003.0, "my change")])
    found = load(data)
    assert found.intervals == (ONE, GONE)
    assert found.markers == ((1003.0, "my change"),) and (found.start_s, found.end_s) == (1000.0, 1010.0)
    assert dump(found.intervals, start_s=1000.0, end_s=1010.0, markers=found.markers) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not gzip at all",
        gzip.compress(b"not json"),
        gzip.compress(b"[]"),
        gzip.compress(b'{"format": "other"}'),
        gzip.compress(b'{"format": "waterline-window/1", "start_s": 1}'),
        gzip.compress(
            b'{"format": "waterline-window/1", "start_s": "NaN", "end_s": 2, "markers": [], "intervals": []}'
        ),
        gzip.compress(
            b'{"format": "waterline-window/1", "start_s": 1, "end_s": 2, "markers": [], "intervals": [{}]}'
        ),
    ],
    ids=lambda value: f"{len(value)}-bytes" if isinstance(value, bytes) else None,
)
def test_other_files_are_refused_in_a_sentence(data: bytes) -> None:
    with pytest.raises(NotAWindow, match="saved window") as caught:
        load(data)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(TooLarge):
        load(gzip.compress(b" " * 65_000_000))


@given(st.binary(max_size=200))
def test_no_bytes_crash_it(data: bytes) -> None:
    try:
        found = load(data)
    except ConnectorError:
        found = None
    assert found is None


def test_a_summary_gives_bounds_as_bounds_and_unknown_as_unknown() -> None:
    found = summarise([ONE, GONE], start_s=1000.0, end_s=1010.0)
    assert found.kv_usage_peak == 0.97 and found.waiting_peak == 12.0
    assert found.generation_tokens_per_s == 100.0 and found.prefix_hit_rate == 0.25
    p50, p99 = found.ttft_s
    assert p50 is not None and p50.is_floor and p50.value == 1.0 and p99 is not None and p99.count == 4
    assert found.itl_s == (None, None) and found.preemptions_per_s is None
    assert found.known_share == 0.5
    assert json.loads(json.dumps(found.engines)) == 1


def test_two_sides_of_a_moment_share_no_reading() -> None:
    before = summarise([ONE, GONE], start_s=1000.0, end_s=1005.0)
    after = summarise([ONE, GONE], start_s=1005.0, end_s=1010.0)
    assert before.known_share == 1.0 and after.known_share == 0.0 and after.kv_usage_peak is None


def test_the_verdict_of_the_moment_travels_in_the_file() -> None:
    found = Moment(
        at_s=1010.0,
        verdict=verdict(
            "KV-bound",
            Severity.CRITICAL,
            Confidence.HIGH,
            "KV-bound: 97 % of the KV cache is in use",
            Evidence(text="KV 97.0%", signal="kv_usage", value=0.97, metric="vllm:kv_cache_usage_perc"),
        ),
        engines=(EngineMoment(name="pool-a", verdict=down_verdict("refused")),),
    )
    data = dump([ONE], start_s=1000.0, end_s=1010.0, markers=[], moment=found)
    assert load(data).moment == found
    assert load(dump([ONE], start_s=1000.0, end_s=1010.0, markers=[])).moment is None


def test_a_damaged_verdict_is_refused() -> None:
    body = json.loads(gzip.decompress(dump([ONE], start_s=1000.0, end_s=1010.0, markers=[])))
    body["moment"] = {"at_s": 1, "verdict": {"name": "made up"}, "engines": []}
    with pytest.raises(NotAWindow, match="damaged"):
        load(gzip.compress(json.dumps(body).encode()))
