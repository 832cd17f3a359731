"""What two start-ups of one pool at two lengths say: a fixed and a per-token cost of a request.

For models with several kinds of layers the logged token count is concurrency x max_model_len, valid at its own length
only. Source: 1 / concurrency is the share of the pool that one request takes; linear in length once past every window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.errors import CapacityError


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLine:
    """Share of the pool of one request: ``fixed_share`` + ``per_token_share`` x tokens, inside ``lengths``."""

    fixed_share: float
    per_token_share: float
    lengths: tuple[int, int]

    def share_of_pool(self, tokens: int) -> float:
        """Share of the pool that a request of ``tokens`` takes. Raises CapacityError outside the measured lengths."""
        low, high = self.lengths
        if not low <= tokens <= high:
            raise CapacityError(f"{tokens:,} tokens is outside the measured lengths {low:,} to {high:,}")
        return self.fixed_share + self.per_token_share * tokens


def fit_capacity_lines(points: Sequence[tuple[int, float]]) -> CapacityLine:
    """Fit (max_model_len, concurrency) pairs of the same pool. Raises CapacityError for fewer than two lengths.

    >>> line = fit_capacity_lines([(8192, 31.74), (262_144, 4.11)])
    >>> round(1 / line.share_of_pool(131_072), 1)
    7.5
    """
    lengths = sorted({length for length, _ in points})
    if len(lengths) < 2:
        raise CapacityError(
            "one line holds for its own max_model_len only; expected start-ups at two lengths or more"
        )
    if any(concurrency <= 0 for _, concurrency in points):
        raise CapacityError("a concurrency is not above zero; expected the figure that the engine logs")
    xs = [float(length) for length, _ in points]
    ys = [1 / concurrency for _, concurrency in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mean_x) ** 2 for x in xs
    )
    return CapacityLine(
        fixed_share=mean_y - slope * mean_x, per_token_share=slope, lengths=(lengths[0], lengths[-1])
    )
