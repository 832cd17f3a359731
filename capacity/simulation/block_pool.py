"""The block pool block by block: ids, block tables, reference counts, prefix hashes and least-recently-freed
eviction.

The page's block map and the tests' plain engine use it; the fast engine counts instead (``block_count``).
Source of the order of eviction: vLLM V1 frees a request's blocks from its last to its first. Left out: block
content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from capacity.errors import CapacityError

NULL_BLOCK = 0


class BlockPool:
    """``num_blocks`` blocks with ids 1 to ``num_blocks``; id 0 is the null block and is never handed out.

    >>> pool = BlockPool(num_blocks=4, block_size=16)
    >>> pool.grow("a", 40), pool.free_blocks
    ([1, 2, 3], 1)
    >>> pool.release("a"); pool.free_blocks
    4
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise CapacityError(
                f"a pool of {num_blocks} blocks of {block_size} tokens; expected at least 1 of each"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tables: dict[Hashable, list[int]] = {}
        self.references = [0] * (num_blocks + 1)
        self.hash_of: dict[int, Hashable] = {}
        self.blocks_of: dict[Hashable, dict[int, None]] = {}
        self._idle: OrderedDict[int, None] = OrderedDict((block, None) for block in range(1, num_blocks + 1))

    @property
    def free_blocks(self) -> int:
        """Blocks nobody refers to; some of them still hold a prefix that could be shared."""
        return len(self._idle)

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - len(self._idle)

    def cached(self, hashes: Sequence[Hashable]) -> list[int]:
        """Ids of the blocks that hold the longest known start of ``hashes``."""
        found: list[int] = []
        for key in hashes:
            blocks = self.blocks_of.get(key)
            if blocks is None:
                break
            found.append(next(iter(blocks)))
        return found

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks`` count as free at the moment."""
        return sum(block in self._idle for block in blocks)

    def share(self, request: Hashable, blocks: Sequence[int]) -> None:
        """The request's table starts with these cached blocks."""
        if self.tables.get(request):
            raise CapacityError(f"request {request!s:.40} holds blocks already; share comes first")
        for block in blocks:
            if self.references[block] == 0:
                del self._idle[block]
            self.references[block] += 1
        self.tables[request] = list(blocks)

    def need(self, request: Hashable, tokens: int) -> int:
        """Blocks missing until the request can hold ``tokens`` tokens."""
        return max(-(-tokens // self.block_size) - len(self.tables.get(request, ())), 0)

    def grow(self, request: Hashable, tokens: int) -> list[int]:
        """Give the request room for ``tokens`` tokens; returns the new ids. Raises CapacityError when blocks
        are short.
        """
        missing = self.need(request, tokens)
        if missing > len(self._idle):
            raise CapacityError(f"{missing} blocks needed, {len(self._idle)} free")
        fresh: list[int] = []
        for _ in range(missing):
            block, _none = self._idle.popitem(last=False)
            key = self.hash_of.pop(block, None)
            if key is not None:
                del self.blocks_of[key][block]
                if not self.blocks_of[key]:
                    del self.blocks_of[key]
            self.references[block] = 1
            fresh.append(block)
        self.tables.setdefault(request, []).extend(fresh)
        return fresh

    def name(self, request: Hashable, hashes: Sequence[Hashable], *, start: int = 0) -> None:
        """The request's first blocks are full and hold the content that ``hashes`` stand for: others may
        share them. Blocks before ``start`` were named earlier. Two blocks may bear one name: the earlier is found first.
        """
        for block, key in list(zip(self.tables.get(request, ()), hashes, strict=False))[start:]:
            if block not in self.hash_of:
                self.hash_of[block] = key
                self.blocks_of.setdefault(key, {})[block] = None

    def release(self, request: Hashable) -> None:
        """The request leaves: its blocks come back, last one first; named ones stay findable until they are
        reused.
        """
        for block in reversed(self.tables.pop(request, [])):
            self.references[block] -= 1
            if self.references[block] == 0:
                self._idle[block] = None

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken: used + free = total, references match the tables."""
        counted = [0] * (self.num_blocks + 1)
        for table in self.tables.values():
            if len(set(table)) != len(table):
                raise AssertionError("a table holds a block twice")
            for block in table:
                counted[block] += 1
        if counted != self.references:
            raise AssertionError("references do not match the tables")
        if counted[NULL_BLOCK]:
            raise AssertionError("the null block was handed out")
        for block in range(1, self.num_blocks + 1):
            if (counted[block] == 0) != (block in self._idle):
                raise AssertionError(f"block {block} is both free and used, or neither")
