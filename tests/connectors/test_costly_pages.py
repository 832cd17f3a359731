"""Pages and answers made to be costly: read or refused in a moment, whatever they hold."""

from __future__ import annotations

import gzip
import time

import pytest

from connectors import incident_file
from connectors.errors import ConnectorError, NotMetrics, QueryFailed, TooLarge
from connectors.prometheus_api import parse_answer
from connectors.recordings import table_snapshots
from connectors.scrape import snapshot_of

RUNNING = b'vllm:num_requests_running{engine="0"} 4\n'
WAITING = b"vllm:num_requests_waiting"
LONG = {
    "exemplars without end": WAITING + b" 1" + b" # {" * 60_000 + b'"\n',
    "one long label": WAITING + b'{a="' + b"x" * 3_000_000 + b'"} 1\n',
    "escapes": WAITING + b'{a="' + b'\\"' * 1_000_000 + b'"} 1\n',
    "labels without end": WAITING + b"{" + b",".join(b'l%d="v"' % i for i in range(100_000)) + b"} 1\n",
    "braces": WAITING + b"{" * 2_000_000 + b"\n",
    "a number without end": WAITING + b" " + b"9" * 2_000_000 + b"\n",
}
SECONDS = 3.0


@pytest.mark.parametrize("kind", ["text/plain", "application/openmetrics-text"])
@pytest.mark.parametrize("case", LONG)
def test_a_line_without_end_is_left_out(case: str, kind: str) -> None:
    body = RUNNING + LONG[case] + (b"# EOF\n" if "open" in kind else b"")
    started = time.process_time()
    snapshot = snapshot_of(body, target="x", time_s=0.0, content_type=kind)
    assert time.process_time() - started < SECONDS
    (engine,) = snapshot.engines
    assert engine.value("running").value == 4
    assert engine.value("waiting").value is None
    assert any("cannot be read" in note for note in snapshot.notes)


@pytest.mark.parametrize("label", ["engine", "model_name", "pod"])
def test_more_engines_than_one_page_can_have_are_refused(label: str) -> None:
    page = b"".join(b'vllm:num_requests_running{%s="%d"} 1\n' % (label.encode(), i) for i in range(5000))
    started = time.process_time()
    with pytest.raises(TooLarge, match="more than 512 engines"):
        snapshot_of(page, target="x", time_s=0.0)
    assert time.process_time() - started < SECONDS


def test_hundreds_of_engines_are_read() -> None:
    page = b"".join(
        b'vllm:num_requests_running{engine="%d"} 1\nvllm:prompt_tokens_total{engine="%d"} 3\n' % (i, i)
        for i in range(300)
    ) + b'vllm:admission_rejections_total{reason="q"} 2\n'  # fmt: skip
    snapshot = snapshot_of(page, target="x", time_s=0.0)
    assert len(snapshot.engines) == 300
    assert all(e.value("prompt_tokens").value == 3 for e in snapshot.engines)
    assert list(snapshot.shared) == ["rejections"]


DEEP = [b"[" * 200_000, b'{"a":' * 200_000]


@pytest.mark.parametrize("body", DEEP, ids=["lists", "objects"])
def test_json_without_end_is_a_reason(body: bytes) -> None:
    with pytest.raises(NotMetrics, match="JSON document"):
        snapshot_of(body, target="x", time_s=0.0)
    with pytest.raises(QueryFailed):
        parse_answer(b'{"status":"success","data":' + body)
    with pytest.raises(incident_file.NotAWindow):
        incident_file.load(gzip.compress(body))


@pytest.mark.parametrize(
    "answer",
    [
        b'{"status":"success","data":[1]}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":"x","value":[1,"2"]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1e999,"2"]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[%s,"2"]}]}}' % (b"9" * 999),
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":7}]}}',
        b'{"status":["x"],"error":{"a":1}}',
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_a_reason(answer: bytes) -> None:
    with pytest.raises(ConnectorError):
        parse_answer(answer)


def test_warnings_of_another_shape_are_said() -> None:
    found = parse_answer(b'{"status":"success","data":{"resultType":"vector","result":[]},"warnings":7}')
    assert found.notes == ("the server warns: 7",) and found.partial


def test_a_table_with_a_cell_without_end_is_a_reason() -> None:
    with pytest.raises(NotMetrics, match="table"):
        table_snapshots(b't_s,running\n0,"' + b"9" * 200_000 + b'"\n', target="x")
