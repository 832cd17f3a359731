"""HTTP routes beside the pages: health, the pool as JSON, the targets. Read-only.

``app.py`` mounts ``routes()``. Errors are JSON with one sentence. Left out: the live service itself
(service).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from capacity.intervals import Interval
from capacity.live_series import PoolSeries, pool_series
from connectors.live_view import as_json, targets_json
from connectors.service import LiveService, running

WINDOW_S = (60.0, 7 * 86_400.0)
POINTS = (2, 2000)


class BadRequest(ValueError):
    """A query parameter is not valid; the message says what would be."""


async def health(_: Request) -> Response:
    """200 while the poller runs and, if there are targets, at least one answers; else 503 with the reason."""
    service = await asyncio.to_thread(running)
    view = await asyncio.to_thread(service.view)
    problems = [p for p in (service.settings_problem, service.history_problem) if p]
    lost = bool(view.targets) and not view.answering and not view.waiting_for
    body = {
        "ok": not lost,
        "targets": len(view.targets),
        "answering": view.answering,
        "demo": view.demo,
        "problems": problems,
    }
    return JSONResponse(body, status_code=503 if lost else 200, headers=_NO_STORE)


async def pool(_: Request) -> Response:
    """The latest view: engines, pool, verdicts."""
    service = await asyncio.to_thread(running)
    return JSONResponse(as_json(await asyncio.to_thread(service.view)), headers=_NO_STORE)


async def targets(_: Request) -> Response:
    """Targets with state, age and what asking them costs."""
    service = await asyncio.to_thread(running)
    return JSONResponse(targets_json(await asyncio.to_thread(service.view)), headers=_NO_STORE)


async def series(request: Request) -> Response:
    """Lines of the last ``seconds`` (60 to 604800, default 900) in about ``points`` steps (2 to 2000)."""
    seconds = _number(request, "seconds", 900.0, WINDOW_S)
    points = _number(request, "points", 300, POINTS)
    if points != int(points):
        raise BadRequest(
            f"points={points:g} is not valid; valid: a whole number, {POINTS[0]:g} to {POINTS[1]:g}"
        )
    service = await asyncio.to_thread(running)
    return JSONResponse(await asyncio.to_thread(_series, service, seconds, int(points)), headers=_NO_STORE)


def _series(service: LiveService, seconds: float, points: int) -> dict[str, Any]:
    end_s = time.time()
    found: list[Interval] = service.window(end_s - seconds, end_s, points=points)
    drawn: PoolSeries = pool_series(found, step_s=max(seconds / points, service.poller.interval_s))
    return {
        "times_s": list(drawn.times_s),
        "step_s": drawn.step_s,
        "kv_usage": [
            {"target": target, "engine": engine, "values": list(line)}
            for (target, engine), line in drawn.kv_usage.items()
        ],
        "totals": {name: list(line) for name, line in drawn.totals.items()},
        "rates_per_s": {name: list(line) for name, line in drawn.rates.items()},
        "engines_known": list(drawn.known),
    }


def _number(request: Request, name: str, default: float, limits: tuple[float, float]) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not limits[0] <= value <= limits[1]:
        raise BadRequest(f"{name}={text[:40]} is not valid; valid: {limits[0]:g} to {limits[1]:g}")
    return value


def _guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except BadRequest as error:
            return JSONResponse({"error": str(error)}, status_code=422, headers=_NO_STORE)

    return answer


_NO_STORE = {"Cache-Control": "no-store"}


def routes() -> list[Route]:
    """GET /api/health, /api/pool, /api/targets, /api/series; any other path under /api/ is a 404 in JSON."""
    endpoints = (health, pool, targets, series)
    names = ", ".join(f"/api/{endpoint.__name__}" for endpoint in endpoints)

    async def missing(request: Request) -> Response:
        text = f"{request.url.path[:80]} is not known; known: {names}"
        return JSONResponse({"error": text}, status_code=404, headers=_NO_STORE)

    return [
        *(Route(f"/api/{endpoint.__name__}", _guarded(endpoint), methods=["GET"]) for endpoint in endpoints),
        Route("/api/{path:path}", missing),
    ]
