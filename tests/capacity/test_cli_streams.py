"""The command line as a process: closed and full outputs, bytes that are no text, locales without UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASK = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--max-model-len", "8192"]
LINE = json.dumps({"model": "llama-3.1-8b", "kv_cache_gib": 4, "max_model_len": 64}) + "\n"


def shell(command: str, *, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    line = command.replace("CAPACITY", f"{sys.executable} -m capacity").replace("ASK", " ".join(ASK))
    return subprocess.run(
        ["sh", "-c", line], input=stdin, capture_output=True, cwd=ROOT, timeout=60, env={**os.environ, **environment}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("CAPACITY plan ASK --json > /dev/full", 1, b"cannot write the answer: No space left on device\n"),
        ("CAPACITY plan --jsonl > /dev/full", 1, b"cannot write the answer: No space left on device\n"),
        ("CAPACITY plan ASK --json >&-", 2, b"standard output is closed; expected it open\n"),
        ("CAPACITY plan --scenario - <&-", 2, b"- is empty, so not JSON; expected a JSON object\n"),
        ("CAPACITY plan --scenario /", 2, b"cannot read '/': Is a directory\n"),
        ("CAPACITY plan ASK --json | head -c 1 > /dev/null", 0, b""),
        ("CAPACITY plan ASK <&- > /dev/null", 0, b""),
    ],
)
def test_streams_that_are_closed_full_or_no_file(command: str, code: int, said: bytes) -> None:
    if "/dev/full" in command:
        assert Path("/dev/full").exists()
    found = shell(command, stdin=LINE.encode() * 300 if "jsonl" in command else b"")
    assert (found.returncode, found.stderr) == (code, said)


def test_a_reader_that_leaves_early_ends_a_long_run_quietly() -> None:
    found = shell("CAPACITY plan --jsonl | head -1", stdin=LINE.encode() * 500)
    assert found.returncode == 0 and found.stderr == b"" and found.stdout.count(b"\n") == 1


def test_bytes_that_are_no_text_are_one_bad_line() -> None:
    stdin = (
        b"\x80\xff\n"
        + b"\xef\xbb\xbf"
        + LINE.encode().replace(b"\n", b"\r\n")
        + b"\r\n<html>\r\n[1]\r\n"
        + LINE.encode()
    )
    found = shell("CAPACITY plan --jsonl", stdin=stdin, PYTHONIOENCODING="ascii:strict", LC_ALL="C")
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    assert found.returncode == 0 and found.stderr == b""
    assert [answer.get("fits") for answer in answers] == [None, True, None, None, True]
    assert "line 1 is not JSON" in answers[0]["error"] and "HTML or XML page" in answers[2]["error"]
    assert answers[3]["error"] == "line 5 holds a list; expected a JSON object"


def test_a_report_is_utf_8_in_any_locale() -> None:
    found = shell(
        "CAPACITY export --what report ASK", PYTHONIOENCODING="ascii:strict", LC_ALL="C", PYTHONUTF8="0"
    )
    assert found.returncode == 0 and "–" in found.stdout.decode("utf-8")
