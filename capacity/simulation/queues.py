"""The waiting line: first come first served, or by (priority, arrival). A request that leaves early is
skipped later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from itertools import islice

from capacity.simulation.sequence import GONE, Sequence


class FcfsQueue:
    """A line whose front also takes back preempted requests."""

    __slots__ = ("count", "line")
    by_priority = False

    def __init__(self) -> None:
        self.line: deque[Sequence] = deque()
        self.count = 0

    def push(self, seq: Sequence) -> None:
        self.line.append(seq)
        self.count += 1

    def push_front(self, seq: Sequence) -> None:
        """A preempted request returns to the very front."""
        self.line.appendleft(seq)
        self.count += 1

    def peek(self) -> Sequence:
        """The next in line; the caller has checked ``count``."""
        line = self.line
        while line[0].state == GONE:
            line.popleft()
        return line[0]

    def pop(self) -> Sequence:
        seq = self.peek()
        self.line.popleft()
        self.count -= 1
        return seq

    def drop(self, seq: Sequence) -> None:
        """Forget a waiting request (the caller marks it GONE)."""
        self.count -= 1

    def first(self, count: int) -> list[Sequence]:
        """Up to ``count`` requests from the front."""
        return list(islice((seq for seq in self.line if seq.state != GONE), count))

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for seq in list(self.line) if seq.state != GONE)

    def take(self, seq: Sequence) -> None:
        """Take a request out of the middle of the line."""
        self.line.remove(seq)
        self.count -= 1


class PriorityQueue:
    """A heap of (priority, arrival, order); a lower priority value goes first, as vLLM has it."""

    __slots__ = ("count", "heap", "pushed")
    by_priority = True

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, int, int, Sequence]] = []
        self.count = 0
        self.pushed = 0

    def push(self, seq: Sequence) -> None:
        self.pushed += 1
        heappush(self.heap, (seq.priority, seq.arrival, seq.order, self.pushed, seq))
        self.count += 1

    push_front = push

    def peek(self) -> Sequence:
        heap = self.heap
        while heap[0][-1].state == GONE:
            heappop(heap)
        return heap[0][-1]

    def pop(self) -> Sequence:
        seq = self.peek()
        heappop(self.heap)
        self.count -= 1
        return seq

    def drop(self, seq: Sequence) -> None:
        self.count -= 1

    def first(self, count: int) -> list[Sequence]:
        """Up to ``count`` requests from the front (the first three of a heap are among its first seven entries)."""
        near = self.heap[:7] if count <= 3 else [entry for entry in self.heap if entry[-1].state != GONE]
        return [entry[-1] for entry in nsmallest(count, near) if entry[-1].state != GONE]

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[-1] for entry in sorted(self.heap) if entry[-1].state != GONE)

    def take(self, seq: Sequence) -> None:
        self.heap = [entry for entry in self.heap if entry[-1] is not seq]
        self.heap.sort()
        self.count -= 1
