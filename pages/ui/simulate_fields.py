"""Simulation scenarios to widget texts and back: a table of fields, and JSON for every key that has no widget.

Source of the keys: docs/simulation.md. What is no number goes on as typed, so that the simulator's sentence reaches the
reader. Left out: widgets (simulate_inputs), policies (simulate_policies).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capacity.errors import CapacityError
from capacity.hf_config.text import unique_keys
from pages.ui.fields import number

POOLS = ("Blocks and step time", "Plan")
MOST_JSON = 200_000
LONG = ("long_share", "long_prompt", "long_output", "long_cv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A widget: where its value sits in the scenario, and how many of its units make one of the scenario's."""

    key: str
    label: str
    path: tuple[str, ...]
    group: str
    help: str
    scale: float = 1.0
    choices: tuple[str, ...] = ()
    placeholder: str = "default"
    row: int = 0


def _f(group: str, key: str, label: str, path: str, help: str, **more: Any) -> Field:
    return Field(key=key, label=label, path=tuple(path.split(".")), group=group, help=help, **more)


FIELDS: tuple[Field, ...] = (
    _f("pool", "num_blocks", "KV blocks", "num_blocks", "Blocks that requests can hold on one replica. An engine that "
       "logs N keeps one for itself: give N - 1.", placeholder="needed", row=1),
    _f("pool", "block_size", "Tokens per block", "block_size", "Tokens that one KV block holds.", placeholder="16", row=1),
    _f("pool", "fixed", "Fixed per step, ms", "step_time.fixed_s", "Time of a step whatever is in it: reading the weights, "
       "launching kernels.", scale=1e3, placeholder="0", row=2),
    _f("pool", "per_prefill", "Prompt token, µs", "step_time.per_prefill_token_s", "Time that each prompt token adds to its "
       "step.", scale=1e6, placeholder="0", row=2),
    _f("pool", "per_decode", "Decoding request, µs", "step_time.per_decode_token_s", "Time that each decoding request adds "
       "to a step.", scale=1e6, placeholder="0", row=3),
    _f("pool", "per_context", "Context token, ns", "step_time.per_context_token_s", "Time that each cached token read by a "
       "decoding request adds to a step.", scale=1e9, placeholder="0", row=3),
    _f("pool", "max_num_seqs", "Seats", "max_num_seqs", "max_num_seqs: the most requests that run at once.",
       placeholder="256", row=4),
    _f("pool", "max_num_batched_tokens", "Tokens per step", "max_num_batched_tokens", "max_num_batched_tokens: the token "
       "budget of one step, prompts and answers together.", placeholder="8192", row=4),
    _f("engine", "rules", "Scheduler", "scheduler.rules", "Whose rules form the steps. static and request-level are "
       "references without continuous batching.", placeholder="vllm-v1", row=1,
       choices=("vllm-v1", "vllm-v0", "sglang", "static", "request-level")),
    _f("engine", "scheduling_policy", "Order", "scheduler.scheduling_policy", "fcfs: first come, first served. priority: "
       "lower values first.", choices=("fcfs", "priority"), placeholder="fcfs", row=2),
    _f("engine", "preemption_mode", "Preemption", "preemption_mode", "What happens to a request whose blocks are taken: "
       "computed again, moved to the host, or ended.", choices=("recompute", "swap", "abort"), placeholder="recompute", row=2),
    _f("engine", "long_prefill", "Long prefill cap", "scheduler.long_prefill_token_threshold", "Most tokens of one prompt "
       "per step; 0 is no cap.", placeholder="0", row=3),
    _f("engine", "watermark", "Watermark", "scheduler.watermark", "Share of blocks that admission leaves free.",
       placeholder="0", row=3),
    _f("engine", "replicas", "Replicas", "fleet.replicas", "Engines with a pool each behind one router.",
       placeholder="1", row=4),
    _f("engine", "router", "Router", "fleet.router", "How a request finds its replica.", placeholder="round_robin", row=4,
       choices=("round_robin", "least_loaded", "session_affinity", "prefix_affinity", "power_of_two")),
    _f("engine", "slow", "Slow replica", "fleet.slow_replica.replica", "Number of a replica whose steps take longer, "
       "counted from 0.", placeholder="none", row=5),
    _f("engine", "slow_factor", "times slower", "fleet.slow_replica.factor", "How many times longer its steps take.",
       placeholder="1", row=5),
    _f("workload", "process", "Arrivals", "workload.arrival.process", "poisson: independent. gamma: bursty by its spread. "
       "burst: many at once. closed_loop: users who wait for their answer.", placeholder="poisson", row=1,
       choices=("poisson", "gamma", "constant", "burst", "daily", "closed_loop")),
    _f("workload", "rate", "Requests/s", "workload.arrival.rate_rps", "Mean arrival rate.", placeholder="needed", row=1),
    _f("workload", "cv", "Spread of gaps", "workload.arrival.cv", "Standard deviation of the gaps between arrivals divided "
       "by their mean (gamma); 1 is Poisson.", placeholder="1", row=2),
    _f("workload", "burst_size", "Burst size", "workload.arrival.burst_size", "Requests that arrive at once (burst).",
       placeholder="1", row=2),
    _f("workload", "users", "Users", "workload.arrival.users", "Users of a closed loop.", placeholder="1", row=3),
    _f("workload", "think", "Think time, s", "workload.arrival.think_s", "Seconds between an answer and the user's next "
       "request (closed loop).", placeholder="0", row=3),
    _f("workload", "prompt", "Prompt tokens", "workload.prompt_tokens.mean", "Mean prompt length.", placeholder="mean", row=4),
    _f("workload", "prompt_cv", "Spread", "workload.prompt_tokens.cv", "Standard deviation divided by the mean; blank or 0 is "
       "constant, otherwise lognormal.", placeholder="0", row=4),
    _f("workload", "output", "Output tokens", "workload.output_tokens.mean", "Mean answer length.", placeholder="mean", row=5),
    _f("workload", "output_cv", "Spread", "workload.output_tokens.cv", "Standard deviation divided by the mean.",
       placeholder="0", row=5),
    _f("workload", "num_requests", "Requests", "workload.num_requests", "How many requests arrive in the whole run.",
       placeholder="1000", row=6),
    _f("workload", "seed", "Seed", "seed", "The same seed gives the same run.", placeholder="0", row=6),
    _f("workload", "ttft", "TTFT within, s", "slo.ttft_s", "Objective for time to first token. A request that meets all "
       "objectives counts as goodput.", placeholder="any", row=7),
    _f("workload", "tpot", "TPOT within, ms", "slo.tpot_s", "Objective for the time per output token after the first.",
       scale=1e3, placeholder="any", row=7),
    _f("more", "long_share", "Long documents, %", "long.share", "Share of the requests that are long documents beside the "
       "others.", placeholder="0", row=1),
    _f("more", "long_prompt", "their prompt", "long.prompt", "Mean prompt tokens of a long document.", placeholder="mean", row=1),
    _f("more", "long_output", "their output", "long.output", "Mean output tokens of a long document's answer.",
       placeholder="mean", row=2),
    _f("more", "long_cv", "prompt spread", "long.cv", "Spread of their prompts.", placeholder="0", row=2),
    _f("more", "prefix", "Shared prefix", "workload.shared_prefix_tokens", "First tokens of a prompt that are the same "
       "within a group (a system prompt).", placeholder="0", row=3),
    _f("more", "prefix_groups", "Prefix groups", "workload.prefix_groups", "How many different prefixes there are.",
       placeholder="1", row=3),
    _f("more", "prefix_skew", "Prefix skew", "workload.prefix_skew", "How uneven their popularity is; 0 is even.",
       placeholder="0", row=4),
    _f("more", "warmup", "Warm-up, s", "warmup_s", "Requests that arrive in these first seconds are left out of the "
       "percentiles.", placeholder="0", row=4),
    _f("more", "timeout", "Clients time out, s", "client.timeout_s", "A client hangs up when the whole answer takes longer.",
       placeholder="never", row=5),
    _f("more", "patience", "Patience, s", "client.patience_s", "A client hangs up without a first token by then.",
       placeholder="unlimited", row=5),
    _f("more", "retry", "Retries", "client.retry_policy", "What a refused or timed-out client does.", placeholder="none",
       choices=("none", "immediate", "fixed", "exponential", "retry_after"), row=6),
    _f("more", "max_retries", "at most", "client.max_retries", "Retries of one request.", placeholder="3", row=6),
    _f("more", "until", "Stop after, s", "until_s", "Cut the run there.", placeholder="the last answer", row=7),
)  # fmt: skip
BY_KEY = {field.key: field for field in FIELDS}


def to_scenario(texts: Mapping[str, str], *, direct: bool) -> dict[str, Any]:
    """Filled-in texts and the further keys (``texts["json"]``) as a scenario. Raises CapacityError.

    ``direct``: the pool's own fields count; otherwise the planner's keys take their place.
    """
    raw: dict[str, Any] = {}
    for field in FIELDS:
        text = str(texts.get(field.key) or "").strip()
        if not text or (field.group == "pool" and not direct):
            continue
        value: Any = text if field.choices else number(text)
        if field.scale != 1.0 and isinstance(value, int | float):
            value = float(f"{value / field.scale:.12g}")
        _put(raw, field.path, value)
    _lengths(raw)
    _long_documents(raw)
    return merged(raw, further(texts.get("json") or "", "further keys"))


def further(text: str, where: str) -> dict[str, Any]:
    """A typed JSON object; empty text is an empty one. Raises CapacityError.

    >>> further('{"until_s": 60}', "further keys")
    {'until_s': 60}
    """
    if not text.strip():
        return {}
    if len(text) > MOST_JSON:
        raise CapacityError(f"the {where} hold {len(text):,} characters; expected at most {MOST_JSON:,}")
    try:
        found = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=unique_keys)
    except CapacityError as error:
        raise CapacityError(f"the {where}: {error}", field=error.field) from None
    except (ValueError, RecursionError):
        raise CapacityError(
            f'the {where} are no JSON; expected an object such as {{"events": true}}'
        ) from None
    if not isinstance(found, dict):
        raise CapacityError(f'the {where} are no object; expected one such as {{"events": true}}')
    return found


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` put on ``base``, objects merged key by key, everything else replaced.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    found = copy.deepcopy(dict(base))
    for key, value in over.items():
        mine = found.get(key)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        found[key] = merged(mine, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return found


def from_scenario(scenario: Mapping[str, Any]) -> dict[str, str]:
    """A scenario as texts of widgets; keys that have no widget end up in ``json``."""
    rest = copy.deepcopy(dict(scenario))
    _take_long_documents(rest)
    workload = rest.get("workload")
    if isinstance(workload, dict):
        for name in ("prompt_tokens", "output_tokens"):
            workload |= {name: _plain_length(workload[name])} if name in workload else {}
    texts: dict[str, str] = {}
    for field in FIELDS:
        value = _get(rest, field.path)
        simple = isinstance(value, str) if field.choices else _is_number(value)
        if not simple or (field.choices and value not in field.choices):
            continue
        shown = value if field.choices else f"{float(value) * field.scale:.10g}"
        texts[field.key] = str(int(value)) if isinstance(value, int) and field.scale == 1.0 else str(shown)
        _drop(rest, field.path)
    for key in ("timeline", "requests_detail", "events"):
        rest.pop(key, None)
    if rest:
        texts["json"] = json.dumps(rest, indent=1)
    return texts


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain_length(value: Any) -> Any:
    """A length whose distribution follows from mean and cv, without naming it."""
    if _is_number(value):
        return {"mean": value}
    if isinstance(value, dict) and _is_number(value.get("mean")):
        implied = "lognormal" if value.get("cv") else "constant"
        return {key: item for key, item in value.items() if (key, item) != ("distribution", implied)}
    return value


def _lengths(raw: dict[str, Any]) -> None:
    workload = raw.get("workload", {})
    for name in ("prompt_tokens", "output_tokens"):
        if name in workload and workload[name].get("cv"):
            workload[name]["distribution"] = "lognormal"


def _long_documents(raw: dict[str, Any]) -> None:
    """The fields on long documents as two classes of requests."""
    given = raw.pop("long", None)
    if given is None:
        return
    share = given.get("share", 0)
    if share == 0:
        return
    if not _is_number(share) or not 0 < share < 100:
        raise CapacityError(
            f"the share of long documents is {str(share)[:40]}; expected a number from 0 to 100, in %"
        )
    for key, label in (("prompt", "their prompt tokens"), ("output", "their output tokens")):
        if key not in given:
            raise CapacityError(f"long documents have a share and no length; expected {label}")
    workload = raw.setdefault("workload", {})
    chat = {name: workload.pop(name) for name in ("prompt_tokens", "output_tokens") if name in workload}
    prompt: dict[str, Any] = {"mean": given["prompt"], "cv": given.get("cv", 0)}
    prompt["distribution"] = "lognormal" if prompt["cv"] else "constant"
    workload["classes"] = [
        {"weight": float(f"{1 - share / 100:.12g}"), **chat},
        {"weight": share / 100, "prompt_tokens": prompt, "output_tokens": given["output"]},
    ]


def _take_long_documents(rest: dict[str, Any]) -> None:
    """Two classes of which the second is plain, as the fields on long documents. A cap five spreads above the mean of a
    prompt changes no draw worth the name and is left out.
    """
    workload = rest.get("workload")
    classes = workload.get("classes") if isinstance(workload, dict) else None
    if not isinstance(workload, dict) or not isinstance(classes, list) or len(classes) != 2:
        return
    if not all(isinstance(one, dict) for one in classes):
        return
    chat, long = classes
    prompt, output = _plain_length(long.get("prompt_tokens")), long.get("output_tokens")
    weights = (chat.get("weight", 1.0), long.get("weight", 1.0))
    if not isinstance(prompt, dict) or not _is_number(prompt.get("mean")) or not _is_number(output):
        return
    spread = prompt.get("cv", 0)
    cap = prompt.pop("max", None)
    if cap is not None and cap < prompt["mean"] * (1 + 5 * spread):
        return
    if set(prompt) - {"mean", "cv"} or not all(_is_number(weight) for weight in weights):
        return
    if (
        set(chat) - {"weight", "prompt_tokens", "output_tokens"}
        or len(long) != 3
        or abs(sum(weights) - 1) > 1e-9
    ):
        return
    workload.pop("classes")
    workload |= {name: chat[name] for name in ("prompt_tokens", "output_tokens") if name in chat}
    rest["long"] = {
        "share": float(f"{weights[1] * 100:.10g}"),
        "prompt": prompt["mean"],
        "output": output,
        **({"cv": spread} if spread else {}),
    }


def _put(raw: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        raw = raw.setdefault(key, {})
    raw[path[-1]] = value


def _get(raw: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(raw, Mapping):
            return None
        raw = raw.get(key)
    return raw


def _drop(raw: dict[str, Any], path: tuple[str, ...]) -> None:
    """Remove a value and the objects that it leaves empty."""
    if len(path) > 1:
        _drop(raw[path[0]], path[1:])
        if raw[path[0]]:
            return
    raw.pop(path[0])
