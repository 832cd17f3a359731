"""A config.json from disk and from a hub: real local servers for every fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from capacity.errors import ConfigError
from connectors.__main__ import main
from connectors.errors import (
    BadTarget,
    ConnectorError,
    Forbidden,
    Redirected,
    TimedOut,
    TooLarge,
    Unauthorised,
    Unreachable,
)
from connectors.model_config import fetch_config, load_model, read_config

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}  # fmt: skip
SECRET = "hf_never_shown"


@contextmanager
def hub(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def test_hub_answer_with_token() -> None:
    seen: list[tuple[str, str | None]] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append((handler.path, handler.headers.get("Authorization")))
        send(handler, json.dumps(CONFIG).encode())

    with hub(answer) as address:
        text = fetch_config("org/name", environment={"HF_ENDPOINT": address, "HF_TOKEN": SECRET})
    assert json.loads(text) == CONFIG
    assert seen == [("/org/name/resolve/main/config.json", f"Bearer {SECRET}")]


@pytest.mark.parametrize(
    ("status", "error"), [(401, Unauthorised), (403, Forbidden), (404, Unreachable), (500, Unreachable)]
)
def test_status_is_one_sentence_without_the_token(status: int, error: type[ConnectorError]) -> None:
    with hub(lambda handler: send(handler, b"no", status)) as address, pytest.raises(error) as caught:
        fetch_config("org/name", environment={"HF_ENDPOINT": address, "HF_TOKEN": SECRET})
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_token_stays_with_the_hub() -> None:
    seen: list[str | None] = []

    def other(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers.get("Authorization"))
        send(handler, b"{}")

    with (
        hub(other) as elsewhere,
        hub(lambda handler: send(handler, b"", 302, Location=f"{elsewhere}/x")) as address,
        pytest.raises(Redirected, match="another host"),
    ):
        fetch_config("org/name", environment={"HF_ENDPOINT": address, "HF_TOKEN": SECRET})
    assert seen == []


def test_redirect_on_the_same_host_is_followed() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if "cache" in handler.path:
            send(handler, json.dumps(CONFIG).encode())
        else:
            send(handler, b"", 307, Location="/api/resolve-cache/config.json")

    with hub(answer) as address:
        assert json.loads(fetch_config("org/name", environment={"HF_ENDPOINT": address})) == CONFIG


def test_redirect_loop_ends() -> None:
    with (
        hub(lambda handler: send(handler, b"", 302, Location=handler.path)) as address,
        pytest.raises(Redirected, match="loop"),
    ):
        fetch_config("org/name", environment={"HF_ENDPOINT": address})


def test_too_large_is_cut_off() -> None:
    with hub(lambda handler: send(handler, b"x" * 5_100_000)) as address, pytest.raises(TooLarge):
        fetch_config("org/name", environment={"HF_ENDPOINT": address})


def test_trickle_ends_at_the_deadline() -> None:
    stop = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while not stop.wait(0.02):
                handler.wfile.write(b" ")
                handler.wfile.flush()
        except OSError:
            return

    with hub(trickle) as address:
        try:
            with pytest.raises(TimedOut, match=r"within 0\.6 s"):
                fetch_config("org/name", deadline_s=0.6, environment={"HF_ENDPOINT": address})
        finally:
            stop.set()


def test_unreachable_hub_says_what_to_do() -> None:
    with hub(lambda handler: send(handler, b"")) as address:
        closed = address
    with pytest.raises(Unreachable, match="paste or upload"):
        fetch_config("org/name", environment={"HF_ENDPOINT": closed})
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE"):
        fetch_config("org/name", environment={"HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize(
    "model_id", ["name", "a/b/c", "../etc/passwd", "org/na me", "", "org/..x/../y", "http://x/y"]
)
def test_ids_that_are_none(model_id: str) -> None:
    with pytest.raises(BadTarget, match="organisation/name"):
        fetch_config(model_id, environment={})


@pytest.mark.parametrize("endpoint", ["ftp://hub", "http://user:pw@hub", "hub"])
def test_endpoint_is_checked(endpoint: str) -> None:
    with pytest.raises(BadTarget, match="HF_ENDPOINT") as caught:
        fetch_config("org/name", environment={"HF_ENDPOINT": endpoint})
    assert "pw" not in str(caught.value)


def test_local_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    assert load_model(str(tmp_path)).num_hidden_layers == 2
    assert load_model(str(tmp_path / "config.json")).hidden_size == 64


def test_local_faults(tmp_path: Path) -> None:
    with pytest.raises(BadTarget, match=r"no config\.json"):
        read_config(tmp_path)
    with pytest.raises(ConnectorError):
        read_config("a\0b")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadTarget, match="utf-8"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"x" * 5_000_001)
    with pytest.raises(TooLarge):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("<html></html>", encoding="utf-8")
    with pytest.raises(ConfigError, match="HTML"):
        load_model(str(tmp_path))


def test_config_verb_prints_what_it_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert main(["config", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == CONFIG


def test_config_verb_reads_a_hub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with hub(lambda handler: send(handler, json.dumps(CONFIG).encode())) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert main(["config", "org/name"]) == 0
    assert json.loads(capsys.readouterr().out) == CONFIG


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("org/name", "not reachable from here; paste or upload"),
        ("nothing", "not of the form"),
        ("/", "no config.json at"),
    ],
)
def test_config_verb_says_in_one_line_what_is_wrong(
    source: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["config", source]) == 2
    said = capsys.readouterr()
    assert said.out == "" and words in said.err and said.err.count("\n") == 1
