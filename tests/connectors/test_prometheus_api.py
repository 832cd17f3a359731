"""Answers of a Prometheus query API (C100 to C113): partial data, limits, pairs of servers, dead targets, tenants."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from capacity.telemetry import State
from connectors.addresses import metrics_url
from connectors.errors import BadTarget, ConnectorError, QueryFailed, Unreachable
from connectors.http import Access
from connectors.prometheus_api import PrometheusClient, choose_step, parse_answer, split_range
from connectors.prometheus_history import history, window_for
from connectors.prometheus_snapshots import answer_timelines, combined, recent
from connectors.report import pool_report
from connectors.selectors import matchers
from connectors.targets import Target
from tests.connectors import metrics_files
from tests.connectors.fault_server import http, serving


def vector(*series: tuple[dict[str, str], float, str], **extra: object) -> bytes:
    result = [{"metric": labels, "value": [t, v]} for labels, t, v in series]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data, **extra}).encode()


def running(instance: str) -> dict[str, str]:
    return {"__name__": "vllm:num_requests_running", "instance": instance, "engine": "0"}


def test_c100_data_with_warnings_is_kept_and_marked() -> None:
    body = vector(
        (running("a"), 100.0, "3"), (running("b"), 100.0, "4"), warnings=["store gateway timed out"]
    )
    found = parse_answer(body)
    assert found.partial and len(found.series) == 2
    assert "the server warns: store gateway timed out" in found.notes
    lines, notes = answer_timelines(body)
    snapshot = combined("x", lines, time_s=100, notes=notes)
    assert snapshot.state is State.PARTIAL
    assert sum(e.value("running").value for e in snapshot.engines) == 7


def test_c101_the_step_keeps_below_the_limit() -> None:
    assert choose_step(172_743, 10) == 16
    for seconds in (10, 3_600, 86_400, 172_743, 7 * 86_400, 90 * 86_400):
        for wanted in (1, 5, 15, 60):
            assert seconds // choose_step(seconds, wanted) + 1 <= 11_000
    parts = split_range(0, 172_743, 10)
    assert all((end - start) / 10 + 1 <= 11_000 for start, end in parts)
    grid = [start + 10 * i for start, end in parts for i in range(int((end - start) // 10) + 1)]
    assert grid == list(range(0, 172_743 + 1, 10))
    with pytest.raises(QueryFailed, match="a larger step or a shorter window"):
        parse_answer(metrics_files.page("promapi_11k_error.json"))


def test_c103_a_rate_window_holds_four_scrapes() -> None:
    assert window_for(60, 15) == 240
    assert window_for(15, 600) == 600


def test_c105_a_dead_target_keeps_a_grey_value() -> None:
    lines, _ = answer_timelines(metrics_files.page("promapi_stale_instant.json"))
    found = pool_report("x", lines)
    usage = found.signals["kv_usage"]
    assert usage.value == 0.93
    assert usage.state is State.STALE
    assert "target down" in usage.reason
    assert found.verdict.name == "down"


def test_c107_a_pair_of_servers_counts_once() -> None:
    lines, notes = answer_timelines(metrics_files.page("promapi_ha_duplicates.json"))
    found = pool_report("x", lines)
    assert found.signals["running"].value == 23
    assert found.signals["running"].by_engine == {"vllm-a": 14, "vllm-b": 9}
    assert any("counted once" in note for note in notes)


@pytest.mark.parametrize("base", ["/prometheus", "/prometheus/", ""])
def test_c109_base_path_and_tenant_header(base: str) -> None:
    with serving(http("200 OK", vector((running("a"), 100.0, "3")))) as server:
        url = metrics_url(f"http://127.0.0.1:{server.port}{base}", path="")
        target = Target(name="x", url=url, access=Access(headers={"X-Scope-OrgID": "team-a"}))
        PrometheusClient(target).query("up")
        first, *rest = server.requests[0].split("\r\n")
    assert first.startswith(f"GET {base.rstrip('/')}/api/v1/query?query=up")
    assert "X-Scope-OrgID: team-a" in rest


def test_c113_a_series_that_appears_is_not_zero_requests() -> None:
    def counter(t: float, name: str) -> dict[str, object]:
        return {"metric": {"__name__": name, "instance": "b", "engine": "0"}, "values": [[t, "25"]]}

    data = [counter(100.0, "vllm:generation_tokens_total"), counter(100.0, "vllm:num_requests_running")]
    data[1]["values"] = [[85.0, "1"], [100.0, "1"]]
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": data}}).encode()
    lines, _ = answer_timelines(body)
    value = pool_report("x", lines).signals["generation_tokens_per_s"]
    assert value.value is None
    assert value.state is State.PARTIAL
    assert "appeared in the window" in value.reason


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http("401 Unauthorized", b"no"), "credentials"),
        (http("403 Forbidden", b"no"), "refuses"),
        (http("404 Not Found", b"404 page not found"), "base path"),
        (http("503 Service Unavailable", b"<html>"), "status 503"),
        (http("200 OK", b"<html>login</html>"), "no answer of a Prometheus query API"),
        (http("200 OK", b"[1]"), "no answer of a Prometheus query API"),
        (http("200 OK", b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}'), "scalar"),
        (http("200 OK", b'{"status":"success","data":{"resultType":"vector","result":[{"x":1}]}}'), "series"),
        (http("422 Unprocessable", b'{"status":"error","errorType":"execution","error":"boom"}'), "boom"),
        (http("401 x", b'{"status":"error","errorType":"auth","error":"no org id"}'), "X-Scope-OrgID"),
    ],
)
def test_errors_are_explained(answer: bytes, words: str) -> None:
    with serving(answer) as server:
        url = f"http://127.0.0.1:{server.port}"
        with pytest.raises(ConnectorError, match=words) as caught:
            PrometheusClient(Target(name="x", url=url)).query("up")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, QueryFailed | Unreachable)


def test_nan_points_are_gaps() -> None:
    found = parse_answer(vector((running("a"), 100.0, "NaN"), (running("b"), 100.0, "2")))
    assert [s.points for s in found.series] == [(), ((100.0, 2.0),)]


@pytest.mark.parametrize("bad", ["{job=vllm}", '{job="a"', 'up{job="a"}', '{job="a"} or vector(1)', "{=}"])
def test_a_bad_selector_is_refused(bad: str) -> None:
    with pytest.raises(BadTarget, match="selector"):
        matchers(bad)


def test_selectors_with_commas_and_quotes() -> None:
    assert matchers(None) == "" == matchers("{}")
    assert matchers('{a="x,y", b=~"p|\\"q"}') == 'a="x,y",b=~"p|\\"q"'


def test_history_asks_for_old_and_new_names_once() -> None:
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}).encode()
    with serving(http("200 OK", body)) as server:
        target = Target(name="x", url=f"http://127.0.0.1:{server.port}", selector='{job="vllm"}')
        found = history(target, "kv_usage", start_s=0, end_s=86_400, step_s=5, interval_s=5)
        (asked,) = [parse_qs(urlsplit(r.split(" ")[1]).query) for r in server.requests]
    assert found.step_s == 8
    (query,) = asked["query"]
    assert query.count("max_over_time") == 2
    assert query.index("kv_cache_usage_perc") < query.index(" or ") < query.index("gpu_cache_usage_perc")
    assert query.count('job="vllm"') == 2
    with pytest.raises(BadTarget, match="signal 'nonsense'"):
        history(target, "nonsense", start_s=0, end_s=1)


def test_a_slow_server_does_not_hang() -> None:
    def silent(connection: socket.socket, _: str) -> None:
        connection.settimeout(8)
        connection.recv(1)

    with serving(silent) as server:
        started = time.monotonic()
        with pytest.raises(ConnectorError, match="no whole answer within 5 s"):
            recent(Target(name="x", url=f"http://127.0.0.1:{server.port}"))
        assert time.monotonic() - started <= 5.0


def test_replicas_behind_one_instance_stay_apart() -> None:
    """A metrics agent of Ray exports several replicas under one instance."""
    series = [
        ({**running("node:8080"), "ReplicaId": replica}, 100.0, value)
        for replica, value in (("r1", "3"), ("r2", "4"))
    ]
    lines, _ = answer_timelines(vector(*series))
    found = pool_report("x", lines)
    assert found.signals["running"].by_engine == {"r1": 3, "r2": 4}
    assert combined("x", lines, time_s=100).engines[0].value("running").value == 3
