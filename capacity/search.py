"""Inverse questions: the longest length, the smallest utilisation, the fewest GPUs, the cheapest combination.

Each answer is a plan that was computed, with what binds it. Source: plan(); monotone questions by bisection.
Left out: what to change when a plan does not fit (fixes), speed (sizing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from capacity.errors import CapacityError
from capacity.hardware import gpus
from capacity.length_curve import longest_in_pool
from capacity.parallelism import valid_tensor_parallel_sizes
from capacity.plan import Plan, plan
from capacity.resolve import model_of
from capacity.scenario import Scenario
from capacity.verdict import largest_utilization, too_old

MEASURED_POOL = ("kv_cache_gib", "kv_cache_memory_bytes", "num_gpu_blocks_override")
QUESTIONS = ("max_model_len", "gpu_memory_utilization", "gpus", "cheapest")
UTILIZATION_STEPS = range(10, 99)
LONGEST_TRIED = 1_048_576
FORMATS = ("auto", "fp8", "awq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An answer: the changed keys, the plan they give (None = nothing fits), and the sentence that says it.

    ``alternative``: changed keys of another answer that people may prefer, which the sentence names.
    """

    question: str
    changes: dict[str, Any]
    plan: Plan | None
    sentence: str
    tried: int
    alternative: dict[str, Any] | None = None


def enough(candidate: Plan, concurrency: int) -> bool:
    """Whether a plan holds ``concurrency`` full-length requests (KV blocks and seats)."""
    counted = candidate.concurrency
    return candidate.fit == "yes" and min(counted.guaranteed, counted.seats) >= concurrency


def search(scenario: Scenario, question: str, *, concurrency: int = 1, max_gpus: int = 16) -> Found:
    """Answer one inverse question for a wanted number of full-length requests. Raises CapacityError."""
    if concurrency < 1:
        raise CapacityError(
            f"concurrency is {concurrency}; expected a whole number of at least 1", field="concurrency"
        )
    answers: dict[str, Callable[[], Found]] = {
        "max_model_len": lambda: longest_model_len(scenario, concurrency=concurrency),
        "gpu_memory_utilization": lambda: smallest_utilization(scenario, concurrency=concurrency),
        "gpus": lambda: _gpus(scenario, concurrency=concurrency, max_gpus=max_gpus),
        "cheapest": lambda: cheapest(scenario, concurrency=concurrency, max_gpus=max_gpus),
    }
    if question not in answers:
        raise CapacityError(
            f"question is {question[:40]!r}; expected one of {', '.join(QUESTIONS)}", field="question"
        )
    return answers[question]()


def longest_model_len(scenario: Scenario, *, concurrency: int) -> Found:
    """The longest max_model_len that holds ``concurrency`` full-length requests."""
    own = model_of(scenario).max_position_embeddings
    limit = own or scenario.max_model_len or LONGEST_TRIED
    low, high, tried, likely, best = 0, limit, 0, 0, None
    probes = [limit]
    while low < high:
        middle = next((at for at in probes if low < at <= high), (low + high + 1) // 2)
        candidate = plan(replace(scenario, max_model_len=middle))
        tried += 1
        if (
            tried == 1
        ):  # the pool at the longest length says where the answer lies; both sides are then planned
            guess = longest_in_pool(candidate, concurrency)
            likely = longest_in_pool(candidate, concurrency, sure=False)
            probes = [guess, guess + 1]
        if enough(candidate, concurrency):
            low, best = middle, candidate
        else:
            high = middle - 1
    if best is None:
        text = _seats_text(candidate, concurrency) or (
            f"no max_model_len holds {concurrency:,} request{_s(concurrency)} on this hardware"
        )
        return Found(question="max_model_len", changes={}, plan=None, sentence=text, tried=tried)
    reached = "the model's own limit" if own else "the longest length tried: the config states no limit"
    why = reached if low == limit else "bound by KV cache"
    if low < limit and likely > low:
        why += f", its low end too; the estimate alone holds {likely:,}"
    text = f"max_model_len {low:,} holds {concurrency:,} full-length request{_s(concurrency)} ({why})"
    return Found(
        question="max_model_len", changes={"max_model_len": low}, plan=best, sentence=text, tried=tried
    )


def smallest_utilization(scenario: Scenario, *, concurrency: int) -> Found:
    """The smallest gpu_memory_utilization (in steps of 0.01) that holds ``concurrency`` full-length requests."""
    given = next((k for k in MEASURED_POOL if getattr(scenario, k) is not None), None)
    if given is not None:
        raise CapacityError(
            f"{given} sets the pool whatever the utilization; leave it out to search gpu_memory_utilization",
            field=given,
        )
    low, high, tried, best = UTILIZATION_STEPS.start, UTILIZATION_STEPS.stop, 0, None
    candidate = plan(replace(scenario, gpu_memory_utilization=low / 100))
    high = min(high, round(largest_utilization(candidate.resolved) * 100) + 1)
    ceiling = high - 1
    while low < high:
        middle = (low + high) // 2 if tried else high - 1  # the most first: often even that is too little
        candidate = plan(replace(scenario, gpu_memory_utilization=middle / 100))
        tried += 1
        if enough(candidate, concurrency):
            high, best = middle, candidate
        else:
            low = middle + 1
    key = "gpu_memory_utilization"
    if best is None:
        text = _seats_text(candidate, concurrency) or (
            f"no gpu_memory_utilization up to {ceiling / 100:.2f} holds {concurrency:,} full-length request{_s(concurrency)}"
        )
        return Found(question=key, changes={}, plan=None, sentence=text, tried=tried)
    text = (
        f"gpu_memory_utilization {high / 100:.2f} holds {concurrency:,} full-length request{_s(concurrency)}"
    )
    return Found(question=key, changes={key: high / 100}, plan=best, sentence=text, tried=tried)


def fewest_gpus(
    scenario: Scenario,
    *,
    concurrency: int,
    max_gpus: int,
    pipeline: bool = True,
    more_than: int = 0,
    known: Plan | None = None,
) -> Found:
    """The fewest GPUs of the given kind: tensor parallel first, pipeline stages where heads do not divide and
    ``pipeline`` allows them. ``more_than``: so many are known to be too few; ``known``: a plan of this scenario on its
    own layout that is too small."""
    tried, first = 0, known
    for layout in _layouts(scenario, max_gpus, pipeline=pipeline):
        if layout["tensor_parallel_size"] * layout["pipeline_parallel_size"] <= more_than:
            continue
        if known is not None and _has(known, layout):
            continue
        if first is not None and _too_heavy(first, layout, concurrency):
            continue
        candidate = planned(_moved(scenario, layout))
        tried += 1
        first = first or candidate
        if candidate is not None and enough(candidate, concurrency):
            text = _layout_text(layout, candidate, concurrency)
            changes = {**layout, **_unmeasured(scenario, layout)}
            return Found(question="gpus", changes=changes, plan=candidate, sentence=text, tried=tried)
    text = (first and _seats_text(first, concurrency)) or (
        f"no layout of up to {max_gpus} GPUs of this kind holds {concurrency:,} full-length request{_s(concurrency)}"
    )
    return Found(question="gpus", changes={}, plan=None, sentence=text, tried=tried)


def _has(found: Plan, layout: dict[str, Any]) -> bool:
    """Whether a plan stands on this layout."""
    parallel = found.resolved.parallel
    return (parallel.tensor, parallel.pipeline) == (
        layout["tensor_parallel_size"],
        layout["pipeline_parallel_size"],
    )


def _gpus(scenario: Scenario, *, concurrency: int, max_gpus: int) -> Found:
    """The fewest GPUs; where those are pipeline stages, the sentence also says what tensor parallelism alone needs."""
    found = fewest_gpus(scenario, concurrency=concurrency, max_gpus=max_gpus)
    if found.changes.get("pipeline_parallel_size", 1) == 1:
        return found
    alone = without_stages(scenario, found, concurrency, max_gpus)
    said = alone.sentence if alone.plan else "no tensor-parallel size does"
    return replace(
        found,
        sentence=f"{found.sentence}; without pipeline stages: {said}",
        tried=found.tried + alone.tried,
        alternative=alone.changes or None,
    )


def without_stages(
    scenario: Scenario, found: Found, concurrency: int, max_gpus: int, known: Plan | None = None
) -> Found:
    """What tensor parallelism alone needs where the fewest GPUs are pipeline stages."""
    count = found.changes["tensor_parallel_size"] * found.changes["pipeline_parallel_size"]
    return fewest_gpus(scenario, concurrency=concurrency, max_gpus=max_gpus, pipeline=False, more_than=count)


def _moved(scenario: Scenario, changes: dict[str, Any]) -> Scenario:
    """The scenario on other GPUs: figures measured for one layout's pool do not hold there, measured weights are spread."""
    return replace(scenario, **_unmeasured(scenario, changes), **changes)


def _unmeasured(scenario: Scenario, changes: dict[str, Any]) -> dict[str, Any]:
    """What changes beside the layout: keys that held for the old one only (None), weights spread over the new one."""
    held = ("pipeline_layer_split", *MEASURED_POOL)
    out: dict[str, Any] = {key: None for key in held if getattr(scenario, key) is not None}
    if scenario.weights_gib is not None:
        gpus_before = scenario.tensor_parallel_size * scenario.pipeline_parallel_size
        gpus_now = changes["tensor_parallel_size"] * changes["pipeline_parallel_size"]
        out["weights_gib"] = scenario.weights_gib * gpus_before / gpus_now
    return out


def _seats_text(found: Plan, concurrency: int) -> str | None:
    """The sentence where seats and not memory keep the requests out, else None."""
    if found.concurrency.seats >= concurrency:
        return None
    return _too_few_seats(found.concurrency.seats, concurrency)


def _too_few_seats(seats: int, concurrency: int) -> str:
    return f"max_num_seqs {seats:,} allows fewer than {concurrency:,} requests, whatever the memory"


def _too_heavy(found: Plan, layout: dict[str, Any], concurrency: int) -> bool:
    """Whether the bytes that GPUs share exceed the budget of so many of them, without planning it: sharded weights,
    and from a plan on one GPU the requests too, which no layout splits further than over all GPUs."""
    r = found.resolved
    s, total = r.scenario, r.total_bytes
    if total is None or s.weights_gib is not None or s.parameters is not None or s.cpu_offload_gib:
        return False
    shared = sum(stage.sharded for stage in found.weights.stages) * r.parallel.tensor
    if r.parallel.tensor == r.parallel.pipeline == 1 and found.pool is not None:
        shared += concurrency * found.pool.blocks_per_max_request * found.pool.bytes_per_block
    gpus_used = layout["tensor_parallel_size"] * layout["pipeline_parallel_size"]
    return bool(shared / gpus_used > r.gpu_memory_utilization * total)


def cheapest(scenario: Scenario, *, concurrency: int, max_gpus: int) -> Found:
    """The cheapest GPU, tensor-parallel size and weight format by the table's low price that holds the requests."""
    best: tuple[float, Plan, dict[str, Any]] | None = None
    tried = 0
    for gpu in gpus().values():
        if gpu.memory_gib is None or gpu.price_low_usd_per_hour is None:
            continue
        for text_format in FORMATS if scenario.weight_format is None else (scenario.weight_format,):
            for layout in _layouts(scenario, min(8, max_gpus), pipeline=False):
                cost = (
                    gpu.price_low_usd_per_hour * layout["tensor_parallel_size"] * scenario.data_parallel_size
                )
                if best is not None and cost >= best[0]:
                    continue
                changes = {"gpu": gpu.id, "weight_format": text_format, **layout}
                changes |= _unmeasured(scenario, layout)
                if scenario.gpu_memory_gib is not None:
                    changes["gpu_memory_gib"] = None
                if scenario.weights_gib is not None and text_format not in ("auto", scenario.weight_format):
                    changes["weights_gib"] = None
                candidate = planned(replace(scenario, **changes))
                tried += 1
                if candidate is None or too_old(candidate.resolved) is not None:
                    continue
                if enough(candidate, concurrency):
                    best = (cost, candidate, changes)
    if best is None:
        seats = scenario.max_num_seqs
        text = f"no bundled GPU with a known price holds {concurrency:,} full-length request{_s(concurrency)}"
        if seats is not None and seats < concurrency:
            text = _too_few_seats(seats, concurrency)
        return Found(question="cheapest", changes={}, plan=None, sentence=text, tried=tried)
    cost, found, changes = best
    count = changes["tensor_parallel_size"] * scenario.data_parallel_size
    text = (
        f"{count} x {found.resolved.gpu.name if found.resolved.gpu else ''} with "
        f"{found.resolved.weight_format.id} weights from {cost:.2f} USD/h (lowest listed price)"
    )
    return Found(
        question="cheapest", changes={**changes, "usd_per_hour": cost}, plan=found, sentence=text, tried=tried
    )


def planned(scenario: Scenario) -> Plan | None:
    """The plan, None where the scenario is refused."""
    try:
        return plan(scenario)
    except CapacityError:
        return None


def _layouts(scenario: Scenario, max_gpus: int, *, pipeline: bool = True) -> Iterator[dict[str, Any]]:
    spec = model_of(scenario)
    most = max(8, scenario.tensor_parallel_size)
    sizes = valid_tensor_parallel_sizes(spec, limit=min(most, max_gpus))
    stages = range(1, min(max_gpus, spec.num_hidden_layers) + 1) if pipeline else (1,)
    options = sorted(
        {
            (tensor * stage, stage, tensor)
            for tensor in sizes
            for stage in stages
            if tensor * stage <= max_gpus
        }
    )
    for _, stage, tensor in options:
        yield {"tensor_parallel_size": tensor, "pipeline_parallel_size": stage}


def _layout_text(layout: dict[str, Any], found: Plan, concurrency: int) -> str:
    tensor, stage, data = (
        layout["tensor_parallel_size"],
        layout["pipeline_parallel_size"],
        found.resolved.parallel.data,
    )
    count = tensor * stage * data
    parts = [f"TP {tensor}", *([f"PP {stage}"] if stage > 1 else []), *([f"DP {data}"] if data > 1 else [])]
    each = " per replica" if data > 1 else ""
    return (
        f"{count} GPU{_s(count)} ({' x '.join(parts)}) {'holds' if count == 1 else 'hold'} {concurrency:,} "
        f"full-length request{_s(concurrency)}{each}"
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"
