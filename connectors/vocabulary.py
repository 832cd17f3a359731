"""Which metric name answers which signal, per engine and release: the table ``metric_names.csv`` and its
look-ups.

Source: the rows' ``source`` column (names read in published packages). Prefixes added by a serving layer
(``ray_vllm_...``, ``kserve_vllm:...``) and a colon turned into an underscore are accepted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

Release = tuple[int, ...]
LAYERED = re.compile(r"(?:^|_)((?:vllm|sglang|llamacpp)[:_].*)$")
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count", "_created")
COUNTER_PARTS = ("_total", "_created", "")
KINDS = ("vllm", "sglang", "trtllm", "triton", "tgi", "llamacpp", "dynamo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One name that can answer a signal. Rows of one signal and engine stand newest first.

    ``first`` and ``last`` are the releases that export it (None: not tied to releases, or still there);
    ``optional`` names appear only with a feature or flag, ``gone`` ones only in builds of the past that no
    name tells from today's. ``part`` is the label that splits a breakdown,
    ``select`` a label value to keep, ``combine`` how series of one engine are put together.
    """

    signal: str
    kind: str
    engine: str
    name: str
    part: str
    select: tuple[str, str] | None
    combine: str
    first: Release | None
    last: Release | None
    optional: bool
    gone: bool
    source: str
    order: int


def release(text: str) -> Release | None:
    """Release as numbers, None for a blank.

    >>> release("0.20.2")
    (0, 20, 2)
    """
    return tuple(int(part) for part in text.split(".")) if text else None


def release_text(number: Release) -> str:
    """Release numbers as text; a trailing zero is kept only where the release has two parts.

    >>> release_text((0, 30))
    '0.30'
    """
    return ".".join(str(part) for part in number)


@cache
def rows() -> tuple[Row, ...]:
    """The table, in its order."""
    text = resources.files("connectors").joinpath("metric_names.csv").read_text(encoding="utf-8")
    out = []
    for order, row in enumerate(csv.DictReader(text.splitlines())):
        label, _, wanted = row["select"].partition("=")
        out.append(
            Row(
                signal=row["signal"],
                kind=row["kind"],
                engine=row["engine"],
                name=row["name"],
                part=row["part"],
                select=(label, wanted) if label else None,
                combine=row["combine"],
                first=release(row["first"]),
                last=release(row["last"]),
                optional=row["presence"] != "always",
                gone=row["presence"] == "gone",
                source=row["source"],
                order=order,
            )
        )
    return tuple(out)


@cache
def rows_of(engine: str) -> Mapping[str, tuple[Row, ...]]:
    """Signal -> its rows for one engine, newest first."""
    out: dict[str, list[Row]] = {}
    for row in rows():
        if row.engine == engine:
            out.setdefault(row.signal, []).append(row)
    return {signal: tuple(found) for signal, found in out.items()}


@cache
def signals() -> tuple[str, ...]:
    """Every signal of the vocabulary, once, in the table's order (GPU and process rows apart)."""
    return tuple(dict.fromkeys(row.signal for row in rows() if row.engine not in ("gpu", "process")))


@cache
def _bases() -> Mapping[str, tuple[Row, ...]]:
    out: dict[str, list[Row]] = {}
    for row in rows():
        out.setdefault(row.name.replace(":", "_", 1), []).append(row)
    return {name: tuple(found) for name, found in out.items()}


@lru_cache(maxsize=20_000)
def find(sample_name: str) -> tuple[tuple[Row, ...], str] | None:
    """The rows that a sample name belongs to and the sample's suffix, or None for a name we do not read.

    >>> found = find("ray_vllm_prompt_tokens_total")
    >>> found[0][0].signal, found[1]
    ('prompt_tokens', '_total')
    >>> find("vllm:iteration_tokens_total_bucket")[0][0].signal
    'step_tokens'
    >>> find("python_info") is None
    True
    """
    layered = LAYERED.search(sample_name)
    name = (layered.group(1) if layered else sample_name).replace(":", "_", 1)
    table = _bases()
    for suffix in HISTOGRAM_PARTS:
        if name.endswith(suffix):
            base = table.get(name[: -len(suffix)])
            if base is not None and (base[0].kind == "histogram" or suffix == "_created"):
                return base, suffix
    for suffix in COUNTER_PARTS:
        if name.endswith(suffix):
            base = table.get(name[: len(name) - len(suffix)])
            if base is not None and _fits(base[0].kind, suffix):
                return base, suffix
    return None


def _fits(kind: str, suffix: str) -> bool:
    if kind in ("counter", "counter_by"):
        return True
    return suffix == "" and kind != "histogram"


def wanted(sample_name: str) -> bool:
    """Whether the product reads this sample. ``_created`` is read for token counters alone: it dates the
    start.
    """
    found = find(sample_name)
    if found is None:
        return False
    return found[1] != "_created" or found[0][0].signal in ("prompt_tokens", "generation_tokens")


def all_metric_names(signal: str) -> tuple[str, ...]:
    """Names that can answer a signal, newest first.

    >>> all_metric_names("kv_usage")[:2]
    ('vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc')
    """
    return tuple(row.name for row in rows() if row.signal == signal)
