"""What a reader of a run must not miss, in sentences: nothing finished, no steady state, why requests waited.

Left out: advice (the diagnosis pages give that from live evidence).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from capacity.simulation.record import REJECTED, UNSEEN
from capacity.simulation.run import Run
from capacity.simulation.step_time import TICKS_PER_S

if TYPE_CHECKING:
    from capacity.simulation.report import Slo, Table

_REFUSED = {
    "empty_prompt": "with an empty prompt",
    "prompt_exceeds_pool": "whose prompt alone needs more blocks than the pool has",
    "prompt_and_output_exceed_pool": "whose prompt and answer together need more blocks than the pool has",
    "exceeds_max_model_len": "longer than max_model_len",
    "prompt_exceeds_batch_tokens": "whose prompt exceeds max_num_batched_tokens without chunked prefill",
}
_CAUSES = {
    "blocks": "KV blocks: the head of the line did not fit the pool",
    "seats": "seats: max_num_seqs requests were running",
    "budget": "prefill budget: max_num_batched_tokens was used up",
    "preempted": "preemption: nobody is admitted in a step that preempted",
    "batch": "the batch in progress, which nobody can join",
}


def findings(run: Run, table: Table, slo: Slo) -> list[str]:
    """Sentences, the gravest first."""
    said: list[str] = []
    arrived = int(table.arrived.sum())
    finished = int(table.finished.sum())
    if run.cancelled:
        said.append("cancelled: the figures cover only what had arrived")
    if arrived == 0:
        early = run.until_s is not None and len(table.outcome) > 0
        why = (
            f"the first request comes after until_s = {run.until_s:g} s"
            if early
            else "the workload has no requests"
        )
        said.append(f"nothing arrived: {why}")
    elif finished == 0:
        said.append(f"nothing finished: none of {arrived:,} requests got an answer")
    if arrived and int((table.outcome == REJECTED).sum()) == arrived:
        said.append("everything was rejected")
    if run.until_s is not None and (unseen := table.outcome == UNSEEN).any():
        inside, absent = int((unseen & table.arrived).sum()), int((unseen & ~table.arrived).sum())
        said.append(
            f"cut at until_s = {run.until_s:g} s: {inside:,} {_requests(inside)} had no answer yet, {absent:,} had not arrived"
        )
    for engine in run.engines:
        said += [f"fault of the scheduler: {bug}" for bug in engine.bugs[:3]]
    for reason, words in _REFUSED.items():
        count = run.refusals.get(reason, 0)
        if count:
            said.append(
                f"{count:,} {_requests(count)} {words} {'was' if count == 1 else 'were'} refused on arrival"
            )
    said += all_in_warmup(table)
    said += unsteady(run, table)
    said += _waiting(run)
    said += _preempted(run, table)
    lost = sum(engine.meter.cap_lost_tokens for engine in run.engines)
    if lost:
        said.append(
            f"long_prefill_token_threshold left {lost:,} tokens of step budget unused while nobody else wanted them; "
            "vLLM skips the cap for a lone request since pull request 57951 "
            "(scheduler.long_prefill_cap_when_alone: false)"
        )
    if finished and slo.ttft_s is None and slo.tpot_s is None and slo.e2e_s is None:
        said.append(
            "no objective is set, so every finished request counts as goodput (slo.ttft_s, slo.tpot_s, slo.e2e_s)"
        )
    return said


def _requests(count: int) -> str:
    return "request" if count == 1 else "requests"


def all_in_warmup(table: Table) -> list[str]:
    """The warm-up is longer than the arrivals, so nothing is left to measure. One sentence, or none."""
    if not table.warmup_s or table.measured or not table.arrived.any():
        return []
    span = float(table.arrival_s[table.arrived].max() - table.first_s)
    return [
        f"nothing was measured: every request arrived within warmup_s = {table.warmup_s:g} s (the last after {span:.4g} s), so "
        "percentiles, rates and goodput have no value"
    ]


def unsteady(run: Run, table: Table) -> list[str]:
    """No steady state: waiting grows with every quarter of the arrivals. One sentence, or none."""
    waits = np.where(table.finished, table.queue_s, np.nan)
    if len(waits) < 80 or not np.isfinite(waits).any():
        return []
    span = float(table.arrival_s[table.arrived].max() - table.first_s)
    service = float(np.nanmean(table.e2e_s - table.queue_s))
    means = [
        float(np.nanmean(part)) if np.isfinite(part).any() else np.nan for part in np.array_split(waits, 4)
    ]
    rising = all(later > earlier for earlier, later in pairwise(means))
    if rising and span > 0 and means[-1] > 2 * max(means[0], 1e-9) and means[-1] > max(service, 0.05 * span):
        return [
            f"no steady state: mean queue time rose from {means[0]:.2f} s in the first quarter of the requests to "
            f"{means[-1]:.2f} s in the last; the means depend on how long the run is"
        ]
    return []


def _waiting(run: Run) -> list[str]:
    totals: dict[str, int] = {}
    for engine in run.engines:
        for cause, ticks in engine.meter.wait_ticks.items():
            totals[cause] = totals.get(cause, 0) + ticks
    whole = sum(totals.values())
    busy = sum(engine.meter.busy_ticks for engine in run.engines)
    said: list[str] = []
    if whole > 0.02 * busy:
        cause = max(totals, key=lambda name: totals[name])
        said.append(
            f"requests waited during {whole / TICKS_PER_S:.3g} s, mostly ({totals[cause] / whole:.0%}) for {_CAUSES[cause]}"
        )
    passed = sum(engine.meter.passed_over_ticks for engine in run.engines)
    if passed > 0.02 * whole:
        said.append(
            f"head-of-line blocking during {passed / TICKS_PER_S:.3g} s: the first request in line did not fit while a "
            "smaller one behind it would have; "
            "the engine does not skip (scheduler.head_of_line: skip shows the difference)"
        )
    return said


def _preempted(run: Run, table: Table) -> list[str]:
    count = sum(engine.meter.preemptions for engine in run.engines)
    if not count:
        return []
    recomputed = sum(engine.meter.recomputed_tokens for engine in run.engines)
    share = float((table.preemptions > 0).sum() / len(table.preemptions))
    worst = int(table.preemptions.max(initial=0))
    times = "preemption" if count == 1 else "preemptions"
    most = "" if worst == 1 else f", one of them {worst} times"
    return [
        f"{count:,} {times} of {share:.1%} of the requests{most}; {recomputed:,} tokens were computed again"
    ]
