"""What a client does: how long it waits, and whether it comes back after a refusal or a time-out.

Left out: clients that learn from earlier refusals.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal, get_args

from capacity.errors import CapacityError
from capacity.workload import choice, number

RetryPolicy = Literal["none", "immediate", "fixed", "exponential", "retry_after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """``timeout_s``: gives up this long after sending (the whole answer); ``patience_s``: when no token has
    come by then. ``queueing_patience_s``: a gateway sends `queueing` notices, and a client that still waits in the
    line when its patience ends and has had one stays until then.

    Retries: "immediate" at once, "fixed" after ``backoff_s``, "exponential" after ``backoff_s`` doubled each
    time with full jitter up to ``max_backoff_s``, "retry_after" as the refusal says (exponential where it
    says nothing). ``retry_on_timeout``: a client that gave up sends again.
    """

    timeout_s: float | None = None
    patience_s: float | None = None
    queueing_patience_s: float | None = None
    retry_policy: RetryPolicy = "none"
    max_retries: int = 3
    backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    retry_on_timeout: bool = True

    def __post_init__(self) -> None:
        choice("client.retry_policy", self.retry_policy, get_args(RetryPolicy))
        for name in ("timeout_s", "patience_s", "queueing_patience_s"):
            value = getattr(self, name)
            if value is not None:
                number(f"client.{name}", value, 1e-9, 1e9)
        if self.queueing_patience_s is not None and self.queueing_patience_s < (self.patience_s or math.inf):
            raise CapacityError(
                f"client.queueing_patience_s is {self.queueing_patience_s:g}; expected at least client.patience_s, which "
                f"is {'not given' if self.patience_s is None else format(self.patience_s, 'g')}",
                field="client.queueing_patience_s",
            )
        number("client.max_retries", self.max_retries, 0, 10_000)
        number("client.backoff_s", self.backoff_s, 0, 1e6)
        number("client.max_backoff_s", self.max_backoff_s, 0, 1e6)
        if not isinstance(self.retry_on_timeout, bool):
            raise CapacityError(
                "client.retry_on_timeout is not true or false", field="client.retry_on_timeout"
            )

    def delay_s(self, attempt: int, retry_after_s: float | None, rng: random.Random) -> float | None:
        """Seconds until attempt ``attempt`` + 1, None = gives up. ``attempt`` counts from 0."""
        if self.retry_policy == "none" or attempt >= self.max_retries:
            return None
        if self.retry_policy == "immediate":
            return 0.0
        if self.retry_policy == "fixed":
            return self.backoff_s
        if self.retry_policy == "retry_after" and retry_after_s is not None:
            return retry_after_s
        top = min(self.backoff_s * 2.0**attempt, self.max_backoff_s)
        return rng.uniform(0, top)
