"""A paged block pool with shared prefixes, as a serving engine keeps it.

What it answers: how many blocks are in use. Block 0 is never handed out, and a cached prefix that nobody
reads counts as free (docs/metrics.md). Left out: eviction order, block ids.
"""

from __future__ import annotations


class BlockPool:
    """``num_blocks`` includes the null block, as ``cache_config_info`` does.

    >>> pool = BlockPool(num_blocks=11, block_size=16)
    >>> pool.take(4), pool.take(7), pool.usage
    (True, False, 0.4)
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.usable = num_blocks - 1
        self.used = 0
        self._readers: dict[int, int] = {}
        self._warm: set[int] = set()

    @property
    def free(self) -> int:
        return self.usable - self.used

    @property
    def usage(self) -> float:
        """Share of handed-out blocks, 0..1, in steps of 1 / (num_blocks - 1)."""
        return self.used / self.usable

    def take(self, count: int) -> bool:
        """Hand out ``count`` blocks, or none at all."""
        if count > self.usable - self.used:
            return False
        self.used += count
        return True

    def give_back(self, count: int) -> None:
        self.used -= count

    def join_prefix(self, prefix: int, blocks: int) -> tuple[bool, bool]:
        """Read prefix number ``prefix``: (got it, it was cached). The first reader pays its blocks."""
        readers = self._readers.get(prefix, 0)
        if readers == 0 and not self.take(blocks):
            return False, False
        hit = prefix in self._warm
        self._readers[prefix] = readers + 1
        return True, hit

    def fill_prefix(self, prefix: int) -> None:
        """The prefix has been computed: later readers find it."""
        self._warm.add(prefix)

    def leave_prefix(self, prefix: int, blocks: int) -> None:
        """One reader less; the last one frees the blocks, which stay warm."""
        self._readers[prefix] -= 1
        if self._readers[prefix] == 0:
            self.give_back(blocks)
