"""What the poller is given and what it shows: targets, their state, and what asking them costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from capacity.telemetry import TargetSnapshot
from connectors.past import Past


@dataclass(frozen=True, slots=True, kw_only=True)
class PollTarget:
    """A target: a name that is safe to show, and how to scrape it once (raises ConnectorError or answers
    down). ``past`` is what its server remembers, where it does.
    """

    name: str
    scrape: Callable[[], TargetSnapshot]
    demo: bool = False
    past: Past | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What polling costs a target: scrapes and seconds of its time per second, over the recent scrapes."""

    scrapes: int
    scrapes_per_s: float | None
    busy_share: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """A target as it stands. ``snapshots`` are the newest ones, oldest first; ``failures`` in a row."""

    name: str
    demo: bool
    snapshots: tuple[TargetSnapshot, ...]
    last_ok: TargetSnapshot | None
    failures: int
    interval_s: float
    slowed: str | None
    load: Load

    @property
    def latest(self) -> TargetSnapshot | None:
        return self.snapshots[-1] if self.snapshots else None
