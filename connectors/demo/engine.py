"""A small continuous-batching engine: admits, prefills in chunks, decodes, preempts, finishes.

What it answers: what /metrics would say at a moment of a scripted incident. Rules after the public scheduler
of vLLM V1: running requests first, then the queue while seats, blocks and token budget last; the newest
running request is preempted and recomputed. Left out: speculative decoding,
LoRA, images. Same seed, same run.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace

from connectors.demo.block_pool import BlockPool
from connectors.demo.incidents import Incident
from connectors.demo.recorder import Recorder

PREFIX_BLOCKS = 16
PREFIXES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits and step costs. Defaults resemble an 8B model on one 48 GB card with a small KV share."""

    model_name: str = "demo/llama-3.1-8b"
    release: tuple[int, ...] = (0, 32, 0)
    num_gpu_blocks: int = 4609
    block_size: int = 16
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_num_queued_reqs: int = 400
    base_rate_rps: float = 2.2
    step_base_s: float = 0.020
    step_per_seq_s: float = 0.00012
    step_per_prefill_token_s: float = 0.00011


class Request:
    """One request's life in the engine; times in engine seconds."""

    __slots__ = (
        "arrived", "blocks", "cached", "computed", "first_run", "first_token", "generated", "last_token",
        "output", "preempted", "prefix", "prompt", "target", "unreported",
    )  # fmt: skip

    def __init__(self, *, arrived: float, prompt: int, output: int, prefix: int) -> None:
        self.arrived = arrived
        self.prompt = prompt
        self.output = output
        self.prefix = prefix
        self.target = prompt
        self.computed = 0
        self.generated = 0
        self.blocks = 0
        self.cached = 0
        self.preempted = 0
        self.unreported = 0
        self.first_run: float | None = None
        self.first_token: float | None = None
        self.last_token = 0.0


class DemoEngine:
    """One replica. ``advance(to_s)`` runs it up to a moment; the gauges hold what the last step left."""

    def __init__(self, *, config: EngineConfig, seed: int, incident: Incident, at_s: float = 0.0) -> None:
        self.config = config
        self.random = random.Random(seed)
        self.now_s = at_s
        self.restarts = 0
        self.set_incident(incident, at_s=at_s)
        self._boot()

    def _boot(self) -> None:
        config = self.config
        self.pool = BlockPool(num_blocks=config.num_gpu_blocks, block_size=config.block_size)
        self.recorder = Recorder(
            release=config.release, max_model_len=config.max_model_len, started_s=self.now_s
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.gauges = {"running": 0.0, "waiting": 0.0, "kv_usage": 0.0}
        self._next_arrival = self.now_s + self._gap()

    def set_incident(self, incident: Incident, *, at_s: float) -> None:
        """Switch the script; its clock starts at ``at_s``."""
        self.incident = incident
        self.incident_from_s = at_s
        self._next_arrival = at_s + self._gap()

    def restart(self) -> None:
        """The process came back: empty, counters at zero, a new start time."""
        self.restarts += 1
        self._boot()

    def _elapsed(self) -> float:
        return self.now_s - self.incident_from_s

    @property
    def is_down(self) -> bool:
        return self.incident.is_down(self._elapsed())

    @property
    def max_num_seqs(self) -> int:
        return self.incident.max_num_seqs or self.config.max_num_seqs

    def advance(self, to_s: float) -> None:
        """Run until ``to_s``; going down loses every request, and coming back is a restart."""
        while self.now_s < to_s:
            if self.is_down:
                self.now_s = min(to_s, self.now_s + 0.25)
                if not self.is_down:
                    self.restart()
            elif self.incident.is_frozen(self._elapsed()):
                self.now_s = to_s
                self._next_arrival = to_s
            elif self.running or self.waiting:
                self._arrive()
                self._step()
            else:
                self.now_s = min(to_s, max(self._next_arrival, self.now_s + 1e-6))
                self._arrive()

    def _gap(self) -> float:
        rate = self.config.base_rate_rps * self.incident.rate_factor(self._elapsed())
        return self.random.expovariate(rate) if rate > 0 else 1.0

    def _arrive(self) -> None:
        while self._next_arrival <= self.now_s:
            if self.incident.rate_factor(self._elapsed()) > 0:
                self._enqueue(self._next_arrival)
            self._next_arrival += self._gap()

    def _length(self, mean: int, sigma: float) -> int:
        return max(2, round(mean * self.random.lognormvariate(-sigma * sigma / 2, sigma)))

    def _enqueue(self, at_s: float) -> None:
        prompt = PREFIX_BLOCKS * self.config.block_size + self._length(self.incident.prompt_tokens, 0.7)
        prompt = min(prompt, self.config.max_model_len // 2)
        output = min(self._length(self.incident.output_tokens, 0.8), self.config.max_model_len - prompt)
        prefix = self.random.randrange(PREFIXES)
        if len(self.waiting) >= self.config.max_num_queued_reqs:
            self.recorder.count["rejections"] += 1
            return
        self.waiting.append(Request(arrived=at_s, prompt=prompt, output=output, prefix=prefix))

    def _blocks_for(self, request: Request, tokens: int) -> int:
        return -(-tokens // self.config.block_size) - PREFIX_BLOCKS - request.blocks

    def _release(self, request: Request) -> None:
        self.pool.give_back(request.blocks)
        self.pool.leave_prefix(request.prefix, PREFIX_BLOCKS)
        request.blocks = 0

    def _preempt_newest(self) -> Request:
        victim = self.running.pop()
        self._release(victim)
        victim.target = victim.prompt + victim.generated
        victim.computed = 0
        victim.preempted += 1
        victim.unreported += 1
        self.waiting.appendleft(victim)
        return victim

    def _schedule_running(self) -> tuple[dict[Request, int], int, bool]:
        """Tokens for each running request, the budget left, and whether somebody was preempted."""
        plan: dict[Request, int] = {}
        budget = self.config.max_num_batched_tokens
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(budget, max(1, request.target - request.computed))
            need = self._blocks_for(request, request.computed + tokens)
            while need > 0 and not self.pool.take(need):
                preempted = True
                victim = self._preempt_newest()
                budget += plan.pop(victim, 0)
                if victim is request:
                    break
            else:
                request.blocks += max(0, need)
                plan[request] = tokens
                budget -= tokens
                index += 1
        return plan, budget, preempted

    def _admit(self, plan: dict[Request, int], budget: int) -> None:
        size = self.config.block_size
        while self.waiting and len(self.running) < self.max_num_seqs and budget > 0:
            request = self.waiting[0]
            got, hit = self.pool.join_prefix(request.prefix, PREFIX_BLOCKS)
            if not got:
                return
            cached = PREFIX_BLOCKS * size if hit else 0
            tokens = min(budget, request.target - cached)
            need = max(0, self._blocks_for(request, cached + tokens))
            if not self.pool.take(need):
                self.pool.leave_prefix(request.prefix, PREFIX_BLOCKS)
                return
            self.waiting.popleft()
            request.blocks += need
            request.computed = cached
            if request.first_run is None:
                request.first_run = self.now_s
                request.cached = cached
                self.recorder.count["prefix_queries"] += request.prompt
                self.recorder.count["prefix_hits"] += cached
            self.running.append(request)
            plan[request] = tokens
            budget -= tokens

    def _step(self) -> None:
        plan, budget, preempted = self._schedule_running()
        if not preempted:
            self._admit(plan, budget)
        prefill = sum(n for r, n in plan.items() if r.computed < r.target)
        config = self.config
        step_s = (
            config.step_base_s + config.step_per_seq_s * len(plan) + config.step_per_prefill_token_s * prefill
        )
        before, self.now_s = self.now_s, self.now_s + step_s
        if plan:
            self._finish_step(plan, before)
        self.gauges = {
            "running": float(len(self.running)),
            "waiting": float(len(self.waiting)),
            "kv_usage": self.pool.usage,
        }

    def _finish_step(self, plan: dict[Request, int], before: float) -> None:
        now, record = self.now_s, self.recorder
        steady = emitted = 0
        done: list[Request] = []
        for request, tokens in plan.items():
            request.computed += tokens
            if request.computed < request.target:
                continue
            emitted += 1
            request.target = request.computed + 1
            request.generated += 1
            if request.unreported:
                record.count["preemptions"] += request.unreported
                request.unreported = 0
            if request.first_token is None:
                request.first_token = now
                record.count["prompt_tokens"] += request.prompt
                record.histogram["ttft_s"].observe(now - request.arrived)
                self.pool.fill_prefix(request.prefix)
            elif request.last_token == before:
                steady += 1
            else:
                record.histogram["itl_s"].observe(now - request.last_token)
            request.last_token = now
            if request.generated >= request.output:
                done.append(request)
        if steady:
            record.histogram["itl_s"].observe(now - before, steady)
        record.count["generation_tokens"] += emitted
        record.histogram["iteration_tokens"].observe(sum(plan.values()))
        for request in done:
            self._finish(request)
        if done:
            gone = set(done)
            self.running = [r for r in self.running if r not in gone]

    def _finish(self, request: Request) -> None:
        self._release(request)
        now, record = self.now_s, self.recorder
        first_run = request.arrived if request.first_run is None else request.first_run
        first_token = now if request.first_token is None else request.first_token
        draw = self.random.random()
        reason = "abort" if draw < 0.01 else "length" if draw < 0.2 else "stop"
        record.finished[reason] += 1
        observe = record.histogram
        observe["e2e_s"].observe(now - request.arrived)
        observe["queue_s"].observe(first_run - request.arrived)
        observe["inference_s"].observe(now - first_run)
        observe["prefill_s"].observe(first_token - first_run)
        observe["decode_s"].observe(now - first_token)
        if request.generated > 1:
            observe["tpot_s"].observe((now - first_token) / (request.generated - 1))
        observe["request_prompt_tokens"].observe(request.prompt)
        observe["request_generation_tokens"].observe(request.generated)
        observe["request_params_max_tokens"].observe(request.output)
        observe["request_params_n"].observe(1)
        observe["request_preemptions"].observe(request.preempted)
        observe["request_prefill_kv_computed_tokens"].observe(request.prompt - request.cached)


def scoped(incident: Incident, *, calm: Incident, replica: int, replicas: int) -> Incident:
    """What ``replica`` lives through: the incident, or calm traffic when it strikes only the last one."""
    if incident.scope == "all" or replica == replicas - 1:
        return incident
    return replace(calm, name=incident.name)
