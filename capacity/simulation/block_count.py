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
    """Neighbouring blocks of one key that are shared by the same requests: ``refs`` of them.

    ``start`` is the block index of the first one within the request that left them (own blocks only).
    """

    __slots__ = ("blocks", "entry", "key", "refs", "start")

    def __init__(self, key: object, blocks: int, *, refs: int = 0, start: int = 0) -> None:
        self.key = key
        self.blocks = blocks
        self.refs = refs
        self.start = start
        self.entry: list[Any] | None = None


class PrefixPool(CountedPool):
    """A pool with hash-based prefix sharing and least-recently-freed eviction.

    A prefix key stands for blocks that are shared from the first one on, as many as two prompts have in common: they are
    kept as runs, cut where one request's share ends. A preempted request leaves its own computed blocks behind as a run
    that only it can find again. ``free`` counts idle cached blocks as free. Simplification: a request that computes a prefix
    at the same time as another, in pieces, adds nothing to what the other has named.
    """

    caches = True

    def __init__(self, total: int, layout: Layout) -> None:
        super().__init__(total, layout)
        self.runs: dict[object, list[_Run]] = {}
        self.queue: deque[list[Any]] = deque([[None, total]])

    def take(self, blocks: int) -> None:
        self.free -= blocks
        queue = self.queue
        while blocks:
            entry = queue[0]
            used = min(entry[1], blocks)
            entry[1] -= used
            blocks -= used
            run: _Run | None = entry[0]
            if used and run is not None:
                run.blocks -= used
                if run.blocks == 0:
                    self.runs[run.key].remove(run)
                    if not self.runs[run.key]:
                        del self.runs[run.key]
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
            private += self.runs.pop(own)[0].blocks
        keep = max(tokens // self.layout.block_size - shared, 0) if resumes else 0
        self.give(private - keep)
        if keep:
            run = _Run(own, keep, start=shared)
            self.runs[own] = [run]
            self._release(run)
        for key, used in reversed(pins):
            if key != own:
                for run in reversed(self._within(key, used)):
                    run.refs -= 1
                    if run.refs == 0:
                        self._release(run)
        seq.pins = None

    def _release(self, run: _Run) -> None:
        self.free += run.blocks
        run.entry = [run, run.blocks]
        self.queue.append(run.entry)

    def _within(self, key: object, blocks: int) -> list[_Run]:
        """The runs that hold a key's first ``blocks`` blocks (which end where a run ends)."""
        found = []
        for run in self.runs[key]:
            if blocks <= 0:
                break
            found.append(run)
            blocks -= run.blocks
        return found

    def _cut(self, key: object, blocks: int) -> None:
        """Make a run end after a key's first ``blocks`` blocks; the rest keeps its place in the order of eviction."""
        runs = self.runs[key]
        for index, run in enumerate(runs):
            if blocks <= 0:
                return
            if run.blocks > blocks:
                rest = _Run(key, run.blocks - blocks, refs=run.refs)
                run.blocks = blocks
                if run.entry is not None:
                    rest.entry, run.entry = run.entry, None
                    rest.entry[:] = rest, rest.blocks
                runs.insert(index + 1, rest)
                return
            blocks -= run.blocks

    def _chain(self, seq: Sequence) -> list[tuple[object, int]]:
        """Keys of the request's shareable start, each with the block index at which its whole blocks end."""
        prefix = seq.prefix
        if prefix is None:
            return []
        size, per_key, prompt = self.layout.block_size, prefix.tokens_per_key, seq.prompt
        found = []
        for index, key in enumerate(prefix.keys, start=1):
            end = index * per_key
            found.append((key, min(end, prompt) // size))
            if end >= prompt:
                break
        return found

    def _hits(self, seq: Sequence) -> list[tuple[object, int]]:
        """Keys the request can share right now, each with the number of its blocks in use."""
        most = (seq.target - 1) // self.layout.block_size
        hits: list[tuple[object, int]] = []
        found = start = 0
        for key, end in self._chain(seq):
            if end == start:
                continue
            runs = self.runs.get(key)
            if runs is None or found >= most:
                break
            used = min(sum(run.blocks for run in runs), most - found, end - start)
            hits.append((key, used))
            found += used
            if used < end - start:
                break
            start = end
        own = ("own", seq.id)
        mine = self.runs.get(own)
        if mine is not None and mine[0].start <= found:
            used = min(mine[0].start + mine[0].blocks, most) - found
            if used > 0:
                hits.append((own, used))
        return hits

    def hit_blocks(self, seq: Sequence) -> tuple[int, int]:
        found = idle = 0
        own = ("own", seq.id)
        for key, used in self._hits(seq):
            if key == own:
                run = self.runs[own][0]
                idle += run.blocks - (found - run.start)
            else:
                left = used
                for run in self.runs[key]:
                    if left <= 0:
                        break
                    if run.refs == 0:
                        idle += min(run.blocks, left)
                    left -= run.blocks
            found += used
        return found, idle

    def pin(self, seq: Sequence) -> None:
        hits = self._hits(seq)
        found = 0
        own = ("own", seq.id)
        for key, used in hits:
            if key == own:  # its first blocks are in the pool a second time: leave those where they are
                run = self.runs[own][0]
                self._hold(run, left=found - run.start)
                run.start = found
            else:
                self._cut(key, used)
                for run in self._within(key, used):
                    self._hold(run)
            found += used
        seq.pins = hits
        if not hits or hits[-1][0] != own:
            self._forget(own)

    def _hold(self, run: _Run, *, left: int = 0) -> None:
        """One more request uses a run; ``left`` of its blocks stay behind without a name."""
        if run.refs == 0:
            run.blocks -= left
            self.free -= run.blocks
            if run.entry is not None:
                run.entry[:] = None, left
                run.entry = None
        run.refs += 1

    def _forget(self, key: object) -> None:
        """Own blocks that can no longer be reached from the request's start keep their place but lose their
        name.
        """
        for run in self.runs.pop(key, []):
            if run.entry is not None:
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
            runs = self.runs.get(key)
            if cover <= 0:
                continue
            if runs is None and start >= covered:
                self.runs[key] = [_Run(key, cover, refs=1)]
                pins.append((key, cover))
            elif runs is not None and key in known:
                there = sum(run.blocks for run in runs)
                if there == pins[known[key]][1] < cover:
                    if runs[-1].refs == 1:
                        runs[-1].blocks += cover - there
                    else:
                        runs.append(_Run(key, cover - there, refs=1))
                    pins[known[key]] = (key, cover)
            start = end
        seq.pins = pins
