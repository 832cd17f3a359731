"""The fast path reads what prometheus_client reads, on every recorded page and on generated labels."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from connectors.errors import NotMetrics, TooLarge
from connectors.exposition import parse
from connectors.vocabulary import wanted
from tests.connectors import metrics_files

PAGES = sorted(path.name for path in metrics_files.FOLDER.glob("*.prom.gz") if "truncated" not in path.name)


def plain(samples: object) -> list[tuple]:
    found = [
        (s.name, tuple(sorted(s.labels.items())), "NaN" if math.isnan(s.value) else s.value) for s in samples
    ]
    return sorted(found, key=str)


@pytest.mark.parametrize("name", PAGES)
def test_recorded_pages_read_as_prometheus_client_reads_them(name: str) -> None:
    body = metrics_files.page(name)
    theirs = [s for f in text_string_to_metric_families(body.decode()) for s in f.samples if wanted(s.name)]
    for _ in range(2):  # a second time from what was learnt
        page = parse(body, wanted=wanted)
        assert plain(page.samples) == plain(theirs)
        assert page.complete


label_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)


@given(label_text, label_text, st.floats(0.001, 5))
def test_any_label_survives_rendering_and_reading(one: str, two: str, value: float) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:num_requests_running", "g", ["engine", "model_name"], registry=registry)
    gauge.labels(one, two).set(value)
    histogram = Histogram(
        "vllm:time_to_first_token_seconds", "h", ["model_name"], registry=registry, buckets=(1, 2)
    )
    histogram.labels(f'{two},le="9",').observe(value)
    body = generate_latest(registry)
    theirs = [s for f in text_string_to_metric_families(body.decode()) for s in f.samples if wanted(s.name)]
    page = parse(body, wanted=wanted)
    assert plain(page.samples) == plain(theirs)


def test_openmetrics_with_exemplars_and_created() -> None:
    registry = CollectorRegistry()
    counter = Counter("vllm:prompt_tokens", "c", ["engine"], registry=registry)
    counter.labels("0").inc(5, exemplar={"trace_id": "abc"})
    histogram = Histogram("vllm:time_to_first_token_seconds", "h", registry=registry, buckets=(1, 2))
    histogram.observe(1.5, exemplar={"trace_id": "def"})
    body = generate_openmetrics(registry)
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    for content_type in (kind, "text/plain"):
        page = parse(body, content_type=content_type, wanted=wanted)
        values = {(s.name.replace(":", "_"), s.labels.get("le")): s.value for s in page.samples}
        assert values["vllm_prompt_tokens_total", None] == 5
        assert values["vllm_time_to_first_token_seconds_bucket", "+Inf"] == 1
        assert page.complete
    cut = parse(body.replace(b"# EOF\n", b""), content_type=kind, wanted=wanted)
    assert not cut.complete


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"a": 1}', b"[]", b"\x00" * 500, b"\x1f\x8bnope", b"### only\n"]
)
def test_what_is_no_page(body: bytes) -> None:
    with pytest.raises(NotMetrics):
        parse(body, wanted=wanted)


@given(st.binary(max_size=400))
def test_no_bytes_give_anything_but_a_page_or_a_reason(body: bytes) -> None:
    reason = ""
    try:
        parse(body, wanted=wanted)
    except (NotMetrics, TooLarge) as error:
        reason = str(error)
    assert "\n" not in reason


@given(st.integers(1, 40_000))
def test_a_page_cut_anywhere_never_gives_a_wrong_value(length: int) -> None:
    body = metrics_files.page("v1_single_busy.prom")
    whole = {(s.name, str(sorted(s.labels.items()))): s.value for s in parse(body, wanted=wanted).samples}
    try:
        page = parse(body[: length % len(body)], wanted=wanted)
    except NotMetrics:
        return
    for s in page.samples:
        assert whole[s.name, str(sorted(s.labels.items()))] == s.value
