"""Recorded pages damaged in every way, through ``scrape`` of one file and of two: a reading or a reason, never
a traceback, a number that is none, a negative number or a share above one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.__main__ import main
from tests.connectors import metrics_files

PAGES = ("v1_single_busy.prom", "dp4_balanced.prom", "legacy_names_v0.prom", "waiting_by_reason.prom",
         "pid_labelled_gauges.prom", "created_series.prom", "vllm-0.32.0-preempting.prom")  # fmt: skip
WILD = (b"NaN", b"+Inf", b"-Inf", b"-1", b"1e308", b"-1e308", b"1e400", b"0x1p3", b"1_000", b"", b"abc", b"5e-324",
        b"9" * 400, b"1 " + b"9" * 400, b"1 2 3", b"1 1796100000000", b'7 # {trace_id="a"} 1')  # fmt: skip
LABELS = (b'le="NaN"', b'le=""', b'engine="\xff"', b'engine="a,b\\"c\\n"', b'model_name=""', b'engine="0",engine="1"',
          b'finished_reason="\\"', b"reason=NaN", b"{", b"}", b'max_lora="99999999999999999999"', b'pid="7"',
          b'num_gpu_blocks="1e309"', b'kv_cache_size_tokens="inf"', b'block_size="-4"')  # fmt: skip
RUNS = 150
SHARES = ("kv_usage", "prefix_cache_hit_rate", "spec_decode_acceptance")


def damaged(chance: random.Random, body: bytes) -> bytes:
    """One to four kinds of damage in a row."""
    for _ in range(chance.randint(1, 4)):
        kind = chance.randrange(9)
        if kind == 0:
            body = body[: chance.randrange(len(body) + 1)]
            continue
        if kind == 1:
            flipped = bytearray(body or b"x")
            for _ in range(chance.choice([1, 20])):
                flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
            body = bytes(flipped)
            continue
        lines = body.split(b"\n")
        samples = [i for i, line in enumerate(lines) if line and not line.startswith(b"#")]
        for i in chance.sample(samples, min(len(samples), chance.choice([1, 10]))):
            series = lines[i].rpartition(b" ")[0]
            lines[i] = {
                2: b"",
                3: lines[i] + b"\n" + lines[i],
                4: series + b" " + chance.choice(WILD),
                5: lines[i].replace(b"{", b"{" + chance.choice(LABELS) + b",", 1),
                6: lines[i] + b"\n" + series + b" " + chance.choice(WILD),
                7: lines[chance.choice(samples)],
                8: series + b" " + str(chance.uniform(-1e3, 1e6)).encode(),
            }[kind]
        body = b"\n".join(lines)
    return body


def numbers(node: object, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from numbers(value, f"{path}/{key}")
    elif isinstance(node, list):
        for value in node:
            yield from numbers(value, path)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path, float(node)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def check(words: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether there was a reading; a refusal is one line on standard error."""
    status = main([*words, "--json"])
    shown = capsys.readouterr()
    if status:
        assert status == 2 and shown.out == "" and shown.err.count("\n") == 1
        assert "finite" not in shown.err
        return False
    for path, number in numbers(json.loads(shown.out, parse_constant=refuse)):
        assert number >= 0, path
        assert number <= 1.001 or not any(f"/{name}/value" in path for name in SHARES), path
    return True


def test_no_damage_gives_a_false_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = [metrics_files.page(name) for name in PAGES]
    read = 0
    for run in range(RUNS):
        chance = random.Random(run)
        body = chance.choice(pages)
        older, newer = tmp_path / f"{run}a.prom", tmp_path / f"{run}b.prom"
        older.write_bytes(body)
        newer.write_bytes(damaged(chance, body))
        try:
            read += check(["scrape", str(newer)], capsys)
            check(["scrape", str(older), str(newer), "--interval", chance.choice(["5", "0.001"])], capsys)
        except Exception as error:
            error.add_note(f"run {run}")
            raise
    assert read > RUNS // 2
