"""Sweeps, cancelling, the timeline, and what a run says about itself."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.errors import CapacityError
from capacity.simulate_cli import prepare, run_simulate, simulate
from capacity.simulation.block_map import block_map
from capacity.simulation.meters import Meter, Timeline
from capacity.simulation.presets import preset
from capacity.simulation.sweep import knee, miss, sweep_rates

CHAT: dict[str, Any] = {
    "num_blocks": 1500,
    "step_time": {"fixed_s": 0.01, "per_prefill_token_s": 2e-5, "per_decode_token_s": 1e-4},
    "slo": {"ttft_s": 1.0, "tpot_s": 0.05},
    "workload": {
        "arrival": {"process": "poisson", "rate_rps": 4},
        "prompt_tokens": 300,
        "output_tokens": 200,
        "num_requests": 400,
    },
}


def test_the_knee_lies_between_idle_and_overload() -> None:
    points = sweep_rates(CHAT, [0.5, 1, 2, 4, 8, 16])
    found = knee(points)
    assert found is not None
    assert 2 <= found.rate_rps < 64
    assert points[0].ttft_p99_s is not None and points[-1].ttft_p99_s is not None
    assert points[0].ttft_p99_s < points[-1].ttft_p99_s
    assert points[-1].goodput_rps is not None and found.goodput_rps is not None
    assert points[-1].goodput_rps < found.goodput_rps


def test_the_knee_is_closed_in_on() -> None:
    """Seats for 10 requests of exactly 2 s: five a second are served and no more."""
    steady: dict[str, Any] = {
        "num_blocks": 1000,
        "max_num_seqs": 10,
        "step_time": {"fixed_s": 0.01},
        "slo": {"e2e_s": 2.3},
        "workload": {
            "arrival": {"process": "constant", "rate_rps": 1},
            "prompt_tokens": 16,
            "output_tokens": 200,
            "num_requests": 2000,
        },
    }
    coarse = sweep_rates(steady, [1, 2, 8])
    fine = sweep_rates(steady, [1, 2, 8], refine=8)
    assert knee(coarse) is not None and knee(coarse).rate_rps == pytest.approx(2, rel=0.01)
    best, beyond = knee(fine), miss(fine)
    assert best is not None and beyond is not None
    assert best.rate_rps == pytest.approx(5, rel=0.021)
    assert 1 < beyond.rate_rps / best.rate_rps < 1.021
    assert [one.rate_rps for one in fine] == sorted(one.rate_rps for one in fine)
    for only in (1, 64):  # all rates meet it, none does: the search goes on beyond what was given
        found = sweep_rates(steady, [only], refine=12)
        assert knee(found).rate_rps == pytest.approx(best.rate_rps, rel=0.03)


def test_a_burst_has_no_rate_to_search() -> None:
    together = {"requests": [{"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 10}] * 3}
    for requests in (together["requests"], together["requests"][:1]):
        with pytest.raises(CapacityError, match="no arrival rate to sweep"):
            sweep_rates({**CHAT, "workload": {"requests": requests}}, [1, 2], refine=8)


def test_a_sweep_can_be_stopped_between_and_within_runs() -> None:
    shares: list[float] = []

    def until(limit: float) -> Any:
        return lambda share: shares.append(share) or share < limit

    assert len(sweep_rates(CHAT, [1, 2, 4], progress=until(2))) == 3
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert 1 <= len(sweep_rates(CHAT, [1, 2, 4], progress=until(0.5))) < 3
    long = {**CHAT, "workload": {**CHAT["workload"], "num_requests": 20_000}}
    shares.clear()
    assert sweep_rates(long, [1, 2, 4], progress=until(0.1)) == []
    assert 0.1 <= shares[-1] < 0.2
    loop = {**CHAT, "workload": {**CHAT["workload"], "arrival": {"process": "closed_loop", "users": 3}}}
    with pytest.raises(CapacityError, match="no arrival rate to sweep"):
        sweep_rates(loop, [1])


def test_a_cancelled_run_says_so() -> None:
    big = {**CHAT, "workload": {**CHAT["workload"], "num_requests": 60_000}}
    answer = run_simulate(big, progress=lambda share: share < 0.4)
    assert answer["status"] == "cancelled"
    assert answer["requests"]["arrived"] < 60_000
    assert answer["warnings"][0].startswith("cancelled")


def test_a_closed_loop_can_be_cancelled() -> None:
    loop = {"arrival": {"process": "closed_loop", "users": 8}, "prompt_tokens": 50, "output_tokens": 5}
    answer = run_simulate(
        {**CHAT, "workload": {**loop, "num_requests": 8000}}, progress=lambda share: share < 0.4
    )
    assert answer["status"] == "cancelled"
    assert 2000 < answer["requests"]["arrived"] < 6000


@pytest.mark.parametrize(
    ("arrival", "more"),
    [
        ({"process": "closed_loop", "users": 1}, {}),
        ({"process": "closed_loop", "users": 500}, {}),
        ({"process": "closed_loop", "users": 50}, {"admission": [{"policy": "concurrency_limit", "max_requests": 1}]}),
        ({"process": "closed_loop", "users": 50}, {"fleet": {"replicas": 3}, "client": {"timeout_s": 5.0}}),
        ({"process": "burst", "burst_size": 900, "rate_rps": 100}, {}),
        ({"process": "poisson", "rate_rps": 50}, {"client": {"timeout_s": 5.0, "retry_policy": "immediate"}}),
    ],
)  # fmt: skip
def test_a_short_run_of_any_kind_stops_when_told(arrival: dict[str, Any], more: dict[str, Any]) -> None:
    """Below a thousand requests as well, and long before all of them are through."""
    keys = {**CHAT, "workload": {**CHAT["workload"], "arrival": arrival, "num_requests": 900}, **more}
    answer = run_simulate(keys, progress=lambda share: False)
    assert answer["status"] == "cancelled"
    assert answer["requests"]["finished"] < 890
    assert answer["warnings"][0].startswith("cancelled")
    whole = run_simulate(keys, progress=lambda share: 0 <= share <= 1)
    same = run_simulate(keys)
    assert whole["status"] == "ok" and whole["e2e_s"] == same["e2e_s"]


def test_a_cut_run_counts_what_is_still_inside() -> None:
    answer = run_simulate({**CHAT, "until_s": 20.0})
    counts = answer["requests"]
    assert answer["status"] == "cut"
    assert counts["in_flight_at_end"] > 0
    assert counts["arrived"] == counts["finished"] + counts["in_flight_at_end"] < 400
    inside, absent = counts["in_flight_at_end"], 400 - counts["arrived"]
    assert answer["warnings"][0] == (
        f"cut at until_s = 20 s: {inside} requests had no answer yet, {absent} had not arrived"
    )


def test_timeline_returns_to_zero_between_bursts() -> None:
    requests = [{"arrival_s": at, "prompt_tokens": 100, "output_tokens": 50} for at in (0, 0, 100, 100)]
    answer = run_simulate({**CHAT, "workload": {"requests": requests}, "timeline": True})
    line = answer["timeline"][0]
    idle = [at for at, running in zip(line["t_s"], line["running"], strict=True) if running == 0]
    assert any(0 < at < 2 for at in idle) and any(at >= 100 for at in idle)
    assert line["t_s"] == sorted(line["t_s"])
    assert line["finished"][-1] == 4


def test_timeline_misses_no_peak_however_long_the_run() -> None:
    answer = run_simulate({**CHAT, "timeline": True, "workload": {**CHAT["workload"], "num_requests": 3000}})
    line = answer["timeline"][0]
    assert len(line["t_s"]) < 2000
    assert max(line["peak_blocks"]) == round(answer["kv_usage"]["peak"] * 1500)
    assert all(peak >= used for peak, used in zip(line["peak_blocks"], line["used_blocks"], strict=True))


def test_timeline_keeps_peaks_when_it_is_thinned() -> None:
    meter = Meter(total_blocks=100, timeline=Timeline(interval=1, limit=8))
    for at, used in enumerate([1, 9, 2, 3, 50, 4, 99, 5, 6, 7, 8]):
        meter.peak_since = max(meter.peak_since, used)
        meter.sample(at, 1, 0, used // 2)
    assert len(meter.timeline.rows) < 8
    assert max(meter.timeline.as_columns()["peak_blocks"]) == 99


def test_warm_up_is_left_out() -> None:
    whole, cut = run_simulate(CHAT), run_simulate({**CHAT, "warmup_s": 30.0})
    assert cut["ttft_s"]["count"] < whole["ttft_s"]["count"]
    assert cut["requests"] == whole["requests"]


def test_confidence_interval_covers_the_mean_of_a_long_run() -> None:
    long = run_simulate({**CHAT, "workload": {**CHAT["workload"], "num_requests": 20_000}})
    short = run_simulate(CHAT, seed=5)
    half = short["confidence"]["e2e_s"]["half_width"]
    assert half is not None
    assert abs(short["e2e_s"]["mean"] - long["e2e_s"]["mean"]) < 3 * half


def test_block_map_shows_shared_blocks() -> None:
    shared = {"prefix_id": "system", "prefix_tokens": 128}
    requests = [{"arrival_s": i, "prompt_tokens": 200, "output_tokens": 300, **shared} for i in range(3)]
    run = simulate(prepare({**CHAT, "workload": {"requests": requests}}), log=True)
    picture = block_map(run, 2.5)
    assert sum(count == 3 for count in picture.readers) == 8
    assert picture.used < 3 * 13 + 20


def test_retry_storm_preset_is_worse_without_a_gate() -> None:
    storm = preset("retry_storm")
    gated = run_simulate({**storm, "admission": [{"policy": "block_gate"}]}, seed=1)
    plain = run_simulate(storm, seed=1)
    assert gated["goodput_rps"] > 1.3 * plain["goodput_rps"]
    assert gated["aborted_tokens"]["computed"] < plain["aborted_tokens"]["computed"]
