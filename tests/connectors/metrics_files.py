"""Recorded metrics pages and API answers for tests: tests/fixtures/metrics."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

from capacity.telemetry import TargetSnapshot
from connectors.scrape import snapshot_of

FOLDER = Path(__file__).parents[1] / "fixtures" / "metrics"
SEQUENCES = ("vllm-0.16.0", "vllm-0.32.0", "vllm-0.32.0-gemma3-maxseqs4")


def path(name: str) -> Path:
    """The file of a recording; pages are gzip files."""
    plain = FOLDER / name
    return plain if plain.exists() else FOLDER / f"{name}.gz"


def page(name: str) -> bytes:
    """A recorded page, unpacked."""
    body = path(name).read_bytes()
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def snapshot(name: str, *, time_s: float = 0.0) -> TargetSnapshot:
    """A recorded page as a snapshot."""
    return snapshot_of(page(name), target=name, time_s=time_s)


def sequence(name: str) -> Iterator[tuple[float, bytes]]:
    """(time, page) of a recorded run, oldest first."""
    with lzma.open(FOLDER / f"{name}-scrapes.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            yield one["t"], one["body"].encode()
