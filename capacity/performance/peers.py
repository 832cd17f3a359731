"""Compares a GPU with the ones that were measured, so that a faster one never comes out slower.

Source: isotonic means over the measured GPUs that can be ordered in every respect; a GPU outside is held between them.
Left out: GPUs that are faster in one respect and slower in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from capacity.hardware import Gpu, gpus
from capacity.performance.layout import Devices, devices

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Peers:
    """A GPU (row 0 of ``devices``) and the measured ones it compares with.

    ``chain``: rows of measured GPUs, each faster than the one before in every respect; ``slower``, ``faster``: places in
    ``chain`` that bound a GPU outside it; ``place``: its own place when it is part of the chain.
    """

    devices: Devices
    ids: tuple[str, ...]
    chain: tuple[int, ...]
    place: int | None
    slower: tuple[int, ...]
    faster: tuple[int, ...]


@lru_cache(maxsize=4096)
def peers_of(
    gpu: Gpu,
    others: tuple[tuple[str, int], ...],
    dense: tuple[str, ...],
    expert: tuple[str, ...],
    linked: bool,
) -> Peers:
    """``others``: (id, rows) of the GPUs measured with this engine, model and precision."""
    names = [
        name for name, _ in sorted(others, key=lambda item: -item[1]) if name != gpu.id and name in gpus()
    ]
    rows = [gpu, *(gpus()[name] for name in names)]
    table = devices(rows)
    marks = [table.bandwidth, table.bf16, table.peak(dense), table.peak(expert)] + (
        [table.link] if linked else []
    )
    columns = np.hstack(marks)

    def at_least(i: int, j: int) -> bool:
        return bool((columns[i] >= columns[j]).all())

    measured = [0, *range(1, len(rows))] if gpu.id in dict(others) else list(range(1, len(rows)))
    measured.sort(key=lambda i: -dict(others)[rows[i].id])
    chain: list[int] = []
    for i in measured:  # the best-measured first; one that cannot be ordered among them stays out
        if all(at_least(i, j) or at_least(j, i) for j in chain):
            chain.append(i)
    chain.sort(key=lambda i: tuple(columns[i]))
    place = chain.index(0) if 0 in chain else None
    slower = tuple(k for k, i in enumerate(chain) if i != 0 and at_least(0, i))
    faster = tuple(k for k, i in enumerate(chain) if i != 0 and at_least(i, 0) and not at_least(0, i))
    kept = sorted({0, *chain})
    again = {old: new for new, old in enumerate(kept)}
    return Peers(
        devices([rows[i] for i in kept]),
        tuple(rows[i].id for i in kept),
        tuple(again[i] for i in chain),
        place,
        slower,
        faster,
    )


def ordered(seconds: Array, weights: Array) -> Array:
    """The nearest rows (weighted, in the logarithm) that never rise from one row to the next.

    >>> np.exp(ordered(np.log([[4.0], [1.0], [2.0]]), np.array([1.0, 1.0, 1.0]))).round(3).ravel().tolist()
    [4.0, 1.414, 1.414]
    """
    count = len(seconds)
    if count == 1 or bool((np.diff(seconds, axis=0) <= 0).all()):
        return seconds
    sums = np.concatenate([np.zeros((1, seconds.shape[1])), np.cumsum(seconds * weights[:, None], 0)])
    total = np.concatenate([[0.0], np.cumsum(weights)])
    found = np.empty_like(seconds)
    for j in range(count):
        means = [
            [(sums[b + 1] - sums[a]) / (total[b + 1] - total[a]) for b in range(j, count)]
            for a in range(j + 1)
        ]
        found[j] = np.min([np.max(row, axis=0) for row in means], axis=0)
    return found


def held_between(seconds: Array, peers: Peers, weights: Sequence[float] | Array) -> Array:
    """Seconds of row 0 per point from ``seconds`` (rows of ``peers.devices``, points)."""
    if not peers.chain or peers.chain == (0,):
        return np.asarray(seconds[0])
    fixed = np.exp(ordered(np.log(seconds[list(peers.chain)]), np.asarray(weights)))
    if peers.place is not None:
        return np.asarray(fixed[peers.place])
    own = seconds[0]
    if peers.faster:
        own = np.maximum(own, fixed[list(peers.faster)].max(0))
    if peers.slower:
        own = np.minimum(own, fixed[list(peers.slower)].min(0))
    return np.asarray(own)
