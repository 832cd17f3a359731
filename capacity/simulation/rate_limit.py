"""Token bucket over prompt or total tokens: what a request weighs, not that it is one.

Source: the token-bucket policy of inference gateways (cost = prompt tokens, capacity 10,000, refill 1,000 per
second). Left out: buckets per tenant.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.errors import CapacityError


@dataclass(slots=True, kw_only=True)
class TokenBucket:
    """``capacity_tokens`` at most, refilled at ``refill_tokens_per_s``; starts full. Time is an argument.

    >>> bucket = TokenBucket(capacity_tokens=1000, refill_tokens_per_s=100)
    >>> bucket.take(900, now_s=0.0), bucket.take(200, now_s=0.0), bucket.take(200, now_s=1.0)
    (0.0, 1.0, 0.0)
    """

    capacity_tokens: float
    refill_tokens_per_s: float
    level: float = -1.0
    updated_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("capacity_tokens", "refill_tokens_per_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
                raise CapacityError(
                    f"token_bucket.{name} is {str(value)[:40]}; expected a number above 0", field=name
                )
        if self.level < 0:
            self.level = float(self.capacity_tokens)

    def take(self, tokens: float, *, now_s: float) -> float | None:
        """Take ``tokens``: 0.0 when they were there, else the seconds until they will be (None: never),
        taking none.
        """
        self.level = min(
            self.capacity_tokens, self.level + (now_s - self.updated_s) * self.refill_tokens_per_s
        )
        self.updated_s = now_s
        if tokens <= self.level + 1e-9:
            self.level -= tokens
            return 0.0
        if tokens > self.capacity_tokens:
            return None
        return (tokens - self.level) / self.refill_tokens_per_s
