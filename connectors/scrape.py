"""One look at one target: the metrics page at a URL, or a recorded page in a file, as a TargetSnapshot.

``scrape`` raises ConnectorError; ``observe`` turns it into a snapshot that is down, with the reason. Left
out: schedules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from capacity.telemetry import EngineSnapshot, State, TargetSnapshot, down
from connectors import exposition, vocabulary
from connectors.engine_config import Limits
from connectors.errors import BadTarget, ConnectorError, NotMetrics, TooLarge
from connectors.http import HttpClient
from connectors.prometheus_snapshots import answer_timelines, instant_snapshot, stale
from connectors.reading import read
from connectors.recordings import CSV_START, table_snapshots
from connectors.targets import Target

FILE_CAP_BYTES = 64_000_000
STALE_AFTER_S = 60.0


def snapshot_of(
    body: bytes,
    *,
    target: str,
    time_s: float,
    content_type: str = "",
    monotonic_s: float | None = None,
    scrape_s: float | None = None,
    address: str | None = None,
    limits: Limits | None = None,
    notes: tuple[str, ...] = (),
) -> TargetSnapshot:
    """A metrics page as a snapshot. Raises NotMetrics where no known engine or GPU speaks on it, TooLarge."""
    page = exposition.parse(body, content_type=content_type, wanted=vocabulary.wanted)
    found = read(page.samples, time_s=time_s, monotonic_s=monotonic_s, complete=page.complete, limits=limits)
    if not found.engines and not found.shared:
        if not page.complete:
            raise NotMetrics("the page is cut before any engine's metrics; expected a whole metrics page")
        raise NotMetrics(
            f"the endpoint answers with {page.names_seen} metric names, none of a known engine: "
            "wrong port, or stats disabled"
        )
    return TargetSnapshot(
        target=target,
        time_s=time_s,
        monotonic_s=monotonic_s,
        scrape_s=scrape_s,
        payload_bytes=len(body),
        address=address,
        state=State.OK if page.complete else State.PARTIAL,
        reason=None if page.complete else next((n for n in page.notes if "partial" in n), "partial page"),
        engines=found.engines,
        shared=found.shared,
        notes=(*notes, *page.notes, *found.notes),
    )


def scrape(
    target: Target,
    *,
    client: HttpClient | None = None,
    wall: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
) -> TargetSnapshot:
    """Ask a target once, within the client's deadline. Raises ConnectorError.

    Pass ``client_for(target)`` as ``client`` to keep the session (and its TLS context) between scrapes.
    """
    if target.kind == "prometheus":
        return instant_snapshot(target, wall=wall, steady=steady)
    client = client or client_for(target)
    answer = client.get(target.url)
    found = snapshot_of(
        answer.body,
        content_type=answer.content_type,
        target=target.name,
        time_s=wall(),
        monotonic_s=steady(),
        scrape_s=answer.elapsed_s,
        address=answer.address,
        limits=target.limits,
        notes=answer.notes,
    )
    return _dated(found)


def _dated(found: TargetSnapshot) -> TargetSnapshot:
    """Engines whose samples carry old time stamps of their own (a federation, a gateway) are marked as
    stale.
    """
    engines = []
    for engine in found.engines:
        age = None if engine.sampled_s is None else found.time_s - engine.sampled_s
        if age is not None and age > STALE_AFTER_S:
            reason = f"stale: the page dates its samples {age:.0f} s ago"
            engine = stale(engine, reason, reachable=True)
        engines.append(engine)
    return replace(found, engines=tuple(engines))


def client_for(target: Target) -> HttpClient:
    """A client with the target's access and policy. Raises BadTarget for unreadable certificate files."""
    return HttpClient(target.access, policy=target.policy)


def observe(
    target: Target,
    *,
    client: HttpClient | None = None,
    wall: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
) -> TargetSnapshot:
    """Like ``scrape``, but a failure is a snapshot that is down and says why."""
    try:
        return scrape(target, client=client, wall=wall, steady=steady)
    except ConnectorError as error:
        return down(target.name, time_s=wall(), monotonic_s=steady(), reason=str(error))


def read_file(path: Path, *, limits: Limits | None = None) -> dict[str, list[TargetSnapshot]]:
    """Target -> snapshots of a recorded page (plain or gzip) or a recorded answer of a Prometheus query API,
    or a table of samples (``t_s`` and a column per metric).

    Raises ConnectorError.
    """
    try:
        with path.open("rb") as file:  # a pipe or a device says no size, so the bytes are counted
            body = file.read(FILE_CAP_BYTES + 1) if path.stat().st_size <= FILE_CAP_BYTES else None
        if body is None or len(body) > FILE_CAP_BYTES:
            raise TooLarge(f"{path.name} is larger than {FILE_CAP_BYTES / 1e6:.0f} MB")
        when = path.stat().st_mtime
    except OSError as error:
        reason = error.strerror.lower() if error.strerror else "unknown cause"
        raise BadTarget(f"{path} cannot be read ({reason}); valid: a URL or a metrics file") from error
    if body.startswith(exposition.GZIP_MAGIC):
        body = exposition.gunzip(body, cap_bytes=FILE_CAP_BYTES)
    name = str(path)
    if body.startswith(CSV_START):
        return {name: table_snapshots(body, target=name, limits=limits)}
    if body.lstrip()[:1] == b"{" and b'"status"' in body[:200]:
        lines, notes = answer_timelines(body, limits=limits)
        found = {place or name: snapshots for place, snapshots in lines.items()}
        newest = next(iter(found.values()))
        newest[-1] = replace(newest[-1], notes=(*newest[-1].notes, *notes))
        return found
    return {name: [snapshot_of(body, target=name, time_s=when, limits=limits)]}


def engine_of(snapshot: TargetSnapshot, engine: str) -> EngineSnapshot | None:
    """The engine of that name in a snapshot."""
    return next((one for one in snapshot.engines if one.engine == engine), None)
