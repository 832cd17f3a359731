"""The live service and its routes: one poller for all, JSON with sentences, demonstration marked."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from connectors import service as live
from connectors.api import routes
from connectors.errors import NotAllowed
from connectors.history import History
from connectors.service import LiveService
from connectors.targets import Target


@pytest.fixture
def service() -> Iterator[LiveService]:
    found = LiveService(history_path=":memory:", interval_s=0.2, demo=True, demo_past_s=30.0)
    live.install(found)
    found.start()
    yield found
    live.install(None)
    found.stop()


@dataclass(frozen=True)
class Answer:
    status_code: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Speaks ASGI to the routes, without a server in between."""

    def get(self, url: str) -> Answer:
        path, _, query = url.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [],
            "http_version": "1.1",
            "scheme": "http",
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(Starlette(routes=routes())(scope, receive, send))
        headers = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return Answer(sent[0]["status"], headers, b"".join(m.get("body", b"") for m in sent[1:]))


@pytest.fixture
def client(service: LiveService) -> Client:
    return Client()


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_health_and_pool_tell_a_demonstration(client: Client, service: LiveService) -> None:
    wait_for(lambda: service.view().answering == 3)
    health = client.get("/api/health")
    assert health.status_code == 200 and health.headers["cache-control"] == "no-store"
    assert health.json() == {"ok": True, "targets": 3, "answering": 3, "demo": True, "problems": []}
    pool = client.get("/api/pool").json()
    assert pool["demo"] is True and len(pool["engines"]) == 3
    assert pool["pool"]["signals"]["kv_usage"]["state"] == "ok"
    assert pool["pool"]["verdict"]["name"] and pool["engines"][0]["verdict"]["evidence"] is not None
    assert "NaN" not in json.dumps(pool)


def test_targets_show_what_asking_costs(client: Client, service: LiveService) -> None:
    wait_for(lambda: all(t.load.scrapes > 3 for t in service.view().targets))
    found = client.get("/api/targets").json()
    assert [t["name"] for t in found] == ["demo-0", "demo-1", "demo-2"]
    assert all(t["load"]["scrapes_per_s"] > 0 and t["load"]["bytes_per_s"] > 0 for t in found)


def test_series_and_its_errors(client: Client) -> None:
    found = client.get("/api/series?seconds=300&points=60").json()
    assert len(found["kv_usage"]) == 3 and len(found["times_s"]) == len(found["totals"]["running"])
    for query in ("seconds=5", "seconds=abc", "points=1", "seconds=nan"):
        wrong = client.get(f"/api/series?{query}")
        assert wrong.status_code == 422 and "valid:" in wrong.json()["error"]


def test_a_path_that_is_none_is_a_404_in_json(client: Client) -> None:
    wrong = client.get("/api/nothing")
    assert wrong.status_code == 404 and "known: /api/health, /api/pool" in wrong.json()["error"]
    assert client.get("/api/series?points=2.9").status_code == 422


def test_the_first_view_already_has_a_past(service: LiveService) -> None:
    now = time.time()
    found = service.window(now - 400, now)
    assert max(i.end_s for i in found) - min(i.end_s for i in found) >= 25
    assert all(i.demo for i in found) and all(i.state == "ok" for i in found)
    assert all((i.rate("generation_tokens") or 0) < 5000 for i in found)


def test_many_readers_share_one_computation(service: LiveService) -> None:
    calls: list[int] = []

    def slow() -> int:
        calls.append(1)
        time.sleep(0.1)
        return 7

    threads = [threading.Thread(target=lambda: service.shared("key", slow, for_s=5.0)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and service.shared("key", slow, for_s=5.0) == 7


def test_the_demonstration_can_be_stopped_and_scripted(service: LiveService) -> None:
    service.set_demo(on=True, incident_name="down")
    wait_for(lambda: service.view().answering == 2)
    gone = next(e for e in service.view().engines if e.signals is None)
    assert gone.verdict.name == "down" and gone.age_s is not None
    service.set_demo(on=False)
    wait_for(lambda: service.view().targets == ())
    assert service.view().verdict is None and service.window(0.0, time.time()) == []


def test_history_that_cannot_be_opened_does_not_stop_live(tmp_path: Path) -> None:
    path = tmp_path / "broken.duckdb"
    path.write_text("no database " * 500)
    found = LiveService(history_path=str(path), interval_s=0.2, demo=True, demo_past_s=5.0)
    found.start()
    try:
        wait_for(lambda: found.view().answering == 3)
        assert found.history_problem is not None and "cannot be opened" in found.history_problem
    finally:
        found.stop()


def test_readings_are_kept_and_read_back_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "h.duckdb")
    first = LiveService(history_path=path, interval_s=0.2, demo=True, demo_past_s=5.0)
    first.start()
    wait_for(lambda: first.history is not None and first.history.rows_written > 20)
    first.stop()
    with History(path) as again:
        kept = again.window(time.time() - 600, time.time() + 10)
    assert {i.target for i in kept} == {"demo-0", "demo-1", "demo-2"} and all(i.demo for i in kept)


def test_visitors_add_nothing_unless_the_operator_allows_it(service: LiveService) -> None:
    with pytest.raises(NotAllowed):
        service.add_target("http://10.1.2.3:8000")


def test_a_target_that_is_not_there_is_down_with_a_reason() -> None:
    target = live.poll_target(Target(name="gone", url="http://127.0.0.1:9/metrics"))
    found = LiveService([target], history_path=":memory:", interval_s=0.2)
    found.start()
    try:
        wait_for(lambda: found.view().targets[0].reason is not None)
        view = found.view()
        assert view.verdict is not None and view.verdict.name == "down" and view.demo is False
        assert "refused" in (view.targets[0].reason or "")
    finally:
        found.stop()
