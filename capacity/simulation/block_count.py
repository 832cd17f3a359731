"""The block pool as a count, for the fast engine without prefix caching.

It holds the same numbers as ``block_pool.BlockPool`` (tests compare them); blocks have no ids here. Left out: shared
prefixes (prefix_pool).
"""

from __future__ import annotations

from capacity.simulation.cohort import Layout
from capacity.simulation.sequence import Sequence


class CountedPool:
    """``total`` blocks that requests can hold (an engine's null block is not among them)."""

    caches = False

    def __init__(self, total: int, layout: Layout) -> None:
        self.total = total
        self.free = total
        self.layout = layout

    def take(self, blocks: int) -> None:
        """Hand out blocks; the caller has checked ``free``."""
        self.free -= blocks

    def give(self, blocks: int) -> None:
        """Blocks come back and nobody will ask for their content."""
        self.free += blocks

    def leave(self, seq: Sequence, tokens: int, *, resumes: bool) -> None:
        """A request with ``tokens`` tokens in the pool gives everything back."""
        self.free += self.layout.blocks(tokens)

    def hit_blocks(self, seq: Sequence) -> tuple[int, int]:
        """(blocks of the request's start that are in the pool, how many of those are counted as free)."""
        return 0, 0

    def pin(self, seq: Sequence) -> None:
        """The request shares what ``hit_blocks`` found."""

    def computed(self, seq: Sequence, tokens: int) -> None:
        """The first ``tokens`` tokens of the request are (being) computed; whole blocks of its prefix can be
        shared.
        """
