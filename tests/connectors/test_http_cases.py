"""Cases from public reports about reaching a page (C069 to C098), from the command line to a local server."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable

import pytest

from connectors.__main__ import main
from connectors.addresses import metrics_url
from connectors.errors import BadTarget
from tests.connectors import metrics_files
from tests.connectors.fault_server import FaultServer, http, serving, text

PAGE = metrics_files.page("v1_single_busy.prom")
Out = pytest.CaptureFixture[str]


def scraped(url: str, capsys: Out) -> dict:
    """The JSON of one scrape that must succeed."""
    assert main(["scrape", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    signals = found["pool"]["signals"]
    assert (signals["running"]["value"], signals["kv_usage"]["value"]) == (12, 0.37)
    assert signals["ttft_s"]["p99"]["value"] == pytest.approx(0.98)
    return found


def slash_server(status: str, location: str) -> Callable[[socket.socket, str], None]:
    def handler(connection: socket.socket, asked: str) -> None:
        slash = asked.startswith("GET /metrics/ ")
        connection.sendall(text(PAGE) if slash else http(status, b"", f"Location: {location}"))

    return handler


@pytest.mark.parametrize(
    "status", ["307 Temporary Redirect", "308 Permanent Redirect", "301 Moved", "302 Found"]
)
def test_c069_a_redirect_to_the_trailing_slash_is_followed_and_said(status: str, capsys: Out) -> None:
    with serving(slash_server(status, "/metrics/")) as server:
        found = scraped(server.url, capsys)
        assert f"redirected to {server.url}/" in found["notes"]
        assert len(server.requests) == 2


def test_c069_the_same_host_by_its_whole_address(capsys: Out) -> None:
    with serving(slash_server("307 Temporary Redirect", "/metrics/")) as server:
        server.handler = slash_server("307 Temporary Redirect", f"{server.url}/")
        scraped(server.url, capsys)


def guarded(connection: socket.socket, asked: str) -> None:
    """A server whose key protects /v1 only."""
    open_ = asked.startswith("GET /metrics ")
    connection.sendall(text(PAGE) if open_ else http("401 Unauthorized", b"{}"))


def test_c071_no_key_is_needed_and_none_is_sent(capsys: Out) -> None:
    with serving(guarded) as server:
        scraped(server.url, capsys)
        assert "authorization" not in server.requests[0].lower()


def test_c071_a_key_given_is_sent_and_never_shown(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATERLINE_TOKEN_CLI", "s3cr3t-key")
    with serving(guarded) as server:
        assert "s3cr3t" not in json.dumps(scraped(server.url, capsys))
        assert "Authorization: Bearer s3cr3t-key" in server.requests[0]
        assert main(["scrape", f"http://127.0.0.1:{server.port}/v1/models"]) == 1
        shown = capsys.readouterr()
        assert "401" in shown.out + shown.err
        assert "s3cr3t" not in shown.out + shown.err


def test_c071_a_key_in_the_address_is_refused_without_repeating_it(capsys: Out) -> None:
    assert main(["scrape", "http://user:s3cr3t@127.0.0.1:1/metrics"]) == 2
    shown = capsys.readouterr()
    assert "credentials do not belong in an address" in shown.err
    assert "s3cr3t" not in shown.out + shown.err


def test_c092_an_address_in_brackets_is_asked(capsys: Out) -> None:
    assert metrics_url("http://[2001:db8::5]:8000/metrics") == "http://[2001:db8::5]:8000/metrics"

    def handler(connection: socket.socket, _: str) -> None:
        connection.sendall(text(PAGE))

    try:
        server = FaultServer(handler, family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    try:
        scraped(f"http://[::1]:{server.port}/metrics", capsys)
        scraped(f"[::1]:{server.port}", capsys)
        scraped(f"http://localhost:{server.port}/metrics", capsys)
    finally:
        server.close()


def test_c092_an_address_without_brackets_is_helped(capsys: Out) -> None:
    with pytest.raises(BadTarget, match=r"brackets: http://\[fd00::7\]:9000/metrics; got fd00::7:9000"):
        metrics_url("fd00::7:9000")
    assert main(["scrape", "2001:db8::5:8000"]) == 2
    assert "http://[2001:db8::5]:8000/metrics" in capsys.readouterr().err


def test_c092_localhost_where_only_ipv4_listens(capsys: Out) -> None:
    with serving(text(PAGE)) as server:
        scraped(f"http://localhost:{server.port}/metrics", capsys)


ZIPPED = gzip.compress(PAGE)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (("Content-Type: text/plain", "Content-Encoding: gzip"), False),
        (("Content-Type: text/plain", "Content-Encoding: x-gzip"), False),
        (("Content-Type: text/plain", "Content-Encoding: identity"), True),
        (("Content-Type: text/plain",), True),
        (("Content-Type: application/gzip",), True),
    ],
)
def test_c097_gzip_whatever_the_header_says(headers: tuple[str, ...], said: bool, capsys: Out) -> None:
    with serving(http("200 OK", ZIPPED, *headers)) as server:
        found = scraped(server.url, capsys)
    assert ("the page was gzip-compressed without saying so" in found["notes"]) is said


def test_c097_a_page_that_is_said_to_be_gzip_and_is_not(capsys: Out) -> None:
    with serving(http("200 OK", PAGE, "Content-Type: text/plain", "Content-Encoding: gzip")) as server:
        scraped(server.url, capsys)


@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=utf-8", "application/octet-stream"])
def test_c098_metrics_called_something_else_are_judged_by_the_body(kind: str, capsys: Out) -> None:
    with serving(http("200 OK", PAGE, f"Content-Type: {kind}")) as server:
        found = scraped(server.url, capsys)
    assert found["notes"] == [f"the page is labelled {kind.split(';')[0]}, read by its content"]
