"""How long one engine step lasts, in whole ticks so that a jump over many steps ends exactly where the steps
would.

Source: a linear form, fixed + prefill tokens + decode tokens + context tokens, as in capacity.performance.
Left out: noise between steps; speculative tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from capacity.errors import CapacityError

TICKS_PER_S = 10**15


def to_ticks(seconds: float) -> int:
    """Seconds as whole femtoseconds, the simulator's clock.

    >>> to_ticks(0.25)
    250000000000000
    """
    return round(seconds * TICKS_PER_S)


def to_seconds(ticks: int) -> float:
    """Ticks as seconds.

    >>> to_seconds(to_ticks(1.5))
    1.5
    """
    return ticks / TICKS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step: ``fixed_s`` + per prompt token computed + per decoding request + per context
    token.

    ``per_context_token_s`` counts the tokens that decoding requests attend to (their cached tokens and the
    new one); ``per_prefill_context_token_s`` counts pairs (new prompt token, cached token before its chunk or
    mean of its chunk). ``host_s`` is scheduling on the CPU: added to the step, or hidden behind it when
    ``overlap`` (async scheduling).

    >>> StepTime(fixed_s=0.01, per_decode_token_s=0.001).seconds(decode=5)
    0.015
    """

    fixed_s: float = 0.0
    per_prefill_token_s: float = 0.0
    per_decode_token_s: float = 0.0
    per_context_token_s: float = 0.0
    per_prefill_context_token_s: float = 0.0
    host_s: float = 0.0
    overlap: bool = True

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name == "overlap":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise CapacityError(
                    f"step_time.{name} is {str(value)[:40]}; expected seconds, 0 or more",
                    field=f"step_time.{name}",
                )
            if value > 1e6:
                raise CapacityError(
                    f"step_time.{name} is {value:g} s; expected at most 1e6 s", field=f"step_time.{name}"
                )

    def scaled(self, *, work: float, overhead: float) -> StepTime:
        """The same form with the per-token terms times ``work`` and the fixed terms times ``overhead``."""
        return StepTime(
            fixed_s=self.fixed_s * overhead,
            per_prefill_token_s=self.per_prefill_token_s * work,
            per_decode_token_s=self.per_decode_token_s * overhead,
            per_context_token_s=self.per_context_token_s * work,
            per_prefill_context_token_s=self.per_prefill_context_token_s * work,
            host_s=self.host_s * overhead,
            overlap=self.overlap,
        )

    def seconds(self, *, prefill: int = 0, decode: int = 0, context: int = 0, pairs: float = 0.0) -> float:
        """Seconds of a step with these tokens."""
        device = (
            self.fixed_s
            + self.per_prefill_token_s * prefill
            + self.per_decode_token_s * decode
            + self.per_context_token_s * context
            + self.per_prefill_context_token_s * pairs
        )
        return max(device, self.host_s) if self.overlap else device + self.host_s

    @property
    def is_zero(self) -> bool:
        """True when no step takes any time."""
        return not any(
            (
                self.fixed_s,
                self.per_prefill_token_s,
                self.per_decode_token_s,
                self.per_context_token_s,
                self.per_prefill_context_token_s,
                self.host_s,
            )
        )

    @property
    def ticks(self) -> TickCosts:
        """The coefficients in ticks."""
        extra = 0 if self.overlap else to_ticks(self.host_s)
        return TickCosts(
            fixed=to_ticks(self.fixed_s) + extra,
            prefill=to_ticks(self.per_prefill_token_s),
            decode=to_ticks(self.per_decode_token_s),
            context=to_ticks(self.per_context_token_s),
            pair=to_ticks(self.per_prefill_context_token_s),
            least=to_ticks(self.host_s) if self.overlap else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TickCosts:
    """``StepTime`` in whole ticks; ``least`` is the shortest possible step."""

    fixed: int
    prefill: int
    decode: int
    context: int
    pair: int
    least: int

    def step(self, *, prefill: int, pairs: int, decode: int, context: int) -> int:
        """Ticks of one step; ``pairs`` is twice the number of (new token, earlier token) pairs."""
        ticks = (
            self.fixed
            + self.prefill * prefill
            + self.decode * decode
            + self.context * context
            + self.pair * pairs // 2
        )
        return ticks if ticks > self.least else self.least

    def decode_steps(self, *, steps: int, decode: int, context: int) -> int:
        """Ticks of ``steps`` decode-only steps in a row; every request's context grows by one per step."""
        first = self.fixed + self.decode * decode + self.context * context
        return steps * first + self.context * decode * (steps * (steps - 1) // 2)

    def steps_before(self, *, ticks: int, decode: int, context: int) -> int:
        """How many decode-only steps start before ``ticks`` have gone by (at least 1)."""
        first = self.fixed + self.decode * decode + self.context * context
        if ticks <= first or first <= 0:
            return 1
        growth = self.context * decode
        if growth == 0:
            return -(-ticks // first)
        # smallest k with k*first + growth*k*(k-1)/2 >= ticks
        b = 2 * first - growth
        k = (math.isqrt(b * b + 8 * growth * ticks) - b) // (2 * growth)
        k = max(k, 1)
        while self.decode_steps(steps=k, decode=decode, context=context) < ticks:
            k += 1
        while k > 1 and self.decode_steps(steps=k - 1, decode=decode, context=context) >= ticks:
            k -= 1
        return k
