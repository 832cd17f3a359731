"""Scenarios for the speed tables: many models, cards, releases and workloads, the same ones each time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from capacity.catalog import model_ids
from capacity.catalog.models import model_spec
from capacity.engine import known_releases
from capacity.errors import CapacityError
from capacity.parallelism import valid_tensor_parallel_sizes

CARDS = ("h100-sxm", "h200", "a100-80-sxm", "l40s", "b200", "mi300x")


def varied(count: int, *, seed: int = 7) -> Iterator[dict[str, Any]]:
    """``count`` scenarios that the planner accepts or answers with "does not fit"; some are refused by a release."""
    rng = random.Random(seed)
    models = []
    for model_id in model_ids():
        try:
            spec = model_spec(model_id)
        except CapacityError:
            continue
        if spec.kv_layout_known:
            sizes = [n for n in valid_tensor_parallel_sizes(spec, limit=8) if n in (1, 2, 4, 8)]
            models.append((model_id, sizes, spec.max_position_embeddings or 8192))
    releases = [text for text in known_releases() if not text.startswith("0.6")]
    for _ in range(count):
        model_id, sizes, longest = rng.choice(models)
        scenario: dict[str, Any] = {
            "model": model_id,
            "gpu": rng.choice(CARDS),
            "tensor_parallel_size": rng.choice(sizes),
            "max_model_len": min(longest, rng.choice((2048, 8192, 16384, 32768, 131072))),
            "engine_version": rng.choice(releases),
            "gpu_memory_utilization": round(rng.uniform(0.7, 0.95), 2),
        }
        if rng.random() < 0.3:
            scenario["kv_cache_dtype"] = "fp8"
        if rng.random() < 0.3:
            scenario["weight_format"] = rng.choice(("fp8", "awq", "nvfp4"))
        if rng.random() < 0.5:
            scenario["prompt_tokens"] = {"mean": rng.randint(100, 4000), "cv": round(rng.uniform(0, 2), 2)}
            scenario["output_tokens"] = rng.randint(16, 1500)
        yield scenario
