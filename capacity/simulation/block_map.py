"""The block pool as a picture at any moment of a small run: which id is free, used or shared, and by which request.

Replays a run's log on the block-by-block pool. Left out: runs with preemption by swap (their blocks are shown as freed)
and window groups; the fast engine's counts stay the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

from capacity.errors import CapacityError
from capacity.simulation.block_pool import BlockPool
from capacity.simulation.run import Run
from capacity.simulation.step_time import TICKS_PER_S

MOST_REQUESTS = 200
MOST_BLOCKS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMap:
    """At ``at_s``: ``owner[i]`` is the request that holds block i + 1, -1 = free; ``readers[i]`` how many share it."""

    at_s: float
    owner: tuple[int, ...]
    readers: tuple[int, ...]
    running: tuple[int, ...]

    @property
    def used(self) -> int:
        return sum(count > 0 for count in self.readers)


def block_map(run: Run, at_s: float, *, replica: int = 0) -> BlockMap:
    """The pool of one engine at ``at_s``. The run needs its log (``log=True``) and at most 200 requests.

    Between its start and its end a request holds blocks for the tokens it has by then, taken in order of admission; the
    tokens between two logged events grow evenly. Raises CapacityError when the run has no log or is too large.
    """
    log = run.record.log
    engine = run.engines[replica]
    if log is None:
        raise CapacityError("the run has no log; a block map needs events", field="events")
    if len(run.requests) > MOST_REQUESTS or engine.pool.total > MOST_BLOCKS:
        raise CapacityError(
            f"a block map covers at most {MOST_REQUESTS} requests and {MOST_BLOCKS:,} blocks; the run has "
            f"{len(run.requests):,} and {engine.pool.total:,}",
            field="events",
        )
    size = engine.layout.block_size
    pool = BlockPool(num_blocks=engine.pool.total, block_size=size)
    moments = _moments(run, replica)
    now = round(at_s * TICKS_PER_S)
    alive: list[int] = []
    steps = sorted({ticks for ticks, _, _ in moments if ticks <= now} | {now})
    position = 0
    for tick in steps:
        while position < len(moments) and moments[position][0] <= tick:
            _, request, enters = moments[position]
            if enters:
                alive.append(request)
                known = pool.cached(_names(run, request, int(run.requests.prompt_tokens[request]) - 1, size))
                pool.share(request, known)
            elif request in alive:
                alive.remove(request)
                pool.release(request)
            position += 1
        for request in alive:
            tokens = _tokens(run, request, tick, replica)
            missing = pool.need(request, tokens)
            pool.grow(request, tokens if missing <= pool.free_blocks else _held(pool, request) * size)
            pool.name(request, _names(run, request, tokens, size))
    owner = [-1] * pool.num_blocks
    for holder, table in pool.tables.items():
        for block in table:
            owner[block - 1] = int(str(holder))
    return BlockMap(
        at_s=at_s, owner=tuple(owner), readers=tuple(pool.references[1:]), running=tuple(sorted(alive))
    )


def _held(pool: BlockPool, request: int) -> int:
    return len(pool.tables.get(request, ()))


def _names(run: Run, request: int, tokens: int, size: int) -> list[tuple[object, int]]:
    """Names of the whole blocks of the request's shareable start."""
    prefixes, per_key = run.requests.prefixes, run.requests.prefix_key_tokens
    keys = prefixes[request] if prefixes is not None else None
    if not keys:
        return []
    last = min(tokens, len(keys) * per_key, int(run.requests.prompt_tokens[request])) // size
    return [(keys[((index + 1) * size - 1) // per_key], index) for index in range(last)]


def _moments(run: Run, replica: int) -> list[tuple[int, int, bool]]:
    """(ticks, request, enters or leaves the pool) in order."""
    enters = ("admit", "resume")
    leaves = ("preempt", "finish", "abort")
    found = [
        (event.ticks, event.request, event.kind in enters)
        for event in run.record.log or []
        if event.replica == replica and event.kind in enters + leaves
    ]
    return sorted(found, key=lambda moment: (moment[0], moment[2]))


def _tokens(run: Run, request: int, tick: int, replica: int) -> int:
    """Tokens in the pool: the prompt from admission on, then the answer, growing evenly until it ends."""
    prompt = int(run.requests.prompt_tokens[request])
    output = int(run.requests.output_tokens[request])
    first = run.record.first_token_s[request]
    end = run.record.end_s[request]
    at = tick / TICKS_PER_S
    if not first <= at:
        return prompt
    share = (at - first) / (end - first) if end > first else 1.0
    return prompt + min(int(share * max(output - 1, 0)), max(output - 1, 0))
