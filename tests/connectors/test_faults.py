"""The fault list against a real local server: a reason instead of a traceback, a zero, a NaN or a negative
rate.
"""

from __future__ import annotations

import gzip
import json
import math
import socket
import time
from collections.abc import Callable

import pytest

from capacity.telemetry import LATENCIES, State, TargetSnapshot
from connectors.addresses import VISITOR
from connectors.http import Access, HttpClient
from connectors.report import PoolReport, pool_report
from connectors.scrape import observe
from connectors.targets import Target
from tests.connectors import fault_server, metrics_files
from tests.connectors.fault_server import FaultServer, http, serving, text

PAGE = metrics_files.page("v1_single_busy.prom")
LOGIN = b"<!doctype html><html><head><title>Sign in</title></head><body>Please sign in</body></html>"
BOMB = gzip.compress(b"a 1\n" * 12_000_000)


def look(server: FaultServer, **kwargs: object) -> TargetSnapshot:
    started = time.monotonic()
    snapshot = observe(Target(name="x", url=server.url, **kwargs))
    assert time.monotonic() - started <= 5.0
    return snapshot


def report(*snapshots: TargetSnapshot) -> PoolReport:
    found = pool_report("x", {"x": list(snapshots)})
    json.dumps(found.as_json(), allow_nan=False)
    for value in found.signals.values.values():
        if value.number is not None:
            assert math.isfinite(value.number) and value.number >= 0
    return found


def redirect(to: str) -> bytes:
    return http("302 Found", b"", f"Location: {to}")


def reset(connection: socket.socket, _: str) -> None:
    connection.sendall(http("200 OK", PAGE[:3000], length=len(PAGE)))


def silent(connection: socket.socket, _: str) -> None:
    connection.settimeout(9)
    connection.recv(1)


# fault, the server's answer, words of the reason
DOWN: list[tuple[str, bytes | Callable[[socket.socket, str], None], str]] = [
    ("401", http("401 Unauthorized", b"no"), "credentials"),
    ("403", http("403 Forbidden", b"no"), "refuses"),
    ("404", http("404 Not Found", b"no"), "404"),
    ("500", http("500 Internal Server Error", PAGE), "status 500"),
    ("HTML with 200", http("200 OK", LOGIN, "Content-Type: text/html"), "HTML page titled 'Sign in'"),
    ("HTML called text", text(LOGIN), "HTML page"),
    ("JSON with 200", http("200 OK", b'{"ok": true}', "Content-Type: application/json"), "JSON"),
    ("empty", text(b""), "empty"),
    ("blank", text(b"\n \n"), "empty"),
    ("words", text(b"hello there\nthis is no metric\n"), "metric"),
    ("binary", text(bytes(range(256)) * 20), "binary"),
    ("connection cut", reset, "cut"),
    ("nothing after connect", lambda connection, _: None, "cut"),
    ("no HTTP", b"SSH-2.0-OpenSSH_9.2\r\n", "HTTP"),
    ("redirect loop", redirect("/metrics"), "loop"),
    ("redirect to another host", redirect("http://example.com/metrics"), "another host"),
    ("redirect to another port", redirect("http://127.0.0.1:1/metrics"), "another host"),
    ("redirect to a file", redirect("file:///etc/passwd"), "not followed"),
    ("unknown names", text(b"# TYPE some_thing gauge\nsome_thing 3\n"), "none of a known engine"),
    ("unknown compression", http("200 OK", PAGE, "Content-Encoding: br"), "compressed with 'br'"),
    ("broken gzip", http("200 OK", b"\x1f\x8b" + PAGE[:500], "Content-Encoding: gzip"), "damaged"),
    ("cut gzip", http("200 OK", gzip.compress(PAGE)[:900], "Content-Encoding: gzip"), "cut"),
    ("gzip bomb", http("200 OK", BOMB, "Content-Encoding: gzip"), "larger than 4 MB"),
    ("gzip bomb without header", text(BOMB), "larger than 4 MB"),
    ("too large", text(PAGE * 500), "larger than 4 MB"),
]


@pytest.mark.parametrize("fault", DOWN, ids=lambda fault: fault[0])
def test_a_fault_is_down_with_its_reason(fault: tuple) -> None:
    _, answer, words = fault
    with serving(answer) as server:
        snapshot = look(server)
    assert snapshot.state is State.DOWN
    assert words in snapshot.reason
    assert snapshot.engines == ()
    assert "\n" not in snapshot.reason and "Traceback" not in snapshot.reason
    found = report(snapshot)
    assert found.verdict.name == "down"
    assert all(value.value is None for value in found.signals.values.values())
    assert {value.state for value in found.signals.values.values()} == {State.DOWN}


def test_nothing_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    snapshot = observe(Target(name="x", url=f"http://127.0.0.1:{port}/metrics"))
    assert snapshot.state is State.DOWN and "refused" in snapshot.reason


def test_a_name_that_does_not_resolve() -> None:
    snapshot = observe(Target(name="x", url="http://no-such-host.invalid/metrics"))
    assert "does not resolve" in snapshot.reason or "not resolved" in snapshot.reason


@pytest.mark.parametrize("kind", ["silent for 10 s", "20 bytes per second", "trickling headers"])
def test_no_call_outlives_its_deadline(kind: str) -> None:
    def headers(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for _ in range(200):
            connection.sendall(b"X-Slow: 1\r\n"[:1])
            time.sleep(0.05)

    handlers = {
        "silent for 10 s": silent,
        "20 bytes per second": fault_server.trickle(time.sleep, PAGE, per_second=20),
        "trickling headers": headers,
    }
    with serving(handlers[kind]) as server:
        client = HttpClient(deadline_s=0.8)
        started = time.monotonic()
        snapshot = observe(Target(name="x", url=server.url), client=client)
        took = time.monotonic() - started
    assert snapshot.state is State.DOWN
    assert snapshot.reason == "no whole answer within 0.8 s"
    assert took < 4.0  # each of these servers takes 9 s or more; a busy machine adds its own


def test_the_default_deadline_is_five_seconds_in_all() -> None:
    with serving(silent) as server:
        snapshot = look(server)
    assert snapshot.reason == "no whole answer within 5 s"


def test_a_large_page_is_read() -> None:
    one = metrics_files.page("vllm-0.32.0-heavy-waiting.prom").decode()
    page = "".join(one.replace('engine="0"', f'engine="{i}"') for i in range(41)).encode()
    assert len(page) > 2_200_000
    with serving(text(page)) as server:
        snapshot = look(server)
    assert snapshot.state is State.OK
    assert len(snapshot.engines) == 41
    assert report(snapshot).signals["running"].value == 41 * 15


@pytest.mark.parametrize(
    "answer",
    [
        http("200 OK", gzip.compress(PAGE), "Content-Type: text/plain", "Content-Encoding: gzip"),
        http("200 OK", gzip.compress(PAGE), "Content-Type: text/plain"),
        http("200 OK", PAGE, "Content-Type: text/html"),
        http("200 OK", PAGE),
        http("200 OK", PAGE, "Content-Type: text/plain", "Content-Encoding: gzip"),
        http("200 OK", PAGE.replace(b"\n", b"\r\n"), "Content-Type: text/plain"),
        http("200 OK", b"\xef\xbb\xbf" + PAGE, "Content-Type: text/plain"),
        http("200 OK", PAGE + b"# EOF\n", "Content-Type: application/openmetrics-text; version=1.0.0"),
    ],
    ids=["gzip", "gzip unsaid", "as html", "no type", "said gzip, is not", "CRLF", "BOM", "OpenMetrics"],
)
def test_a_good_page_in_odd_wrapping_is_read(answer: bytes) -> None:
    with serving(answer) as server:
        found = report(look(server))
    assert found.signals["running"].value == 12
    assert found.signals["kv_usage"].value == 0.37


def test_a_redirect_on_the_same_host_is_followed_and_said() -> None:
    def handler(connection: socket.socket, asked: str) -> None:
        slash = asked.startswith("GET /metrics/ ")
        connection.sendall(
            text(PAGE) if slash else http("307 Temporary Redirect", b"", "Location: /metrics/")
        )

    with serving(handler) as server:
        snapshot = look(server)
    assert snapshot.state is State.OK
    assert snapshot.address.endswith("/metrics/")
    assert any("redirected" in note for note in snapshot.notes)


def test_a_body_cut_in_mid_line_is_partial() -> None:
    with serving(text(PAGE[: PAGE.index(b"e2e_request_latency_seconds_bucket") + 60])) as server:
        snapshot = look(server)
    assert snapshot.state is State.PARTIAL
    found = report(snapshot)
    assert found.signals["kv_usage"].value == 0.37
    assert found.signals["e2e_s.p99"].value is None


def gauge_page(running: str, waiting: str, usage: str, generated: int = 100) -> bytes:
    labels = 'engine="0",model_name="m"'
    return (
        f"vllm:num_requests_running{{{labels}}} {running}\nvllm:num_requests_waiting{{{labels}}} {waiting}\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} {usage}\nvllm:generation_tokens_total{{{labels}}} "
        f"{generated}\n"
        f"vllm:prompt_tokens_total{{{labels}}} {generated}\n"
    ).encode()


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-Inf", "-5"])
def test_values_that_cannot_be_are_unknown(bad: str) -> None:
    with serving(text(gauge_page(bad, "0", bad))) as server:
        found = report(look(server))
    for name in ("running", "kv_usage"):
        assert found.signals[name].value is None
        assert "the engine reported" in found.signals[name].reason
    assert found.verdict.name == "unknown"


def test_a_percentage_is_not_taken_for_a_share() -> None:
    with serving(text(gauge_page("1", "0", "37.0"))) as server:
        value = report(look(server)).signals["kv_usage"]
    assert value.value is None and "outside 0 to 1" in value.reason


def at(target: Target, seconds: float, *, wall: float | None = None) -> TargetSnapshot:
    """A scrape on a clock of our own."""
    return observe(target, wall=lambda: seconds if wall is None else wall, steady=lambda: seconds)


def test_counter_reset_gives_no_negative_rate() -> None:
    pages = [gauge_page("4", "0", "0.4", 50_000), gauge_page("4", "0", "0.1", 700)]
    snapshots = []
    for i, page in enumerate(pages):
        with serving(text(page)) as server:
            snapshots.append(at(Target(name="x", url=server.url), 5.0 * i))
    found = report(*snapshots)
    assert found.signals["generation_tokens_per_s"].value == pytest.approx(140)
    assert found.signals["generation_tokens_per_s"].state is State.RESET
    assert found.verdict.name == "restarting"


@pytest.mark.parametrize("engines", [2, 8])
def test_several_engines(engines: int) -> None:
    page = b"".join(
        gauge_page(str(i + 1), "0", f"0.{i + 1}").replace(b'engine="0"', f'engine="{i}"'.encode())
        for i in range(engines)
    )
    with serving(text(page)) as server:
        found = report(look(server))
    assert len(found.engines) == engines
    assert found.signals["running"].value == sum(range(1, engines + 1))
    assert found.signals["kv_usage"].value == pytest.approx(engines / 10)
    assert len(found.signals["kv_usage"].by_engine) == engines


def test_four_api_servers_with_stale_zeros() -> None:
    page = PAGE.decode().replace(
        'vllm:kv_cache_usage_perc{engine="0",model_name="org/demo-8b"} 0.37',
        "\n".join(
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="org/demo-8b",pid="{pid}"}} {value}'
            for pid, value in ((11, 0.0), (12, 0.37), (13, 0.0), (14, 0.0))
        ),
    )
    with serving(text(page.encode())) as server:
        snapshot = look(server)
    value = report(snapshot).signals["kv_usage"]
    assert value.value == 0.37
    assert value.state is State.PARTIAL
    assert "process" in value.reason


def test_stalled_is_not_shown_as_healthy() -> None:
    page = PAGE.decode()
    for name, value in (
        ("num_requests_running", 20),
        ("num_requests_waiting", 30),
        ("kv_cache_usage_perc", 0.97),
    ):
        start = page.index(f"\nvllm:{name}{{") + 1
        end = page.index("\n", start)
        page = page[:start] + page[start:end].rsplit(" ", 1)[0] + f" {value}" + page[end:]
    with serving(text(page.encode())) as server:
        snapshots = [at(Target(name="x", url=server.url), 5.0 * i) for i in range(3)]
    found = report(*snapshots)
    assert found.verdict.name == "stalled"
    assert found.signals["generation_tokens_per_s"].value == 0
    for family in LATENCIES[:2]:
        assert found.signals[f"{family}.p99"].value is None
        assert "no observations" in found.signals[f"{family}.p99"].reason


def test_duplicate_series_count_once() -> None:
    line = b'vllm:num_requests_running{engine="0",model_name="org/demo-8b"} 12.0\n'
    with serving(text(PAGE + line + line.replace(b"12.0", b"99.0"))) as server:
        snapshot = look(server)
    found = report(snapshot)
    assert found.signals["running"].value == 12
    assert any("appear twice" in note for note in found.notes)


def test_commas_quotes_and_newlines_in_labels() -> None:
    lora = (
        b'vllm:lora_requests_info{engine="0",max_lora="4",running_lora_adapters="sql,fin \\"a\\"",'
        b'waiting_lora_adapters="x\\ny"} 1.7e+09\n'
        b'vllm:lora_requests_info{engine="0",max_lora="4",running_lora_adapters="old",'
        b'waiting_lora_adapters=""} 1.6e+09\n'
    )
    with serving(text(PAGE + lora)) as server:
        found = report(look(server))
    assert found.signals["lora"].value == {
        "max_lora": 4,
        "running": ["sql", 'fin "a"'],
        "waiting": ["x\ny"],
    }
    assert found.signals["running"].value == 12


def test_half_binary_page_keeps_what_is_whole() -> None:
    noise = b"\x00\x01\xff\xfe garbage\n" * 3 + b"vllm:num_requests_waiting{engine= 3\n"
    with serving(text(PAGE + noise)) as server:
        snapshot = look(server)
    assert snapshot.state is State.PARTIAL
    assert report(snapshot).signals["running"].value == 12


def test_flapping_gives_gaps_and_right_rates() -> None:
    snapshots = []
    with serving(text(b"")) as server:
        target = Target(name="x", url=server.url)
        for i in range(5):
            good = text(gauge_page("2", "0", "0.2", 100 * i))
            answer = http("503 Service Unavailable", b"") if i % 2 else good
            server.handler = lambda connection, _, answer=answer: connection.sendall(answer)
            snapshots.append(at(target, 5.0 * i))
    assert [s.state for s in snapshots] == [State.OK, State.DOWN] * 2 + [State.OK]
    assert report(*snapshots).signals["generation_tokens_per_s"].value == pytest.approx(20)
    assert report(*snapshots[:4]).verdict.name == "down"


def test_clock_jumps_change_no_rate() -> None:
    walls = [1000.0, 1005.0, 1010.0 - 3600, 1015.0 - 3600 + 86_400]
    snapshots = []
    with serving(text(b"")) as server:
        for i, wall in enumerate(walls):
            answer = text(gauge_page("2", "0", "0.2", 1000 + 500 * i))
            server.handler = lambda connection, _, answer=answer: connection.sendall(answer)
            snapshots.append(at(Target(name="x", url=server.url), 5.0 * i, wall=wall))
    assert report(*snapshots).signals["generation_tokens_per_s"].value == pytest.approx(100)


def test_secrets_stay_out_of_reasons_and_addresses() -> None:
    access = Access(token="s3cr3t-token", headers={"X-Scope-OrgID": "tenant-42"})
    with serving(http("401 Unauthorized", b"")) as server:
        target = Target(name="x", url=server.url + "?token=s3cr3t-query", access=access)
        snapshot = observe(target)
        assert "Authorization: Bearer s3cr3t-token" in server.requests[0]
        assert "X-Scope-OrgID: tenant-42" in server.requests[0]
    shown = f"{snapshot} {target!r}"
    assert "s3cr3t-token" not in shown and "tenant-42" not in shown
    assert "s3cr3t" not in (snapshot.reason or "") + (snapshot.address or "")


def test_a_key_is_not_sent_unless_given() -> None:
    with serving(text(PAGE)) as server:
        assert look(server).state is State.OK
        assert "Authorization" not in server.requests[0]
        assert "Cookie" not in server.requests[0]


def test_a_visitor_reaches_no_loopback_even_by_redirect_or_name() -> None:
    with serving(text(PAGE)) as server:
        for host in ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]"):
            snapshot = observe(Target(name="x", url=f"http://{host}:{server.port}/metrics", policy=VISITOR))
            assert snapshot.state is State.DOWN and "may not be added" in snapshot.reason, host
        assert server.requests == []


def test_localhost_is_tried_in_both_families() -> None:
    with serving(text(PAGE)) as server:
        snapshot = observe(Target(name="x", url=f"http://localhost:{server.port}/metrics"))
    assert snapshot.state is State.OK


def test_old_time_stamps_on_the_page_are_stale() -> None:
    now = time.time()
    page = b"".join(
        line + f" {int((now - 900) * 1000)}".encode() + b"\n"
        for line in gauge_page("3", "0", "0.9").splitlines()
    )
    with serving(text(page)) as server:
        found = report(look(server))
    assert found.signals["kv_usage"].value == 0.9
    assert found.signals["kv_usage"].state is State.STALE
    assert found.verdict.name == "stale"
