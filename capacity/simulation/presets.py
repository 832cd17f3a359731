"""Scenarios to start from: each shows one thing that averages hide. Plain JSON objects of the simulation's keys.

Left out: models and GPUs; step times are those of an 8B model in 16 bit on a 24 GB or 80 GB card, rounded.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from capacity.errors import CapacityError

_SMALL_CARD = {
    "fixed_s": 0.018,
    "per_prefill_token_s": 1.2e-4,
    "per_decode_token_s": 6e-5,
    "per_context_token_s": 1.3e-7,
}
_LARGE_CARD = {
    "fixed_s": 0.008,
    "per_prefill_token_s": 3e-5,
    "per_decode_token_s": 3e-5,
    "per_context_token_s": 5e-8,
}
_CHAT = {
    "prompt_tokens": {"distribution": "lognormal", "mean": 400, "cv": 0.8},
    "output_tokens": {"distribution": "lognormal", "mean": 250, "cv": 0.6},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named scenario and what to look for in it."""

    key: str
    title: str
    shows: str
    scenario: dict[str, Any]


PRESETS: tuple[Preset, ...] = (
    Preset(
        key="teaching",
        title="100 blocks, ten requests",
        shows="seven prompts of 200 tokens (13 blocks each) fit 100 blocks of 16 and the other three of the ten requests "
        "wait, which a queue of 3 allows, so none is refused; with its answer a request needs 16 blocks, so one of the "
        "seven is preempted and 214 tokens are computed again",
        scenario={
            "num_blocks": 100,
            "block_size": 16,
            "step_time": {"fixed_s": 0.1},
            "max_num_seqs": 16,
            "max_num_batched_tokens": 2048,
            "admission": [{"policy": "queue_limit", "max_waiting": 3}],
            "workload": {
                "requests": [
                    {"arrival_s": round(0.25 * i, 2), "prompt_tokens": 200, "output_tokens": 50}
                    for i in range(10)
                ]
            },
        },
    ),
    Preset(
        key="burst",
        title="Burst on a full pool",
        shows="bursts of 60 requests every 20 s on a pool that holds about 40: decode keeps growing, requests are "
        "preempted and computed again",
        scenario={
            "num_blocks": 1500,
            "block_size": 16,
            "step_time": _SMALL_CARD,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 2048,
            "slo": {"ttft_s": 5.0, "tpot_s": 0.08},
            "workload": {
                "arrival": {"process": "burst", "burst_size": 60, "rate_rps": 3.0},
                **_CHAT,
                "num_requests": 900,
            },
        },
    ),
    Preset(
        key="long_beside_chat",
        title="Long documents beside chat",
        shows="5 % of the requests bring 12,000 tokens: they take the prefill budget and the blocks of forty chats each",
        scenario={
            "num_blocks": 5000,
            "block_size": 16,
            "step_time": _LARGE_CARD,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
            "workload": {
                "arrival": {"process": "poisson", "rate_rps": 9.0},
                "classes": [
                    {"weight": 0.95, **_CHAT},
                    {
                        "weight": 0.05,
                        "prompt_tokens": {
                            "distribution": "lognormal",
                            "mean": 12_000,
                            "cv": 0.3,
                            "max": 30_000,
                        },
                        "output_tokens": 400,
                    },
                ],
                "num_requests": 2000,
            },
        },
    ),
    Preset(
        key="retry_storm",
        title="Retry storm",
        shows="clients give up after 15 s and send again at once: the pool works for answers nobody waits for",
        scenario={
            "num_blocks": 1500,
            "block_size": 16,
            "step_time": _SMALL_CARD,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 2048,
            "slo": {"ttft_s": 5.0, "tpot_s": 0.08},
            "client": {"timeout_s": 15.0, "retry_policy": "immediate", "max_retries": 4},
            "workload": {
                "arrival": {"process": "gamma", "rate_rps": 3.6, "cv": 2.0},
                **_CHAT,
                "num_requests": 1500,
            },
        },
    ),
    Preset(
        key="hot_prefix",
        title="Hot prefix",
        shows="eight system prompts of 1,024 tokens, one of them far more popular: shared blocks are computed once",
        scenario={
            "num_blocks": 2500,
            "block_size": 16,
            "step_time": _SMALL_CARD,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 2048,
            "slo": {"ttft_s": 5.0, "tpot_s": 0.08},
            "workload": {
                "arrival": {"process": "poisson", "rate_rps": 3.0},
                "prompt_tokens": {"distribution": "lognormal", "mean": 1400, "cv": 0.3, "min": 1040},
                "output_tokens": {"distribution": "lognormal", "mean": 250, "cv": 0.6},
                "shared_prefix_tokens": 1024,
                "prefix_groups": 8,
                "prefix_skew": 1.2,
                "num_requests": 1500,
            },
        },
    ),
    Preset(
        key="slow_replica",
        title="One slow replica",
        shows="three engines behind round robin, one of them three times slower: its line grows while the others idle",
        scenario={
            "num_blocks": 2500,
            "block_size": 16,
            "step_time": _LARGE_CARD,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 8192,
            "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
            "fleet": {"replicas": 3, "router": "round_robin", "slow_replica": {"replica": 1, "factor": 3}},
            "workload": {"arrival": {"process": "poisson", "rate_rps": 24.0}, **_CHAT, "num_requests": 3000},
        },
    ),
)


def preset(key: str) -> dict[str, Any]:
    """A copy of a preset's scenario. Raises CapacityError that lists the keys.

    >>> preset("teaching")["num_blocks"]
    100
    """
    for item in PRESETS:
        if item.key == key:
            return deepcopy(item.scenario)
    raise CapacityError(
        f"no preset {key[:40]!r}; expected one of {', '.join(p.key for p in PRESETS)}", field="preset"
    )
