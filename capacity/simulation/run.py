"""A finished run: the requests as given, what happened to each, and the engines with their meters."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from capacity.simulation.record import Record
from capacity.simulation.replica import Replica
from capacity.workload import Requests


class Stopped(Exception):
    """Whoever watches the run's progress does not want it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """``users`` who each send their next request ``think_s`` after the answer to the last."""

    users: int
    think_s: float = 0.0


@dataclass(kw_only=True)
class Run:
    """What a simulation leaves behind.

    ``arrival_s``: when each request was first sent (inf: a closed loop never came to it). ``until_s``: the run was cut
    there. ``notices``: `queueing` notices that kept a client in the line. ``started``: when further engines became ready.
    """

    requests: Requests
    record: Record
    engines: list[Replica]
    refusals: dict[str, int]
    retries: int
    end_s: float
    cancelled: bool = False
    ejections: int = 0
    notices: int = 0
    started: list[float] = field(default_factory=list)
    until_s: float | None = None
    arrival_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
