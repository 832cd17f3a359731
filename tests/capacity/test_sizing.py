"""Sizing: the SLO holds where it says so, spares and ceilings count, prices are the user's; grids and options."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from capacity.errors import CapacityError
from capacity.estimate_cli import run_estimate, run_size
from capacity.performance.deployment import planned
from capacity.scenario import Scenario
from capacity.size_request import parse_size
from capacity.sizing import largest_load, percentile_factor, size
from capacity.speed_grid import Axis, front, pareto, speed_grid
from capacity.speed_options import disaggregated, format_variants, layout_variants

ASK = {
    "model": "llama-3.1-70b",
    "weight_formats": ["fp8"],
    "arrival_rate_rps": 10,
    "prompt_tokens": 1024,
    "output_tokens": 256,
    "slo_ttft_s": 1.0,
    "slo_tpot_s": 0.04,
    "gpus": ["h100-sxm", "h200", "b200", "l40s", "a100-80-sxm"],
}
ONE = {
    "model": "llama-3.1-70b",
    "weight_format": "fp8",
    "gpu": "h100-sxm",
    "tensor_parallel_size": 4,
    "prompt_tokens": 1024,
    "output_tokens": 256,
}


def test_every_option_meets_the_slo_at_its_own_load():
    options, _ = size(parse_size(ASK))
    assert options
    for o in options:
        assert o.forecast.ttft_s.value[0] <= 1.0 * 1.001
        assert o.forecast.tpot_s.value[0] <= 0.04 * 1.001
        assert o.utilization <= 0.8 + 1e-9
        assert (o.replicas - o.spare_replicas) * o.most_rate_per_replica_rps * 0.8 >= 10 - 1e-6
        assert o.gpus == o.replicas * o.tensor_parallel_size


def test_one_replica_fewer_would_not_do():
    options, _ = size(parse_size(ASK))
    for o in options:
        fewer = o.replicas - o.spare_replicas - 1
        assert fewer == 0 or fewer * o.most_rate_per_replica_rps * 0.8 < 10


def test_ranked_by_cost_then_gpus():
    found = run_size({**ASK, "prices_usd_per_gpu_hour": {"h100-sxm": 2.0, "h200": 3.0, "b200": 5.0}})[
        "deployments"
    ]
    costs = [
        math.sqrt(d["usd_per_hour"]["low"] * d["usd_per_hour"]["high"]) for d in found if d["usd_per_hour"]
    ]
    assert costs == sorted(costs)
    mine = next(d for d in found if d["gpu"] == "h100-sxm")
    assert mine["usd_per_hour"] == {"low": 2.0 * mine["gpus"], "high": 2.0 * mine["gpus"], "source": "yours"}
    assert mine["usd_per_million_output_tokens"]["low"] == pytest.approx(
        2.0 * mine["gpus"] / 3600 / (10 * 256) * 1e6, rel=1e-3
    )
    by_gpus = run_size({**ASK, "rank_by": "gpus"})["deployments"]
    assert [d["gpus"] for d in by_gpus] == sorted(d["gpus"] for d in by_gpus)


def test_a_spare_adds_one_replica():
    none, one = (
        size(parse_size({**ASK, "spare_replicas": n, "gpus": ["h200"], "tensor_parallel_sizes": [2]}))[0][0]
        for n in (0, 1)
    )
    assert one.replicas == none.replicas + 1
    assert one.gpus == none.gpus + 2


def test_a_stricter_slo_never_needs_fewer_gpus():
    loose, tight = (
        run_size({**ASK, "gpus": ["h200"], "tensor_parallel_sizes": [4], "slo_tpot_s": s})["deployments"][0][
            "gpus"
        ]
        for s in (0.05, 0.02)
    )
    assert tight >= loose
    p99 = run_size({**ASK, "gpus": ["h200"], "tensor_parallel_sizes": [4], "slo_percentile": 99})
    assert p99["deployments"][0]["gpus"] >= loose
    assert any("p99" in w for w in p99["warnings"])


def test_largest_load_is_the_edge():
    found = planned(Scenario.parse(ONE))
    load = largest_load(found, ttft_s=None, tpot_s=0.025)
    assert load is not None and load.stopped_by == "TPOT SLO"
    assert load.forecast.tpot_s.value[0] == pytest.approx(0.025, rel=0.01)
    assert largest_load(found, ttft_s=None, tpot_s=0.001) is None
    free = largest_load(found, ttft_s=None, tpot_s=None)
    assert free is not None and free.concurrency == pytest.approx(found.deployment.most_running)


def test_impossible_targets_say_why():
    answer = run_size({**ASK, "slo_tpot_s": 0.0001})
    assert answer["deployments"] == []
    assert "no deployment meets the target" in answer["warnings"][0]
    assert any("single request" in row["reason"] for row in answer["left_out"])
    json.dumps(answer, allow_nan=False)


def test_price_that_nobody_gave_is_unknown_not_zero():
    rows = run_size({**ASK, "gpus": ["h20"], "max_gpus": 4096})["deployments"]
    assert rows
    assert rows[0]["usd_per_hour"] is None
    assert any("cost" in reason for reason in rows[0]["unknown"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival_rate_rps": None}, "arrival_rate_rps is missing"),
        ({"arrival_rate_rps": -1}, "expected a number"),
        ({"slo_tpot_s": "fast"}, "slo_tpot_s is 'fast'"),
        ({"gpus": {}}, "gpus is an object; expected a list of 1 to 100 names"),
        ({"gpus": []}, "gpus is an empty list; expected a list of 1 to 100 names"),
        ({"gpus": ["h100", 5]}, r"gpus\[1\] is 5; expected a list"),
        ({"tensor_parallel_sizes": [2, "4"]}, r"tensor_parallel_sizes\[1\] is '4'; expected a list"),
        ({"arrival_rate_rps": 0}, "arrival_rate_rps is 0; expected a number, above 0, at most 10,000,000"),
        ({"gpus": ["h999"]}, "not in the catalogue"),
        ({"rank_by": "love"}, "expected one of cost, gpus, tokens_per_gpu"),
        ({"weight_formats": ["fp9x"]}, "is unknown"),
        ({"spare_replicas": 1.5}, "expected a whole number"),
        ({"prompt_tokens": None}, "prompt_tokens is missing"),
        ({"prices_usd_per_gpu_hour": [1]}, "is not an object"),
        ({"utilization_ceiling": 0}, "utilization_ceiling"),
    ],
)
def test_bad_questions(change, message):
    with pytest.raises(CapacityError, match=message):
        run_size({**ASK, **change})


def test_percentile_factors_rise():
    values = [percentile_factor("ttft_s", p) for p in (50, 90, 95, 99)]
    assert values == sorted(values) and values[0] == 1


def test_grid_equals_single_estimates():
    x, y = Axis(key="concurrency", values=(1, 16, 300)), Axis(key="prompt_tokens", values=(200.0, 6000.0))
    grid = speed_grid(Scenario.parse(ONE), x, y)
    for i, prompt in enumerate(y.values):
        for j, c in enumerate(x.values):
            one = run_estimate({**ONE, "prompt_tokens": prompt, "concurrency": c, "max_model_len": 8192})
            assert grid.measures["tpot_s"][i, j] == pytest.approx(one["tpot_s"]["value"], rel=0.02)
    assert grid.complete and not grid.reasons


def test_grid_over_gpus_keeps_reasons_and_can_be_stopped():
    seen: list[float] = []
    x, y = Axis(key="gpu", values=("t4", "h100-sxm", "h200")), Axis(key="concurrency", values=(1, 8))
    grid = speed_grid(Scenario.parse(ONE), x, y, on_row=lambda share: seen.append(share) or True)
    assert np.isnan(grid.measures["tpot_s"][:, 0]).all() and "does not fit" in grid.reasons[0, 0]
    assert (grid.measures["tpot_s"][:, 2] <= grid.measures["tpot_s"][:, 1]).all()
    assert seen[-1] == 1.0
    stopped = speed_grid(Scenario.parse(ONE), x, y, on_row=lambda share: False)
    assert not stopped.complete and np.isnan(stopped.measures["tpot_s"][:, 2]).all()


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (Axis(key="warp", values=(1,)), None, "cannot be swept"),
        (Axis(key="concurrency", values=()), None, "no values"),
        (Axis(key="concurrency", values=(1,)), Axis(key="concurrency", values=(1,)), "both axes"),
        (
            Axis(key="concurrency", values=tuple(range(1, 1002))),
            Axis(key="prompt_tokens", values=tuple(range(1, 1002))),
            "cells",
        ),
    ],
)
def test_grids_that_make_no_sense(x, y, message):
    with pytest.raises(CapacityError, match=message):
        speed_grid(Scenario.parse(ONE), x, y)


def test_pareto_front_falls():
    points = pareto(Scenario.parse(ONE))
    users = [p.tokens_per_s_per_user for p in points]
    per_gpu = [p.tokens_per_s_per_gpu for p in points]
    assert users == sorted(users, reverse=True) and per_gpu == sorted(per_gpu)
    assert len(front(np.array([1.0]), np.array([2.0]), np.array([3.0]))) == 1


def test_formats_side_by_side():
    rows = {
        (v.changes["weight_format"], v.changes["kv_cache_dtype"]): v
        for v in format_variants(Scenario.parse(ONE), concurrency=32)
    }
    assert (
        rows["awq", "auto"].weights_gib < rows["fp8", "auto"].weights_gib < rows["bf16", "auto"].weights_gib
    )
    assert rows["fp8", "fp8"].kv_concurrency > 1.9 * rows["fp8", "auto"].kv_concurrency
    assert ("mxfp4", "auto") not in rows
    assert "arXiv" in rows["awq", "auto"].quality and "fp8 cache" in rows["fp8", "fp8"].quality


def test_layouts_use_all_gpus_and_are_legal():
    scenario = Scenario.parse(
        {"model": "qwen3-235b-a22b-fp8", "gpu": "h200", "prompt_tokens": 1024, "output_tokens": 256}
    )
    rows = layout_variants(scenario, gpus=8, concurrency=64)
    assert all(v.gpus == 8 for v in rows if v.gpus is not None)
    assert any(v.changes["enable_expert_parallel"] for v in rows)
    assert all((v.forecast is None) == (v.reason is not None) for v in rows)
    one = next(
        v for v in rows if v.changes["tensor_parallel_size"] == 1 and v.changes["data_parallel_size"] == 8
    )
    eight = next(v for v in rows if v.changes["tensor_parallel_size"] == 8)
    assert eight.traffic_gb_per_s > 0 and (
        one.traffic_gb_per_s is None or one.traffic_gb_per_s < eight.traffic_gb_per_s
    )


def test_disaggregation_is_flagged_and_bounded():
    found = disaggregated(Scenario.parse(ONE), prefill_replicas=1, decode_replicas=3, concurrency=32)
    assert found.gpus == 16 and found.requests_per_s > 0
    assert found.limited_by in ("prefill", "decode")
    assert "no measured point" in found.notes[0]
    with pytest.raises(CapacityError, match="at least one prefill"):
        disaggregated(Scenario.parse(ONE), prefill_replicas=0, decode_replicas=1, concurrency=1)
