"""How many requests a pool holds, three ways: guaranteed at full length, typical for a workload, seats.

Typical: requests in decode at a random moment hold prompt + a uniformly grown part of their output; the mean and the
spread of the blocks they hold give the mean count and a safe one. Source: renewal argument (a request is seen in
proportion to its output length). Left out: arrival bursts (simulation).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from capacity.scenario import Length, Scenario

if TYPE_CHECKING:
    import numpy as np

QUANTILES = 24
PROGRESS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """Requests in flight for a workload. ``mean``: where the pool is full on average; ``safe``: where it holds at
    ``percentile``. ``blocks_mean``: block ids of one request at a random moment; ``blocks_full``: at its end, mean.
    ``hit_rate``: share of prompt tokens that a shared prefix serves."""

    mean: int
    safe: int
    percentile: float
    blocks_mean: float
    blocks_full: float
    tokens_mean: float
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Requests three ways. ``guaranteed``: whole full-length requests in the usable blocks (the engine keeps one).

    ``low`` and ``high`` carry the memory interval. ``typical`` None = no workload given. ``binding``: what limits
    the workload (or full-length requests without one).
    """

    guaranteed: int
    low: int
    high: int
    typical: Typical | None
    seats: int
    binding: Literal["kv_cache", "max_num_seqs"]


def prompt_of(s: Scenario) -> Length:
    """The prompt's lengths in tokens with the images that every request carries."""
    images = (s.images_per_request or 0) * (s.image_tokens or 0)
    prompt = s.prompt_tokens or Length(mean=0.0)
    if not images:
        return prompt
    return Length(
        mean=prompt.mean + images,
        cv=prompt.cv * prompt.mean / (prompt.mean + images),
        values=tuple(v + images for v in prompt.values),
    )


def length_points(length: Length, count: int = QUANTILES) -> np.ndarray:
    """``count`` equally likely lengths in tokens (the distribution's mid-quantiles), mean kept."""
    import numpy as np

    if length.values:
        ordered = np.sort(np.asarray(length.values, dtype=float))
        if ordered.size <= count:
            return ordered
        return np.quantile(ordered, (np.arange(count) + 0.5) / count)
    if length.cv == 0 or length.mean == 0:
        return np.array([length.mean])
    sigma = math.sqrt(math.log1p(length.cv**2))
    levels = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    points = np.exp(math.log(length.mean) - sigma**2 / 2 + sigma * levels)
    return points * (length.mean / points.mean())


def typical(
    *,
    prompt: Length,
    output: Length,
    shared_prefix: int,
    max_model_len: int,
    blocks: int,
    blocks_of: Callable[[np.ndarray], np.ndarray],
    blocks_shared_of: Callable[[np.ndarray], np.ndarray],
    prefix_caching: bool,
    percentile: float,
) -> Typical:
    """Requests that fit a pool of ``blocks`` usable ids.

    ``blocks_of(tokens)``: ids of requests of those lengths (array in, array out). ``blocks_shared_of(tokens)``: ids of
    shared prefixes of those lengths, counted once when ``prefix_caching`` is on; a prompt shares at most all of itself
    but its last token, which is always computed. Lengths are cut at max_model_len.
    """
    import numpy as np

    prompts = np.minimum(length_points(prompt), max_model_len)
    outputs = length_points(output)
    grid_p, grid_o = np.meshgrid(prompts, outputs)
    room = np.maximum(0.0, max_model_len - grid_p)
    grown = np.minimum(grid_o, room)
    weights = np.maximum(grown, 1.0)
    progress = (np.arange(PROGRESS) + 0.5) / PROGRESS
    held = np.ceil(grid_p[..., None] + grown[..., None] * progress)
    ids = blocks_of(held)
    share = np.broadcast_to(weights[..., None], held.shape) / (weights.sum() * PROGRESS)
    use_prefix = prefix_caching and shared_prefix > 0
    shared = np.clip(np.minimum(grid_p - 1, float(shared_prefix)), 0.0, None) if use_prefix else grid_p * 0.0
    shared_ids = blocks_shared_of(shared)
    once = int(shared_ids.max())
    own = np.maximum(1, ids - shared_ids[..., None])
    mean = float((own * share).sum())
    spread = math.sqrt(max(0.0, float((own**2 * share).sum()) - mean**2))
    room_blocks = max(0, blocks - once)
    full = blocks_of(np.ceil(grid_p + grown))
    z = NormalDist().inv_cdf(percentile / 100)
    root = (-z * spread + math.sqrt((z * spread) ** 2 + 4 * mean * room_blocks)) / (2 * mean)
    mean_prompt = float(prompts.mean())
    return Typical(
        mean=math.floor(room_blocks / mean + 1e-9),
        safe=math.floor(root**2 + 1e-9) if root > 0 else 0,
        percentile=percentile,
        blocks_mean=mean,
        blocks_full=float(full.mean()),
        tokens_mean=float((held * share).sum()),
        hit_rate=float(np.minimum(prompts, shared_prefix).mean()) / mean_prompt
        if use_prefix and mean_prompt
        else 0.0,
    )
