"""The planner asked at many lengths: what concurrency against sequence length is drawn from."""

from __future__ import annotations

from dataclasses import replace

from capacity.errors import CapacityError
from capacity.plan import Plan, plan
from pages.ui.first_charts import LengthPoint

SHORTEST = 256
POINTS = 25


def length_points(found: Plan) -> list[LengthPoint]:
    """About 25 lengths up to the model's own limit, the chosen one among them; lengths that are refused are left out."""
    chosen = found.resolved.max_model_len
    full = {
        "prompt_tokens": None,
        "output_tokens": None,
        "shared_prefix_tokens": 0,
    }  # the workload changes no pool
    scenario = replace(found.resolved.scenario, **full)
    limit = max(found.resolved.spec.max_position_embeddings or 0, chosen)
    start = min(SHORTEST, chosen)
    ratio = max(1.0, limit / start) ** (1 / (POINTS - 1))
    lengths = sorted({*(round(start * ratio**i) for i in range(POINTS)), chosen, limit})
    points = []
    for tokens in lengths:
        try:
            one = plan(replace(scenario, max_model_len=tokens))
        except CapacityError:
            continue
        if one.pool is None:
            continue
        stage = one.pool.stage
        have = one.kv_bytes[stage]
        points.append(
            LengthPoint(
                tokens=tokens,
                requests=one.pool.max_concurrency,
                low=one.pool.max_concurrency * one.kv_low_bytes[stage] / have if have else 0.0,
                high=one.pool.max_concurrency * one.kv_high_bytes[stage] / have if have else 0.0,
                textbook=one.textbook.concurrency,
            )
        )
    return points
