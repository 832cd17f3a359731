"""Requests of a run: when they arrive, how long their prompts and answers are, what they share. Seeded, no
clock.

Lengths and arrivals follow the families named in ``ArrivalProcess`` and ``Lengths``; recorded traces are read
by ``capacity.request_trace``. Left out: the text of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from capacity.errors import CapacityError
from capacity.speed_words import between

Process = Literal["poisson", "gamma", "constant", "burst", "daily", "closed_loop"]
Distribution = Literal["constant", "lognormal", "uniform", "exponential", "empirical", "mixture"]
MAX_REQUESTS = 5_000_000
MAX_TOKENS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests in order of arrival: seconds from the first instant, tokens, vLLM priority (lower goes first).

    ``prefixes[i]`` is the tuple of prefix keys of request i, each standing for ``prefix_key_tokens`` tokens;
    ``prefixes`` None = nothing is shared. ``deadline_s``: seconds after arrival at which the client hangs up (inf: never).
    ``notes`` say what was changed on the way in.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    priority: np.ndarray
    prefixes: tuple[tuple[object, ...] | None, ...] | None = None
    prefix_key_tokens: int = 16
    sessions: np.ndarray | None = None
    deadline_s: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def of(
        cls,
        *,
        arrival_s: Sequence[float] | np.ndarray,
        prompt_tokens: Sequence[int] | np.ndarray,
        output_tokens: Sequence[int] | np.ndarray,
        priority: Sequence[int] | np.ndarray | None = None,
        prefixes: Sequence[tuple[object, ...] | None] | None = None,
        prefix_key_tokens: int = 16,
        sessions: Sequence[int] | np.ndarray | None = None,
        deadline_s: Sequence[float] | np.ndarray | None = None,
        notes: Sequence[str] = (),
    ) -> Requests:
        """Requests from columns; sorts them by arrival (stable) and says so when it had to."""
        arrival = np.asarray(arrival_s, dtype=float)
        if not np.isfinite(arrival).all():
            raise CapacityError("an arrival time is not a finite number; expected seconds", field="arrival_s")
        said = list(notes)
        ranks = np.zeros(len(arrival), np.int64) if priority is None else np.asarray(priority, np.int64)
        columns = [np.asarray(prompt_tokens, np.int64), np.asarray(output_tokens, np.int64), ranks]
        names = ("prompt_tokens", "output_tokens", "priority")
        for name, column in zip(names, columns, strict=True):
            if len(column) != len(arrival):
                raise CapacityError(
                    f"{name} has {len(column)} entries for {len(arrival)} arrivals", field=name
                )
            if name != "priority" and len(column) and (column.min() < 0 or column.max() > MAX_TOKENS):
                worst = int(column.min()) if column.min() < 0 else int(column.max())
                raise CapacityError(f"{name} has {worst:,}; expected 0 to {MAX_TOKENS:,} tokens", field=name)
        shared = list(prefixes) if prefixes is not None else None
        visitors = None if sessions is None else np.asarray(sessions, np.int64)
        limits = None if deadline_s is None else np.asarray(deadline_s, float)
        if len(arrival) > 1 and (np.diff(arrival) < 0).any():
            order = np.argsort(arrival, kind="stable")
            arrival = arrival[order]
            columns = [column[order] for column in columns]
            shared = [shared[i] for i in order] if shared is not None else None
            visitors = visitors[order] if visitors is not None else None
            limits = limits[order] if limits is not None else None
            said.append("arrivals were not in order of time and have been sorted")
        return cls(
            arrival_s=arrival,
            prompt_tokens=columns[0],
            output_tokens=columns[1],
            priority=columns[2],
            prefixes=tuple(shared) if shared is not None else None,
            prefix_key_tokens=prefix_key_tokens,
            sessions=visitors,
            deadline_s=limits,
            notes=tuple(said),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """How requests arrive.

    ``gamma`` has gaps of coefficient of variation ``cv`` (1 = Poisson). ``burst``: ``burst_size`` at once,
    bursts spaced so that the mean rate is ``rate_rps`` (rate 0: one burst of all). ``daily``: rate x (1 +
    ``swing`` sin) over ``period_s``. ``closed_loop``: ``users`` each send, wait for the answer, think
    ``think_s`` seconds, send again.
    """

    process: Process = "poisson"
    rate_rps: float = 1.0
    cv: float = 1.0
    burst_size: int = 1
    period_s: float = 86_400.0
    swing: float = 0.5
    users: int = 1
    think_s: float = 0.0
    start_s: float = 0.0

    def __post_init__(self) -> None:
        where = "workload.arrival"
        choice(f"{where}.process", self.process, get_args(Process))
        needs_rate = self.process not in ("closed_loop", "burst")
        number(f"{where}.rate_rps", self.rate_rps, 1e-9 if needs_rate else 0, 1e6)
        number(f"{where}.cv", self.cv, 1e-3, 100)
        number(f"{where}.burst_size", self.burst_size, 1, MAX_REQUESTS)
        number(f"{where}.period_s", self.period_s, 1e-3, 1e9)
        number(f"{where}.swing", self.swing, 0, 1)
        number(f"{where}.users", self.users, 1, MAX_REQUESTS)
        number(f"{where}.think_s", self.think_s, 0, 1e9)
        number(f"{where}.start_s", self.start_s, 0, 1e9)

    def times(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Arrival times of ``count`` requests in seconds, rising. Closed loop: the first request of each
        user.
        """
        if self.process == "closed_loop":
            return np.full(count, self.start_s)
        if self.process == "burst":
            bursts = np.arange(count) // self.burst_size
            gap = self.burst_size / self.rate_rps if self.rate_rps else 0.0
            return self.start_s + bursts * gap
        if self.process == "constant":
            return self.start_s + np.arange(count) / self.rate_rps
        if self.process == "gamma":
            shape = 1 / self.cv**2
            return self.start_s + np.cumsum(rng.gamma(shape, 1 / (self.rate_rps * shape), count))
        steady = np.cumsum(rng.exponential(1 / self.rate_rps, count))
        if self.process == "daily":
            return self.start_s + self._warp(steady)
        return self.start_s + steady

    def _warp(self, steady: np.ndarray) -> np.ndarray:
        """Times whose expected count under the daily profile equals that of ``steady`` under the mean rate.

        Whole periods map to themselves, so one period is inverted, whatever the span.
        """
        angle = 2 * math.pi / self.period_s
        grid = np.linspace(0, self.period_s, 4097)
        seen = grid + self.swing / angle * (1 - np.cos(angle * grid))
        whole = np.floor(steady / self.period_s) * self.period_s
        return np.maximum.accumulate(whole + np.interp(steady - whole, seen, grid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of token counts.

    ``constant``, ``exponential``: ``mean``. ``lognormal``: ``mean`` and ``cv``. ``uniform``: ``low`` to
    ``high``. ``empirical``: drawn from ``values``. ``mixture``: ``parts`` with ``weights``.
    """

    distribution: Distribution = "constant"
    mean: float = 1.0
    cv: float = 1.0
    low: int = 1
    high: int = MAX_TOKENS
    values: tuple[int, ...] = ()
    parts: tuple[Lengths, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        choice("distribution", self.distribution, get_args(Distribution))
        number("mean", self.mean, 0, MAX_TOKENS)
        number("cv", self.cv, 0, 100)
        number("min", self.low, 0, MAX_TOKENS)
        number("max", self.high, self.low, MAX_TOKENS)
        if self.distribution == "empirical" and not self.values:
            raise CapacityError("an empirical distribution has no values; expected a list of token counts")
        if self.distribution == "mixture" and (not self.parts or len(self.parts) != len(self.weights)):
            raise CapacityError("a mixture needs parts, each with a weight")

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """``count`` whole token counts within [low, high]."""
        kind = self.distribution
        if kind == "mixture":
            share = np.asarray(self.weights, float)
            which = rng.choice(len(self.parts), size=count, p=share / share.sum())
            result = np.zeros(count, np.int64)
            for index, part in enumerate(self.parts):
                mask = which == index
                result[mask] = part.draw(int(mask.sum()), rng)
            return result
        if kind == "empirical":
            drawn = rng.choice(np.asarray(self.values, np.int64), size=count)
        elif kind == "lognormal" and self.cv > 0 and self.mean > 0:
            sigma2 = math.log1p(self.cv**2)
            drawn = rng.lognormal(math.log(self.mean) - sigma2 / 2, math.sqrt(sigma2), count)
        elif kind == "exponential":
            drawn = np.ceil(rng.exponential(self.mean, count))
        elif kind == "uniform":
            drawn = rng.integers(self.low, self.high, count, endpoint=True)
        else:
            drawn = np.full(count, self.mean)
        return np.clip(np.rint(drawn), self.low, self.high).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """One kind of request in a mixed workload (short chat, long documents): its share, lengths and priority."""

    weight: float
    prompt_tokens: Lengths
    output_tokens: Lengths
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A generated workload. ``shared_prefix_tokens`` of every prompt belong to one of ``prefix_groups``
    prefixes, chosen with Zipf weight ``prefix_skew`` (0 = evenly); ``priorities`` are drawn with
    ``priority_weights``; ``sessions`` > 0 deals requests to that many users (for affinity); ``classes``
    replace lengths and priorities; a share ``image_share`` of the prompts carries ``image_tokens`` more."""

    arrival: ArrivalProcess = field(default_factory=ArrivalProcess)
    prompt_tokens: Lengths = field(default_factory=lambda: Lengths(mean=512))
    output_tokens: Lengths = field(default_factory=lambda: Lengths(mean=128))
    num_requests: int = 1000
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1
    prefix_skew: float = 0.0
    priorities: tuple[int, ...] = (0,)
    priority_weights: tuple[float, ...] = (1.0,)
    sessions: int = 0
    classes: tuple[RequestClass, ...] = ()
    image_share: float = 0.0
    image_tokens: int = 0

    def __post_init__(self) -> None:
        number("workload.num_requests", self.num_requests, 1, MAX_REQUESTS)
        number("workload.shared_prefix_tokens", self.shared_prefix_tokens, 0, MAX_TOKENS)
        number("workload.prefix_groups", self.prefix_groups, 1, MAX_REQUESTS)
        number("workload.prefix_skew", self.prefix_skew, 0, 10)
        number("workload.sessions", self.sessions, 0, MAX_REQUESTS)
        if len(self.priorities) != len(self.priority_weights) or not self.priorities:
            raise CapacityError(
                "workload.priorities needs as many weights as priorities", field="workload.priorities"
            )

    def requests(self, seed: int) -> Requests:
        """The requests of this workload; the same seed gives the same requests."""
        rng = np.random.default_rng(seed)
        count = self.num_requests
        arrival = self.arrival.times(count, rng)
        if self.classes:
            prompt, output, priority = self._mixed(rng)
        else:
            prompt = self.prompt_tokens.draw(count, rng)
            output = self.output_tokens.draw(count, rng)
            weights = np.asarray(self.priority_weights, float)
            priority = rng.choice(
                np.asarray(self.priorities, np.int64), size=count, p=weights / weights.sum()
            )
        if self.image_share and self.image_tokens:
            prompt = prompt + (rng.random(count) < self.image_share) * self.image_tokens
        prefixes: list[tuple[object, ...] | None] | None = None
        if self.shared_prefix_tokens:
            rank = np.arange(1, self.prefix_groups + 1, dtype=float) ** -self.prefix_skew
            group = rng.choice(self.prefix_groups, size=count, p=rank / rank.sum())
            prefixes = [(int(g),) for g in group]
        sessions = rng.integers(0, self.sessions, count) if self.sessions else None
        return Requests.of(
            arrival_s=arrival,
            prompt_tokens=prompt,
            output_tokens=output,
            priority=priority,
            prefixes=prefixes,
            prefix_key_tokens=max(self.shared_prefix_tokens, 1),
            sessions=sessions,
        )

    def _mixed(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Prompt, output and priority columns when ``classes`` are given."""
        count = self.num_requests
        share = np.array([kind.weight for kind in self.classes], float)
        which = rng.choice(len(self.classes), size=count, p=share / share.sum())
        prompt, output, priority = (np.zeros(count, np.int64) for _ in range(3))
        for index, kind in enumerate(self.classes):
            mine = which == index
            prompt[mine] = kind.prompt_tokens.draw(int(mine.sum()), rng)
            output[mine] = kind.output_tokens.draw(int(mine.sum()), rng)
            priority[mine] = kind.priority
        return prompt, output, priority


def number(name: str, value: object, low: float, high: float) -> None:
    """Raise CapacityError unless ``value`` is a finite number within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        seen = str(value)[:40]
        raise CapacityError(f"{name} is {seen}; expected a number, {between(low, high)}", field=name)


def choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise CapacityError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise CapacityError(
            f"{name} is {str(value)[:40]!r}; expected one of {', '.join(choices)}", field=name
        )
