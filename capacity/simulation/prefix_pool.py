"""The block pool as counts with hash-based prefix sharing, for the fast engine.

It holds the same numbers as ``block_pool.BlockPool`` (tests compare them event for event). Source: vLLM V1's block pool:
a full block gets its name when its tokens are scheduled, two blocks may bear one name and the earlier one is found first,
a request's blocks are freed from its last one on, the longest-freed block is evicted first. Left out: block ids.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from capacity.simulation.block_count import CountedPool
from capacity.simulation.cohort import Layout
from capacity.simulation.sequence import Sequence

Hit = tuple["_Run", int, int]


class _Run:
    """Neighbouring blocks of one name, held by the same requests (``refs`` of them): ``blocks`` from block index ``start``.

    ``entry`` is their place in the order of eviction while nobody holds them: [runs, blocks of them], evicted from the end of
    the last run on. ``rest``: what was cut off behind.
    """

    __slots__ = ("blocks", "entry", "key", "refs", "rest", "start")

    def __init__(self, key: object, start: int, blocks: int, refs: int) -> None:
        self.key = key
        self.start = start
        self.blocks = blocks
        self.refs = refs
        self.entry: list[Any] | None = None
        self.rest: _Run | None = None

    @property
    def end(self) -> int:
        return self.start + self.blocks


class PrefixPool(CountedPool):
    """A pool with hash-based prefix sharing and least-recently-freed eviction.

    Blocks are kept as runs, cut where one request's share ends. ``runs`` has the findable ones by prefix key, in the order
    in which they got their name; a preempted request leaves its own computed blocks under a key that only it asks for.
    ``free`` counts idle cached blocks as free. ``Sequence.pins``: [run, blocks] in order from the request's first block.
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
            if used and entry[0] is not None:
                self._evict(entry[0], used)
            if entry[1] == 0:
                queue.popleft()

    def _evict(self, idle: list[_Run], blocks: int) -> None:
        """Blocks from the end of neighbouring idle runs lose their name."""
        while blocks:
            run = idle[-1]
            used = min(run.blocks, blocks)
            run.blocks -= used
            blocks -= used
            if run.blocks == 0:
                idle.pop()
                self.runs[run.key].remove(run)
                if not self.runs[run.key]:
                    del self.runs[run.key]

    def give(self, blocks: int) -> None:
        if blocks <= 0:
            return
        self.free += blocks
        if self.queue and self.queue[-1][0] is None:
            self.queue[-1][1] += blocks
        else:
            self.queue.append([None, blocks])

    def leave(self, seq: Sequence, tokens: int, *, resumes: bool) -> None:
        pins = seq.pins or []
        own = ("own", seq.id)
        if not resumes:
            self._forget(own)
        held = sum(blocks for _, blocks in pins)
        keep = max(tokens // self.layout.block_size - held, 0) if resumes else 0
        self.give(self.layout.blocks(tokens) - held - keep)
        if keep:
            self._release(self._named(own, held, keep))
        for first, blocks in reversed(pins):
            for run in reversed(_pieces(first, blocks)):
                self._release(run)
        seq.pins = None

    def _named(self, key: object, start: int, blocks: int) -> _Run:
        """A new findable run, held once."""
        run = _Run(key, start, blocks, 1)
        self.runs.setdefault(key, []).append(run)
        return run

    def _release(self, run: _Run) -> None:
        run.refs -= 1
        if run.refs:
            return
        if run.key is None:
            self.give(run.blocks)
            return
        self.free += run.blocks
        run.entry = [[run], run.blocks]
        self.queue.append(run.entry)

    def _cut(self, run: _Run, blocks: int) -> _Run:
        """Make a run end after its first ``blocks``; returns the rest, with the same holders or the same place in the order
        of eviction.
        """
        rest = _Run(run.key, run.start + blocks, run.blocks - blocks, run.refs)
        rest.rest, run.rest = run.rest, rest
        run.blocks = blocks
        if run.entry is not None:
            rest.entry = run.entry
            run.entry[0].insert(run.entry[0].index(run) + 1, rest)
        runs = self.runs[run.key]
        runs.insert(runs.index(run) + 1, rest)
        return rest

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

    def _hits(self, seq: Sequence) -> list[Hit]:
        """(run, blocks of it to pass over, blocks of it) that the request can share right now, in order."""
        most = (seq.target - 1) // self.layout.block_size
        hits: list[Hit] = []
        at = 0
        for key, end in (*self._chain(seq), (("own", seq.id), most)):
            end = min(end, most)
            runs = self.runs.get(key, ())
            while at < end:
                stop = end
                for run in (
                    runs
                ):  # the first that has the block; an earlier one that starts further on takes over there
                    if run.start <= at < run.end:
                        break
                    if run.start > at:
                        stop = min(stop, run.start)
                else:
                    break
                stop = min(stop, run.end)
                hits.append((run, at - run.start, stop - at))
                at = stop
            if at < end:
                break
        return hits

    def hit_blocks(self, seq: Sequence) -> tuple[int, int]:
        found = idle = 0
        for run, _, blocks in self._hits(seq):
            found += blocks
            if run.refs == 0:
                idle += blocks
        return found, idle

    def pin(self, seq: Sequence) -> None:
        pins: list[list[Any]] = []
        for run, skip, blocks in reversed(self._hits(seq)):
            if skip:
                run = self._cut(run, skip)
            if blocks < run.blocks:
                self._cut(run, blocks)
            if run.refs == 0:
                self.free -= run.blocks
                if run.entry is not None:
                    run.entry[0].remove(run)
                    run.entry[1] -= run.blocks
                    run.entry = None
            run.refs += 1
            pins.append([run, blocks])
        seq.pins = pins[::-1]

    def _forget(self, key: object) -> None:
        """Blocks that nobody will ask for again keep their place but lose their name."""
        for run in self.runs.pop(key, []):
            run.key = None
            if run.entry is not None:
                run.entry[0] = None

    def computed(self, seq: Sequence, tokens: int) -> None:
        whole = tokens // self.layout.block_size
        pins = seq.pins if seq.pins is not None else []
        held = sum(blocks for _, blocks in pins)
        for key, end in self._chain(seq):
            if held >= whole:
                break
            more = min(end, whole) - held
            if more <= 0:
                continue
            last = _pieces(*pins[-1])[-1] if pins else None
            if last is not None and last.key == key and last.refs == 1 and self.runs[key][-1] is last:
                last.blocks += more
                pins[-1][1] += more
            else:
                pins.append([self._named(key, held, more), more])
            held += more
        seq.pins = pins


def _pieces(run: _Run | None, blocks: int) -> list[_Run]:
    """The run and what was cut off behind it, until ``blocks`` are together."""
    found: list[_Run] = []
    while blocks > 0 and run is not None:
        found.append(run)
        blocks -= run.blocks
        run = run.rest
    return found
