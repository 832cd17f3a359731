"""Admission policies at the front door: each looks at the pool and one request and says yes, or no with a
status.

Source: vLLM's queue limits (pull request 49445), the gateway API's saturation detector, docs/simulation.md.
Policies are asked in order; the first refusal counts. Left out: who the client is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from capacity.simulation.rate_limit import TokenBucket
from capacity.simulation.replica import Replica
from capacity.simulation.sequence import GONE, Sequence


class Refusal(NamedTuple):
    """An answer of 429 or 503; ``retry_after_s`` None = the header is not sent."""

    status: int
    reason: str
    retry_after_s: float | None = None


class PoolView:
    """What a gateway can read of the engines that are up."""

    __slots__ = ("engines",)

    def __init__(self, engines: list[Replica]) -> None:
        self.engines = engines

    @property
    def in_flight(self) -> int:
        return sum(engine.in_flight for engine in self.engines)

    @property
    def waiting(self) -> int:
        return sum(engine.waiting.count + len(engine.swapped) for engine in self.engines)

    @property
    def backlog_tokens(self) -> int:
        """Prompt tokens of requests that have not had their first token."""
        return sum(engine.backlog_tokens for engine in self.engines)

    @property
    def total_blocks(self) -> int:
        return sum(engine.pool.total for engine in self.engines)

    @property
    def free_blocks(self) -> int:
        return sum(engine.pool.free for engine in self.engines)

    @property
    def kv_usage(self) -> float:
        """Share of blocks in use: the waterline."""
        total = self.total_blocks
        return 1 - self.free_blocks / total if total else 1.0


class Policy(Protocol):
    """``decide`` refuses or not; ``entered`` and ``left`` tell what became of requests that all policies let
    in.
    """

    def decide(self, view: PoolView, seq: Sequence, now_s: float) -> Refusal | None: ...

    def entered(self, seq: Sequence, now_s: float) -> None: ...

    def left(self, seq: Sequence, now_s: float, e2e_s: float | None) -> None: ...


class _Stateless:
    """The two notices that most policies do not need."""

    def entered(self, seq: Sequence, now_s: float) -> None:
        """A request went in."""

    def left(self, seq: Sequence, now_s: float, e2e_s: float | None) -> None:
        """A request left, answered after ``e2e_s`` or not (None)."""


@dataclass(kw_only=True)
class QueueLimit(_Stateless):
    """vLLM's limits, and one on the line alone.

    ``max_num_queued_reqs`` bounds requests in flight (waiting and running: vLLM's meaning),
    ``max_num_queued_tokens`` prompt tokens still in prefill, ``max_waiting`` requests that wait.
    """

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_waiting: int | None = None

    def decide(self, view: PoolView, seq: Sequence, now_s: float) -> Refusal | None:
        """503 when a limit is reached."""
        if self.max_num_queued_reqs is not None and view.in_flight >= self.max_num_queued_reqs:
            return Refusal(503, "queue_limit")
        if self.max_waiting is not None and view.waiting >= self.max_waiting:
            return Refusal(503, "queue_limit")
        if (
            self.max_num_queued_tokens is not None
            and view.backlog_tokens + seq.prompt > self.max_num_queued_tokens
        ):
            return Refusal(503, "queued_tokens")
        return None


@dataclass(kw_only=True)
class BlockGate(_Stateless):
    """Refuses a request whose blocks would leave less than ``min_free_fraction`` of the pool free.

    Its estimate is prompt + expected output (``expected_output_tokens``, None = what the request asks for).
    Requests that were let in and have not started yet count with their estimate.
    """

    min_free_fraction: float = 0.15
    expected_output_tokens: int | None = None
    retry_after_s: float = 1.0
    status: int = 429
    pending: deque[tuple[Sequence, int]] = field(default_factory=deque)
    pending_blocks: int = 0

    def estimate(self, view: PoolView, seq: Sequence) -> int:
        output = seq.output if self.expected_output_tokens is None else self.expected_output_tokens
        return view.engines[0].layout.blocks(seq.prompt + output)

    def decide(self, view: PoolView, seq: Sequence, now_s: float) -> Refusal | None:
        """429 with Retry-After when the pool is too full for this request."""
        pending = self.pending
        while pending and (pending[0][0].scheduled is not None or pending[0][0].state == GONE):
            self.pending_blocks -= pending.popleft()[1]
        need = self.estimate(view, seq)
        if view.free_blocks - self.pending_blocks - need < self.min_free_fraction * view.total_blocks:
            return Refusal(self.status, "block_gate", self.retry_after_s)
        self._need = need
        return None

    def entered(self, seq: Sequence, now_s: float) -> None:
        """Remember the estimate until the request starts."""
        self.pending.append((seq, self._need))
        self.pending_blocks += self._need


@dataclass(kw_only=True)
class TokenBucketPolicy(_Stateless):
    """A token bucket; a request costs its ``cost`` "prompt" or "total" tokens."""

    bucket: TokenBucket
    cost: str = "prompt"

    def decide(self, view: PoolView, seq: Sequence, now_s: float) -> Refusal | None:
        """429 with the time until the bucket holds enough."""
        wait = self.bucket.take(seq.prompt + (seq.output if self.cost == "total" else 0), now_s=now_s)
        return None if wait == 0.0 else Refusal(429, "token_bucket", wait)


@dataclass(kw_only=True)
class Saturation(_Stateless):
    """The gateway's detector: mean over engines of max(waiting / threshold, KV use / threshold); refuses from
    1 on.

    ``shed_above_priority`` None: every request can be shed, else only those with a greater (less urgent)
    priority value.
    """

    queue_threshold: float = 5
    kv_threshold: float = 0.8
    shed_above_priority: int | None = None

    def score(self, view: PoolView) -> float:
        """1 or more = saturated; a pool without engines is saturated."""
        scores = [
            max(
                (engine.waiting.count + len(engine.swapped)) / self.queue_threshold,
                engine.used_blocks / engine.pool.total / self.kv_threshold,
            )
            for engine in view.engines
        ]
        return sum(scores) / len(scores) if scores else 1.0

    def decide(self, view: PoolView, seq: Sequence, now_s: float) -> Refusal | None:
        """429 while saturated."""
        if self.shed_above_priority is not None and seq.priority <= self.shed_above_priority:
            return None
        return Refusal(429, "saturation", 1.0) if self.score(view) >= 1.0 else None


@dataclass(kw_only=True)
class ConcurrencyLimit(_Stateless):
    """At most ``max_requests`` in flight (and ``max_tokens`` prompt + output tokens of them, where given)."""

    max_requests: int | None = None
    max_tokens: int | None = None
    tokens: int = 0

    def decide(self, view: PoolView, seq: Sequence, now_s: float) -> Refusal | None:
        """429 at the limit."""
        if self.max_requests is not None and view.in_flight >= self.max_requests:
            return Refusal(429, "concurrency_limit")
        if self.max_tokens is not None and self.tokens + seq.prompt + seq.output > self.max_tokens:
            return Refusal(429, "concurrency_limit")
        return None

    def entered(self, seq: Sequence, now_s: float) -> None:
        """Its tokens are in flight."""
        self.tokens += seq.prompt + seq.output

    def left(self, seq: Sequence, now_s: float, e2e_s: float | None) -> None:
        """Its tokens are not in flight any more."""
        self.tokens -= seq.prompt + seq.output


@dataclass(kw_only=True)
class PriorityShed(_Stateless):
    """While the waterline is at ``kv_threshold`` or above, requests with a priority value above
    ``keep_up_to`` go.
    """

    keep_up_to: int = 0
    kv_threshold: float = 0.8

    def decide(self, view: PoolView, seq: Sequence, now_s: float) -> Refusal | None:
        """429 for the less urgent ones under load."""
        if seq.priority > self.keep_up_to and view.kv_usage >= self.kv_threshold:
            return Refusal(429, "priority_shed", 1.0)
        return None


@dataclass(kw_only=True)
class AdaptiveConcurrency(_Stateless):
    """A concurrency limit that follows latency.

    Every ``interval_s`` it looks at the answers of the interval. "utilisation" rule: p99 over
    ``target_p99_s`` or KV use over ``high`` x 0.8 the limit; p99 within target and KV use under ``low`` x
    1.1. "aimd" rule: p99 over target halves the limit, else it grows by 1.
    """

    target_p99_s: float
    rule: str = "aimd"
    initial: int = 16
    minimum: int = 1
    maximum: int = 10_000
    interval_s: float = 1.0
    high: float = 0.95
    low: float = 0.8
    limit: float = 0.0
    next_s: float = 0.0
    seen: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit = self.limit or float(self.initial)

    def decide(self, view: PoolView, seq: Sequence, now_s: float) -> Refusal | None:
        """429 above the present limit."""
        if now_s >= self.next_s:
            self._adapt(view.kv_usage)
            self.next_s = now_s + self.interval_s
        return (
            Refusal(429, "adaptive_concurrency", self.interval_s)
            if view.in_flight >= int(self.limit)
            else None
        )

    def _adapt(self, usage: float) -> None:
        worst = sorted(self.seen)[min(int(len(self.seen) * 0.99), len(self.seen) - 1)] if self.seen else None
        self.seen.clear()
        slow = worst is not None and worst > self.target_p99_s
        if self.rule == "aimd":
            self.limit = self.limit / 2 if slow else self.limit + 1
        elif slow or usage > self.high:
            self.limit *= 0.8
        elif usage < self.low:
            self.limit *= 1.1
        self.limit = min(max(self.limit, self.minimum), self.maximum)

    def left(self, seq: Sequence, now_s: float, e2e_s: float | None) -> None:
        """An answer's end-to-end time is the measurement."""
        if e2e_s is not None:
            self.seen.append(e2e_s)


Builder = Callable[..., Policy]
POLICIES: dict[str, Builder] = {
    "queue_limit": QueueLimit,
    "block_gate": BlockGate,
    "token_bucket": lambda *, cost="prompt", **keys: TokenBucketPolicy(bucket=TokenBucket(**keys), cost=cost),
    "saturation": Saturation,
    "concurrency_limit": ConcurrencyLimit,
    "adaptive_concurrency": AdaptiveConcurrency,
    "priority_shed": PriorityShed,
}
