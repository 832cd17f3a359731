"""A set of up to six named scenarios with their measured points and prices: read from JSON, written to JSON.

Left out: what is computed from them (compare.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capacity.errors import CapacityError
from capacity.hf_config.text import unique_keys
from capacity.performance.measured import MeasuredPoint, measured_points
from capacity.resolve import model_of
from capacity.scenario import Scenario
from capacity.scenario_keys import for_verb
from capacity.speed_options import Variant, format_variants, layout_variants

MOST = 6
MAX_CHARACTERS = 4_000_000
KEYS = ("name", "scenario", "measured_points", "price_usd_per_gpu_hour")
FORMATS = ("bf16", "fp8", "awq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One scenario of a comparison. ``price_usd_per_gpu_hour`` None: the bundled range of its GPU.

    ``notes``: what was left out of the JSON it came from.
    """

    name: str
    scenario: Scenario
    measured: tuple[MeasuredPoint, ...] = ()
    price_usd_per_gpu_hour: float | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The entry as a JSON object; ``entry`` reads it back."""
        out: dict[str, Any] = {"name": self.name, "scenario": self.scenario.to_json()}
        if self.measured:
            out["measured_points"] = [
                {"concurrency": p.concurrency, "tpot_s": p.tpot_s, "ttft_s": p.ttft_s} for p in self.measured
            ]
        if self.price_usd_per_gpu_hour is not None:
            out["price_usd_per_gpu_hour"] = self.price_usd_per_gpu_hour
        return out


def entry(raw: Any, *, number: int = 1) -> Entry:
    """An entry from JSON: a scenario object, or one under ``scenario`` with name, points and price. Raises CapacityError.

    >>> entry({"model": "Qwen/Qwen3-8B", "gpu": "h100-sxm"}).name
    'Qwen3-8B, 1 x h100-sxm'
    """
    if not isinstance(raw, Mapping):
        raise CapacityError(
            f"scenario {number} is no JSON object; expected scenario keys such as model and gpu"
        )
    inner = raw.get("scenario")
    body = (
        inner if isinstance(inner, Mapping) else {key: value for key, value in raw.items() if key not in KEYS}
    )
    if inner is not None and not isinstance(inner, Mapping):
        raise CapacityError(f"scenario {number}: scenario is no JSON object; expected scenario keys")
    name = raw.get("name")
    if name is not None and not isinstance(name, str):
        raise CapacityError(f"scenario {number}: name is no text", field="name")
    try:
        body, notes = for_verb(body, "plan")
        scenario = Scenario.parse(body)
        measured = measured_points(raw.get("measured_points"))
    except CapacityError as error:
        raise CapacityError(f"scenario {number}: {error}", field=error.field) from None
    return Entry(
        name=(name or "").strip()[:60] or name_of(scenario),
        scenario=scenario,
        measured=measured,
        price_usd_per_gpu_hour=price(raw.get("price_usd_per_gpu_hour")),
        notes=tuple(one.replace("not used by plan", "not used here") for one in notes),
    )


def price(value: Any) -> float | None:
    """A price in $ per GPU hour, None where none is given. Raises CapacityError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 10_000:
        raise CapacityError(
            f"price_usd_per_gpu_hour is {str(value)[:40]!r}; expected a number above 0, at most 10,000",
            field="price_usd_per_gpu_hour",
        )
    return float(value)


def entries_from_text(text: str) -> tuple[Entry, ...]:
    """Entries of a JSON file: a list, one scenario, or an object with ``scenarios``. Raises CapacityError.

    >>> [one.name for one in entries_from_text('[{"name": "a", "model": "Qwen/Qwen3-8B", "gpu": "l4"}]')]
    ['a']
    """
    return entries_from_json(json_of(text))


def json_of(text: str) -> Any:
    """The JSON of a pasted or uploaded text. Raises CapacityError with the line of the fault."""
    if not text.strip():
        raise CapacityError("the text is empty; expected a JSON list of scenarios")
    if len(text) > MAX_CHARACTERS:
        raise CapacityError(f"the file has {len(text):,} characters; expected at most {MAX_CHARACTERS:,}")
    try:
        return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=unique_keys)
    except CapacityError:
        raise
    except json.JSONDecodeError as error:
        raise CapacityError(
            f"not JSON at line {error.lineno}, column {error.colno}: {error.msg.lower()}; expected a list of scenarios"
        ) from None
    except (RecursionError, ValueError):
        raise CapacityError("the JSON is nested too deeply or holds a number of too many digits") from None


def entries_from_json(raw: Any) -> tuple[Entry, ...]:
    """Entries of a parsed file, at least 1 and at most 6, names made unique. Raises CapacityError."""
    rows = raw
    if isinstance(raw, Mapping):
        rows = raw["scenarios"] if "scenarios" in raw else [raw if "model" in raw else _of_answer(raw)]
    if not isinstance(rows, list) or not rows:
        raise CapacityError("no scenarios are in the file; expected a JSON list of 1 to 6 scenario objects")
    if len(rows) > MOST:
        raise CapacityError(f"{len(rows):,} scenarios are in the file; expected at most {MOST}")
    return unique([entry(row, number=i) for i, row in enumerate(rows, start=1)])


def _of_answer(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The scenario of a downloaded plan, which holds its answer as well."""
    kept = {key: raw[key] for key in KEYS if key in raw}
    return kept if "scenario" in raw else raw


def unique(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries with a number after names that repeat."""
    found: list[Entry] = []
    for one in entries:
        taken, name, count = {other.name for other in found}, one.name, 2
        while name in taken:
            name, count = f"{one.name} ({count})", count + 1
        found.append(replace(one, name=name))
    return tuple(found)


def name_of(scenario: Scenario) -> str:
    """A scenario in a few words."""
    model = (scenario.model or "own config").rsplit("/", 1)[-1]
    sizes = scenario.tensor_parallel_size * scenario.pipeline_parallel_size * scenario.data_parallel_size
    parts = [model, f"{sizes} x {scenario.gpu or 'GPU'}", scenario.weight_format or ""]
    if scenario.kv_cache_dtype not in (None, "auto"):
        parts.append(f"{scenario.kv_cache_dtype} KV")
    return ", ".join(part for part in parts if part)[:60]


def formats_of(scenario: Scenario, *, concurrency: float = 32.0) -> tuple[Entry, ...]:
    """Up to six entries: 16, 8 and 4 bit weights, each with the model's own and an fp8 cache, where they can run."""
    rows = format_variants(scenario, concurrency=concurrency, weights=FORMATS)

    def name(row: Variant) -> str:
        cache = row.changes["kv_cache_dtype"]
        return f"{row.changes['weight_format']} weights" + ("" if cache == "auto" else f", {cache} KV")

    return _entries(scenario, [(name(row), row) for row in rows])


def layouts_of(scenario: Scenario, *, concurrency: float = 32.0) -> tuple[Entry, ...]:
    """Up to six layouts of the scenario's GPUs (at least 2), the most output tokens/s first. Raises CapacityError."""
    gpus = scenario.tensor_parallel_size * scenario.pipeline_parallel_size * scenario.data_parallel_size
    rows = layout_variants(scenario, gpus=max(gpus, 2), concurrency=concurrency)
    able = [row for row in rows if row.forecast is not None]
    if not able:
        raise CapacityError(
            f"no layout of {max(gpus, 2)} GPUs holds {model_of(scenario).model_id}", field="gpu"
        )

    def name(row: Variant) -> str:
        c = row.changes
        parts = [
            f"{label}{c[key]}"
            for label, key in (
                ("TP", "tensor_parallel_size"),
                ("PP", "pipeline_parallel_size"),
                ("DP", "data_parallel_size"),
            )
            if c[key] > 1
        ]
        return " x ".join(parts) + (" with EP" if c["enable_expert_parallel"] else "")

    able.sort(key=lambda row: -float(row.forecast.output_tokens_per_s.value[0]) if row.forecast else 0.0)
    return _entries(scenario, [(name(row), row) for row in able])


def _entries(scenario: Scenario, rows: Sequence[tuple[str, Variant]]) -> tuple[Entry, ...]:
    raw = scenario.to_json()
    return unique(
        [Entry(name=name, scenario=Scenario.parse({**raw, **row.changes})) for name, row in rows[:MOST]]
    )
