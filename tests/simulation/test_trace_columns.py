"""A trace whose columns are named twice, and one that is not text: one sentence each."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from capacity.cli import main
from capacity.errors import CapacityError
from capacity.request_trace import parse_trace


def test_a_column_named_twice_is_refused() -> None:
    with pytest.raises(CapacityError, match="2 columns named arrival_s; expected one"):
        parse_trace("arrival_s,arrival_s,prompt_tokens,output_tokens\n0,1,10,5\n")
    found = parse_trace("note,note,arrival_s,prompt_tokens,output_tokens\na,b,0,10,5\n")
    assert found.prompt_tokens.tolist() == [10]


@pytest.mark.parametrize(
    ("data", "words"),
    [("arrival_s".encode("utf-16"), "it is not text in UTF-8"), (None, "No such file or directory")],
)
def test_a_trace_that_cannot_be_read_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes | None, words: str
) -> None:
    scenario, trace = tmp_path / "scenario.json", tmp_path / "trace.csv"
    scenario.write_text('{"num_blocks": 9, "block_size": 16, "step_time": {"fixed_s": 0.02}}')
    if data is not None:
        trace.write_bytes(data)
    argv = ["simulate", "--scenario", str(scenario), "--trace", str(trace), "--json"]
    assert main(argv, stdout=io.StringIO()) == 2
    assert capsys.readouterr().err == f"cannot read the trace {str(trace)!r}: {words}\n"
