"""What replicas are called on the page: their target's name, with the engine's number where a target has several.

A pool of one target knows its engines by number alone; a person who was woken up needs the name.
"""

from __future__ import annotations

from dataclasses import replace

from capacity.telemetry import Signals
from connectors.live_view import LiveView


def named(view: LiveView) -> LiveView:
    """The same view with names that say which server it is."""
    targets = [e.target for e in view.engines]
    names = {
        e.name: e.target if targets.count(e.target) == 1 else f"{e.target}/{e.engine}"
        for e in view.engines
        if e.name == e.engine and e.target and e.target != e.name
    }
    if not names:
        return view
    return replace(
        view,
        engines=tuple(replace(e, name=names.get(e.name, e.name)) for e in view.engines),
        pool=None if view.pool is None else _renamed(view.pool, names),
    )


def _renamed(pool: Signals, names: dict[str, str]) -> Signals:
    values = {
        signal: value
        if value.by_engine is None
        else replace(value, by_engine={names.get(k, k): v for k, v in value.by_engine.items()})
        for signal, value in pool.values.items()
    }
    return replace(pool, values=values, engines=tuple(names.get(k, k) for k in pool.engines))
