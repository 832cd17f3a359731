"""What replicas are called on the page: their target's name, with the engine's number where a target has several,
and what all long names share left out. Files and links keep whole names.

A pool of one target knows its engines by number alone; a person who was woken up needs the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from capacity.telemetry import Signals
from capacity.verdicts import Verdict
from connectors.live_view import LiveView

LONG = 15


def named(view: LiveView) -> LiveView:
    """The same view with names that say which server it is."""
    targets = [e.target for e in view.engines]
    return _renamed(
        view,
        {
            e.name: e.target if targets.count(e.target) == 1 else f"{e.target}/{e.engine}"
            for e in view.engines
            if e.name == e.engine and e.target and e.target != e.name
        },
    )


def brief(view: LiveView) -> tuple[LiveView, dict[str, str]]:
    """The same view with short names, in its verdicts too, and whole name -> short name."""
    names = short_names([e.name for e in view.engines])
    found = _renamed(view, names)
    if not names:
        return found, names
    engines = tuple(replace(e, verdict=with_names(e.verdict, names)) for e in found.engines)
    verdict = None if found.verdict is None else with_names(found.verdict, names)
    return replace(found, engines=engines, verdict=verdict), names


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Whole name -> its part that differs, with a word before it; empty where names are short or would not differ.

    >>> short_names(["llama-prod-replica-10.prod.svc", "llama-prod-replica-2.prod.svc"])["llama-prod-replica-2.prod.svc"]
    'replica-2'
    >>> short_names(["http://10.0.0.12:8000", "http://10.0.0.13:8000"])["http://10.0.0.12:8000"]
    '10.0.0.12'
    """
    if len(names) < 2 or max(map(len, names)) <= LONG:
        return {}
    words = [re.findall(r"[^-_/.:]+|[-_/.:]+", name) for name in names]
    start, end = _shared(words), _shared([w[::-1] for w in words])
    first = words[0]
    while start >= 2 and first[start - 1] in (".", ":"):  # a dotted name is one word
        start -= 2
    if (
        start >= 2
        and first[start - 1] in ("-", "_")
        and all(w[start : start + 1][0].isdigit() for w in words)
    ):
        start -= 2
    found = {name: "".join(w[start : len(w) - end]) for name, w in zip(names, words, strict=True)}
    told_apart = len(set(found.values())) == len(names) and all(found.values())
    return found if told_apart and any(name != short for name, short in found.items()) else {}


def _shared(words: Sequence[Sequence[str]]) -> int:
    """How many words all begin with, leaving each at least one."""
    most = min(map(len, words)) - 1
    return next((i for i in range(most) if len({w[i] for w in words}) > 1), max(most, 0))


def retold(text: str, names: Mapping[str, str]) -> str:
    """``text`` with whole names replaced by short ones."""
    if not names:
        return text
    whole = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w.-])(?:{whole})(?![\w-])", lambda m: names[m[0]], text)


def with_names(found: Verdict, names: Mapping[str, str]) -> Verdict:
    """The verdict in short names."""
    return replace(
        found,
        summary=retold(found.summary, names),
        evidence=tuple(replace(one, text=retold(one.text, names)) for one in found.evidence),
    )


def _renamed(view: LiveView, names: Mapping[str, str]) -> LiveView:
    if not names:
        return view
    return replace(
        view,
        engines=tuple(replace(e, name=names.get(e.name, e.name)) for e in view.engines),
        pool=None if view.pool is None else _pool(view.pool, names),
    )


def _pool(pool: Signals, names: Mapping[str, str]) -> Signals:
    values = {
        signal: value
        if value.by_engine is None
        else replace(value, by_engine={names.get(k, k): v for k, v in value.by_engine.items()})
        for signal, value in pool.values.items()
    }
    return replace(pool, values=values, engines=tuple(names.get(k, k) for k in pool.engines))
