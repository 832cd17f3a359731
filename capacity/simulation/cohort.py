"""All decoding requests of one engine as one object, so that a step costs the same for 5 or 500 of them.

A decoding request gains one token per step, so "tokens minus steps" never changes for it: requests whose next
block falls due at the same step (mod block size) are one counter, and the step at which each ends is known
when it joins. Left out: prefill (the rules schedule it chunk by chunk).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from capacity.simulation.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Blocks that ``tokens`` tokens of one request hold.

    ``full`` groups grow for ever, ``window`` groups stop at ``window_tokens`` (sliding or chunked attention),
    ``constant`` blocks hold recurrent state. One group of full attention is the common case.

    >>> Layout(block_size=16).blocks(250)
    16
    >>> Layout(block_size=16, full=1, window=2, window_tokens=64, constant=1).blocks(160)
    19
    """

    block_size: int
    full: int = 1
    window: int = 0
    window_tokens: int = 0
    constant: int = 0

    @property
    def window_blocks(self) -> int:
        return -(-self.window_tokens // self.block_size)

    @property
    def is_plain(self) -> bool:
        return self.full == 1 and self.window == 0 and self.constant == 0

    def blocks(self, tokens: int) -> int:
        """Blocks held by a request with this many tokens in the pool."""
        if tokens <= 0:
            return 0
        rows = -(-tokens // self.block_size)
        return self.full * rows + self.window * min(rows, self.window_blocks) + self.constant


class DecodeCohort:
    """The decoding requests. ``step`` counts decode steps; ``context`` is what the next step attends to in
    total.
    """

    __slots__ = ("block_size", "context", "counts", "heap", "layout", "n", "pushed", "step", "turns")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.block_size = layout.block_size
        self.counts = [0] * layout.block_size
        self.n = 0
        self.step = 0
        self.context = 0
        self.pushed = 0
        self.heap: list[tuple[int, int, Sequence]] = []
        self.turns: list[tuple[int, int, Sequence]] = []

    def add(self, seq: Sequence, computed: int, left: int, *, delay: int = 0) -> None:
        """A request with ``computed`` tokens in the pool decodes from the coming step (``delay`` 1: the one
        after).

        It ends after ``left`` more steps.
        """
        start = self.step + delay
        base = computed - start
        seq.base = base
        seq.due = start + left
        seq.decoding = True
        self.n += 1
        self.pushed += 1  # breaks ties: a request and its retry share a number
        self.context += computed + 1 - delay
        weight = self.layout.full
        if self.layout.window:
            turn = self.layout.window_blocks * self.block_size
            seq.wide = computed < turn
            if seq.wide:
                weight += self.layout.window
                heappush(self.turns, (turn - base, self.pushed, seq))
        self.counts[-base % self.block_size] += weight
        heappush(self.heap, (seq.due, self.pushed, seq))

    def remove(self, seq: Sequence) -> int:
        """Take a request out; returns its tokens in the pool."""
        computed = seq.base + self.step
        self.n -= 1
        self.context -= computed + 1
        self.counts[-seq.base % self.block_size] -= self._weight(seq)
        seq.decoding = False
        seq.due = -1
        return computed

    def _weight(self, seq: Sequence) -> int:
        return self.layout.full + self.layout.window if seq.wide else self.layout.full

    def hold(self, seq: Sequence) -> None:
        """The coming step passes this request by: it keeps its tokens and ends one step later."""
        left = seq.due - self.step
        self.add(seq, self.remove(seq), left, delay=1)

    def blocks_due(self) -> int:
        """Blocks that the next step needs."""
        return self.counts[self.step % self.block_size]

    def need(self, seq: Sequence) -> int:
        """Blocks that the next step needs for this one request."""
        return self._weight(seq) if (seq.base + self.step) % self.block_size == 0 else 0

    def blocks_over(self, steps: int) -> int:
        """Blocks that the next ``steps`` steps need together."""
        cycles, rest = divmod(steps, self.block_size)
        start = self.step % self.block_size
        counts = self.counts
        total = cycles * sum(counts) if cycles else 0
        if rest:
            total += sum(counts[start : start + rest])
            if start + rest > self.block_size:
                total += sum(counts[: start + rest - self.block_size])
        return total

    def steps_within(self, blocks: int, limit: int) -> int:
        """How many of the next ``limit`` steps can run with ``blocks`` free blocks."""
        if self.blocks_over(limit) <= blocks:
            return limit
        per_cycle = sum(self.counts)
        cycles = blocks // per_cycle
        left = blocks - cycles * per_cycle
        steps = cycles * self.block_size
        position = self.step % self.block_size
        while True:
            left -= self.counts[position]
            if left < 0:
                return steps
            steps += 1
            position = (position + 1) % self.block_size

    def next_event(self) -> int:
        """Steps until the first request ends or changes its appetite."""
        heap = self.heap
        while heap and (heap[0][2].due != heap[0][0]):
            heappop(heap)
        steps = heap[0][0] - self.step if heap else 1
        if self.turns:
            steps = min(steps, self.turns[0][0] - self.step)
        return steps if steps > 1 else 1

    def advance(self, steps: int) -> None:
        """``steps`` steps have been taken by all."""
        self.step += steps
        self.context += self.n * steps
        turns = self.turns
        while turns and turns[0][0] <= self.step:
            turn, _, seq = heappop(turns)
            if seq.wide and seq.decoding and turn == self.layout.window_blocks * self.block_size - seq.base:
                seq.wide = False
                self.counts[-seq.base % self.block_size] -= self.layout.window

    def pop_finished(self) -> list[Sequence]:
        """Requests whose last token came with the step just taken, in the order they joined; they leave."""
        heap, step = self.heap, self.step
        done: list[Sequence] = []
        while heap and heap[0][0] <= step:
            due, _, seq = heappop(heap)
            if seq.due == due:
                self.remove(seq)
                done.append(seq)
        return done
