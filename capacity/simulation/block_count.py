"""The block pool as counts, for the fast engine: a plain counter, and one that remembers shared prefixes.

The counting pools hold the same numbers as ``block_pool.BlockPool`` (tests compare them); blocks have no ids
here. The prefix pool keeps freed blocks in the order vLLM frees them (a request's last block first) and
evicts the oldest.
"""

from __future__ import annotations

from collections import deque
from typing import Any

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


class _Run:
    """Blocks that are cached together: ``blocks`` hold content, ``refs`` requests use them.

    ``start`` is the block index of the first one within the request that left them (own blocks only).
    """

    __slots__ = ("blocks", "entry", "refs", "start")

    def __init__(self, blocks: int, *, refs: int = 0, start: int = 0) -> None:
        self.blocks = blocks
        self.refs = refs
        self.start = start
        self.entry: list[Any] | None = None


class PrefixPool(CountedPool):
    """A pool with hash-based prefix sharing and least-recently-freed eviction.

    A prefix key stands for a run of blocks that is always shared from its start. A preempted request leaves
    its own computed blocks behind as a run that only it can find again. ``free`` counts idle cached blocks as
    free. Simplification: a request whose whole prompt is a shared prefix holds the prefix's last block though
    it recomputes it.
    """

    caches = True

    def __init__(self, total: int, layout: Layout) -> None:
        super().__init__(total, layout)
        self.runs: dict[object, _Run] = {}
        self.queue: deque[list[Any]] = deque([[None, total]])

    def take(self, blocks: int) -> None:
        self.free -= blocks
        queue = self.queue
        while blocks:
            entry = queue[0]
            used = min(entry[1], blocks)
            entry[1] -= used
            blocks -= used
            if used and entry[0] is not None:
                run = self.runs[entry[0]]
                run.blocks -= used
                if run.blocks == 0:
                    del self.runs[entry[0]]
            if entry[1] == 0:
                queue.popleft()

    def give(self, blocks: int) -> None:
        if blocks <= 0:
            return
        self.free += blocks
        if self.queue and self.queue[-1][0] is None:
            self.queue[-1][1] += blocks
        else:
            self.queue.append([None, blocks])

    def leave(self, seq: Sequence, tokens: int, *, resumes: bool) -> None:
        pins: list[tuple[object, int]] = seq.pins or []
        own = ("own", seq.id)
        private = self.layout.blocks(tokens) - sum(used for _, used in pins)
        shared = sum(used for key, used in pins if key != own)
        if shared < sum(used for _, used in pins):
            private += self.runs.pop(own).blocks
        keep = max(tokens // self.layout.block_size - shared, 0) if resumes else 0
        self.give(private - keep)
        if keep:
            run = self.runs[own] = _Run(keep, start=shared)
            self._release(own, run)
        for key, _ in reversed(pins):
            if key != own:
                run = self.runs[key]
                run.refs -= 1
                if run.refs == 0:
                    self._release(key, run)
        seq.pins = None

    def _release(self, key: object, run: _Run) -> None:
        self.free += run.blocks
        run.entry = [key, run.blocks]
        self.queue.append(run.entry)

    def _chain(self, seq: Sequence) -> list[tuple[object, int]]:
        """Keys of the request's shareable start, each with the block index at which it ends."""
        prefix = seq.prefix
        if prefix is None:
            return []
        size, per_key = self.layout.block_size, prefix.tokens_per_key
        ends = ((key, index * per_key) for index, key in enumerate(prefix.keys, start=1))
        return [(key, tokens // size) for key, tokens in ends if tokens <= seq.prompt]

    def _hits(self, seq: Sequence) -> list[tuple[object, _Run, int]]:
        """Runs the request can share right now, each with the number of its blocks in use."""
        most = (seq.target - 1) // self.layout.block_size
        hits: list[tuple[object, _Run, int]] = []
        found = start = 0
        for key, end in self._chain(seq):
            run = self.runs.get(key)
            if run is None or found >= most or end == start:
                break
            used = min(run.blocks, most - found)
            hits.append((key, run, used))
            found += used
            if used < end - start:
                break
            start = end
        mine = self.runs.get(("own", seq.id))
        if mine is not None and mine.start <= found:
            used = min(mine.start + mine.blocks, most) - found
            if used > 0:
                hits.append((("own", seq.id), mine, used))
        return hits

    def hit_blocks(self, seq: Sequence) -> tuple[int, int]:
        found = idle = 0
        for key, run, used in self._hits(seq):
            if run.refs == 0:
                idle += run.blocks
                if key == ("own", seq.id):
                    idle -= found - run.start
            found += used
        return found, idle

    def pin(self, seq: Sequence) -> None:
        hits = self._hits(seq)
        found = 0
        mine = ("own", seq.id)
        for key, run, used in hits:
            run.refs += 1
            left = 0
            if key == mine:  # its first blocks are in the pool a second time: leave those where they are
                left = found - run.start
                run.blocks -= left
                run.start = found
            found += used
            if run.entry is not None:
                self.free -= run.blocks
                run.entry[0], run.entry[1] = None, left
                run.entry = None
        seq.pins = [(key, used) for key, _, used in hits]
        if not hits or hits[-1][0] != mine:
            self._forget(mine)

    def _forget(self, key: object) -> None:
        """Own blocks that can no longer be reached from the request's start keep their place but lose their
        name.
        """
        run = self.runs.pop(key, None)
        if run is not None and run.entry is not None:
            run.entry[0] = None

    def computed(self, seq: Sequence, tokens: int) -> None:
        whole = tokens // self.layout.block_size
        pins: list[tuple[object, int]] = seq.pins if seq.pins is not None else []
        known = {key: index for index, (key, _) in enumerate(pins)}
        covered = sum(used for _, used in pins)
        start = 0
        for key, end in self._chain(seq):
            if start >= whole:
                break
            cover = min(end, whole) - start
            run = self.runs.get(key)
            if run is None and start >= covered:
                self.runs[key] = _Run(cover, refs=1)
                pins.append((key, cover))
            elif run is not None and key in known and run.blocks == pins[known[key]][1] < cover:
                run.blocks = cover
                pins[known[key]] = (key, cover)
            start = end
        seq.pins = pins
