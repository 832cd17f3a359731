"""Traces and measured files that are something else, or hold what no engine does: one sentence, in the file's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from capacity.cli import main
from capacity.errors import CapacityError
from capacity.request_trace import parse_trace
from capacity.simulation.measured import parse_measured

HEAD = "arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n"
ROW = '{"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 20, "ttft_s": 0.1, "e2e_s": 0.5}'
READERS = [(parse_trace, "the trace"), (parse_measured, "the measured file")]


@pytest.mark.parametrize(("read", "name"), READERS)
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<!DOCTYPE html><p>404", "an HTML or XML page"),
        (f"[{ROW}]", "a JSON list"),
        ("[" * 9999, "a JSON list"),
    ],
)
def test_another_kind_of_file_is_called_what_it_is(read, name: str, text: str, kind: str) -> None:
    with pytest.raises(CapacityError, match=f"^{name} is {kind}; expected CSV with arrival_s,"):
        read(text)


@pytest.mark.parametrize(("read", "name"), READERS)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            '"prompt_tokens": 100',
            f'"prompt_tokens": {10**400}',
            "has prompt_tokens a number of 401 digits; exp",
        ),
        (
            '"arrival_s": 0',
            f'"arrival_s": {10**400}',
            "has arrival_s a number of 401 digits; expected a finite",
        ),
        ('"arrival_s": 0', '"arrival_s": true', "has arrival_s true; expected seconds or a date"),
        ('"prompt_tokens": 100', '"prompt_tokens": null', "has prompt_tokens null; expected a whole number"),
        ('"prompt_tokens": 100', '"prompt_tokens": [1]', "has prompt_tokens a list; expected a whole number"),
        ('"prompt_tokens": 100', '"prompt_tokens": 1.5', "has prompt_tokens 1.5; expected a whole number"),
    ],
)
def test_a_cell_is_quoted_as_it_is_written(read, name: str, old: str, new: str, words: str) -> None:
    with pytest.raises(CapacityError) as caught:
        read(ROW.replace(old, new))
    assert str(caught.value).startswith(f"line 1 of {name} {words}")


@pytest.mark.parametrize(("read", "name"), READERS)
def test_a_key_written_twice_is_refused(read, name: str) -> None:
    with pytest.raises(CapacityError, match=f"^line 2 of {name}: the key 'arrival_s' is written twice"):
        read(f'{ROW}\n{ROW[:-1]}, "arrival_s": 5}}\n')


@pytest.mark.parametrize(("read", "name"), READERS)
def test_a_span_without_end_is_short_to_read(read, name: str) -> None:
    with pytest.raises(CapacityError) as caught:
        read(f"{HEAD}0,100,20,0.1,0.5\n1e300,100,20,0.1,0.5\n")
    assert str(caught.value).startswith(f"{name} spans 1.16e+") and len(str(caught.value)) < 130


@pytest.mark.parametrize(("seconds", "shown"), [("0", "0 s"), ("1e-300", "1e-300 s"), ("1e300", "1e+300 s")])
def test_times_that_no_engine_has_are_not_fitted(seconds: str, shown: str) -> None:
    with pytest.raises(CapacityError) as caught:
        parse_measured(HEAD + f"0,100,20,{seconds},{seconds}\n" * 5)
    assert (
        str(caught.value)
        == f"the longest answer of the measured file took {shown}; expected seconds, from 0.001 to 34,560,000"
    )


def test_a_missing_time_of_a_json_line_is_no_answer() -> None:
    # Python writes NaN where a load generator has no time
    found = parse_measured(f"{ROW}\n{ROW.replace('0.1', 'NaN')}\n")
    assert found.answered.tolist() == [True, False]


def test_rows_out_of_order_are_said() -> None:
    found = parse_measured(f"{HEAD}5,100,20,0.1,0.5\n1,100,20,0.2,0.5\n")
    assert found.requests.arrival_s.tolist() == [0, 4] and found.first_token_s.tolist() == [0.2, 4.1]
    assert found.notes == ("arrivals were not in order of time and have been sorted",)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no device without end")
@pytest.mark.parametrize(("verb", "flag"), [("simulate", "--trace"), ("calibrate", "--measured")])
def test_a_device_without_end_is_refused_at_its_start(
    verb: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, flag, "/dev/zero", "--num-blocks" if verb == "simulate" else "--seed", "9"]) == 2
    assert "is not text; expected CSV or JSON lines" in capsys.readouterr().err
