"""One request on its way through an engine: what it asks for, what it holds, and when things happened to it."""

from __future__ import annotations

from typing import Any, NamedTuple

WAITING, RUNNING, SWAPPED, GONE = range(4)


class Prefix(NamedTuple):
    """Shareable start of a prompt: keys in order, each standing for ``tokens_per_key`` tokens."""

    keys: tuple[object, ...]
    tokens_per_key: int


class Sequence:
    """A live request. Times in ticks; ``None`` = has not happened. Dropped when the request leaves.

    ``computed`` tokens have their KV in the pool (while decoding it is ``base`` + the cohort's step count).
    ``generated`` counts output tokens so far (while decoding: ``output`` - steps left).
    """

    __slots__ = (
        "arrival",
        "attempt",
        "base",
        "computed",
        "decoding",
        "due",
        "first_token",
        "generated",
        "host_blocks",
        "id",
        "last_token",
        "lost_tokens",
        "order",
        "output",
        "pinned",
        "pins",
        "preempted_at",
        "preempted_ticks",
        "preemptions",
        "prefix",
        "priority",
        "prompt",
        "scheduled",
        "session",
        "state",
        "target",
        "wide",
    )

    def __init__(
        self,
        id: int,
        arrival: int,
        prompt: int,
        output: int,
        priority: int = 0,
        prefix: Prefix | None = None,
        session: int | None = None,
        attempt: int = 0,
    ) -> None:
        self.id = id
        self.arrival = arrival
        self.prompt = prompt
        self.output = output
        self.priority = priority
        self.prefix = prefix
        self.session = session
        self.attempt = attempt
        self.order = id
        self.state = WAITING
        self.decoding = False
        self.wide = False
        self.base = 0
        self.due = -1
        self.computed = 0
        self.generated = 0
        self.target = prompt
        self.pins: list[list[Any]] | None = None
        self.pinned = 0
        self.host_blocks = 0
        self.scheduled: int | None = None
        self.first_token: int | None = None
        self.last_token: int | None = None
        self.preempted_at: int | None = None
        self.preempted_ticks = 0
        self.preemptions = 0
        self.lost_tokens = 0

    def again(self, arrival: int, attempt: int) -> Sequence:
        """The same request sent once more, from the start."""
        return Sequence(
            self.id, arrival, self.prompt, self.output, self.priority, self.prefix, self.session, attempt
        )
