"""What one simulated engine is: its pool, its step time and its scheduling rules, checked once and frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from capacity.errors import CapacityError
from capacity.simulation.cohort import Layout
from capacity.simulation.step_time import StepTime

Rules = Literal["vllm-v1", "vllm-v0", "sglang", "static", "request-level"]
PreemptionMode = Literal["recompute", "swap", "abort"]
SchedulingPolicy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Scheduling rules and limits, in vLLM's words.

    ``head_of_line`` "skip" lets smaller requests pass a head that does not fit (vLLM: "block").
    ``long_prefill_cap_when_alone``: the cap also binds a lone request (vLLM before 0.32; see its pull request
    57951). ``enable_chunked_prefill`` None = on for V1 and SGLang, off for V0.
    ``watermark`` None = 0 for V1, 0.01 for V0. SGLang: ``schedule_conservativeness`` scales its token ratio,
    ``max_prefill_tokens`` bounds one prefill batch, ``max_num_batched_tokens`` is its chunk size.
    """

    rules: Rules = "vllm-v1"
    scheduling_policy: SchedulingPolicy = "fcfs"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    long_prefill_cap_when_alone: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float | None = None
    max_num_active_seqs: int | None = None
    enable_chunked_prefill: bool | None = None
    head_of_line: Literal["block", "skip"] = "block"
    schedule_conservativeness: float = 1.0
    max_prefill_tokens: int = 16384

    def __post_init__(self) -> None:
        _choice("scheduler.rules", self.rules, get_args(Rules))
        _choice("scheduler.scheduling_policy", self.scheduling_policy, get_args(SchedulingPolicy))
        _choice("scheduler.head_of_line", self.head_of_line, ("block", "skip"))
        _whole("max_num_seqs", self.max_num_seqs, 1, 1_000_000)
        _whole("max_num_batched_tokens", self.max_num_batched_tokens, 1, 10_000_000)
        _whole("scheduler.long_prefill_token_threshold", self.long_prefill_token_threshold, 0, 10_000_000)
        _whole("scheduler.max_prefill_tokens", self.max_prefill_tokens, 1, 10_000_000)
        if self.max_num_active_seqs is not None:
            _whole("scheduler.max_num_active_seqs", self.max_num_active_seqs, 1, 1_000_000)
        if self.watermark is not None:
            _fraction("scheduler.watermark", self.watermark)
        if not 0 < self.schedule_conservativeness <= 10:
            raise CapacityError(
                f"scheduler.schedule_conservativeness is {self.schedule_conservativeness}; expected above 0, at most 10",
                field="scheduler.schedule_conservativeness",
            )
        if self.rules == "vllm-v1" and self.max_num_batched_tokens < self.seats:
            raise CapacityError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens:,} and max_num_seqs {self.max_num_seqs:,}; "
                "the engine refuses a token budget below its seats",
                field="max_num_batched_tokens",
            )

    @property
    def seats(self) -> int:
        """Requests that may run at once."""
        return min(self.max_num_seqs, self.max_num_active_seqs or self.max_num_seqs)

    @property
    def chunked(self) -> bool:
        """Whether prompts may be computed in pieces."""
        if self.enable_chunked_prefill is not None:
            return self.enable_chunked_prefill
        return self.rules in ("vllm-v1", "sglang")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapTier:
    """Host memory for preempted requests: ``host_blocks`` blocks, ``block_s`` seconds to move one (each way)."""

    host_blocks: int
    block_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine.

    ``num_blocks`` counts blocks that requests can hold: an engine that logs N keeps one as
    null block.
    """

    num_blocks: int
    block_size: int = 16
    step_time: StepTime
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    preemption_mode: PreemptionMode = "recompute"
    swap: SwapTier | None = None
    layout: Layout | None = None
    enable_prefix_caching: bool = False
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        _whole("num_blocks", self.num_blocks, 1, 1_000_000_000)
        _whole("block_size", self.block_size, 1, 65_536)
        _choice("preemption_mode", self.preemption_mode, get_args(PreemptionMode))
        if self.max_model_len is not None:
            _whole("max_model_len", self.max_model_len, 1, 1_000_000_000)

    @property
    def block_layout(self) -> Layout:
        """Blocks per request; one group of full attention unless the plan says otherwise."""
        return self.layout or Layout(block_size=self.block_size)


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise CapacityError(
            f"{name} is {str(value)[:40]!r}; expected one of {', '.join(choices)}", field=name
        )


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise CapacityError(
            f"{name} is {str(value)[:40]}; expected a whole number, {low:,} to {high:,}", field=name
        )


def _fraction(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise CapacityError(f"{name} is {str(value)[:40]}; expected a fraction, 0 to below 1", field=name)
