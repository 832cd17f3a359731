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


def test_dates_with_and_without_an_offset_are_said() -> None:
    # 12:00 without an offset is read as UTC; 14:00:02+02:00 is 12:00:02 UTC
    text = "timestamp,contexttokens,generatedtokens\n2026-03-01 12:00:00,5,1\n2026-03-01 14:00:02+02:00,5,1\n"
    found = parse_trace(text)
    assert found.arrival_s.tolist() == [0, 2]
    assert "1 of 2 times in timestamp have no offset and were read as UTC; the others have one" in found.notes
    assert len(parse_trace(text.replace("+02:00", "")).notes) == 1


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("5", "2026-03-01", "line 3 of the trace has arrival_s as a date after lines with numbers"),
        ("2026-03-01", "5", "line 3 of the trace has arrival_s as a number after lines with dates"),
    ],
)
def test_numbers_and_dates_in_one_column_are_refused(first: str, second: str, words: str) -> None:
    with pytest.raises(CapacityError, match=words):
        parse_trace(f"arrival_s,prompt_tokens,output_tokens\n{first},5,1\n{second},5,1\n")


def test_mooncake_rows_without_hash_ids_are_said() -> None:
    # the second row makes the trace Mooncake's: all times are milliseconds, and the first shares nothing
    found = parse_trace(
        '{"timestamp": 500, "input_length": 600, "output_length": 5}\n'
        '{"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [3, 4]}\n'
    )
    assert found.arrival_s.tolist() == [0.5, 1.5]
    assert found.prefixes == (None, (3, 4))
    assert found.notes == ("1 of 2 requests have no hash_ids: they share no prefix",)


def test_true_is_no_number_and_lines_are_counted_from_the_top() -> None:
    with pytest.raises(CapacityError, match="line 4 of the trace has output_tokens true;"):
        parse_trace(
            '\n\n{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 1}\n'
            '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": true}\n'
        )
