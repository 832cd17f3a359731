"""The ``workload`` object of a scenario: arrivals, lengths, classes, images, or the requests themselves.

Left out: traces (capacity.request_trace).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from capacity.errors import CapacityError
from capacity.simulation import scenario as keys
from capacity.simulation.run import ClosedLoop
from capacity.workload import (
    MAX_REQUESTS,
    MAX_TOKENS,
    ArrivalProcess,
    Lengths,
    RequestClass,
    Requests,
    Workload,
)

WORKLOAD_KEYS = (
    "arrival",
    "prompt_tokens",
    "output_tokens",
    "num_requests",
    "requests",
    "classes",
    "images",
    "shared_prefix_tokens",
    "prefix_groups",
    "prefix_skew",
    "priorities",
    "sessions",
)
_LENGTH = ("distribution", "mean", "value", "cv", "min", "max", "values", "parts", "weight")
_REQUEST = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "priority",
    "prefix_id",
    "prefix_tokens",
    "session",
    "deadline_s",
)


def read_workload(
    given: Any, *, seed: int, lengths: Mapping[str, Lengths]
) -> tuple[Requests, ClosedLoop | None]:
    """Requests of a ``workload`` object; ``lengths``: the planner's lengths, where the workload gives none."""
    values = keys.mapping(given, "workload")
    keys.refuse_unknown(values, WORKLOAD_KEYS, "workload")
    if values.get("requests") is not None:
        others = [key for key in values if key != "requests"]
        if others:
            raise CapacityError(
                f"workload has requests and {others[0]}; expected requests alone, or arrival and lengths",
                field="workload.requests",
            )
        return _listed(values["requests"]), None
    arrival = _arrival(values.get("arrival"))
    sizes = {}
    for name in ("prompt_tokens", "output_tokens"):
        if values.get(name) is not None:
            sizes[name] = length_of(values[name], f"workload.{name}")
        elif name in lengths:
            sizes[name] = lengths[name]
        elif values.get("classes") is None:
            raise CapacityError(
                f"workload.{name} is missing; expected a distribution", field=f"workload.{name}"
            )
    priorities, weights = _priorities(values.get("priorities"))
    images = keys.mapping(values["images"], "workload.images") if values.get("images") is not None else {}
    keys.refuse_unknown(images, ("share", "tokens", "per_request"), "workload.images")
    workload = Workload(
        arrival=arrival,
        prompt_tokens=sizes.get("prompt_tokens", Lengths()),
        output_tokens=sizes.get("output_tokens", Lengths()),
        num_requests=keys.number(
            values.get("num_requests", 1000), "workload.num_requests", whole=True, low=1, high=MAX_REQUESTS
        ),
        classes=_classes(values.get("classes")),
        image_share=keys.number(
            images.get("share", 1.0 if images else 0.0), "workload.images.share", high=1.0
        ),
        image_tokens=keys.number(
            images.get("tokens", 0), "workload.images.tokens", whole=True, high=MAX_TOKENS
        )
        * keys.number(images.get("per_request", 1), "workload.images.per_request", whole=True, high=1000),
        shared_prefix_tokens=keys.number(
            values.get("shared_prefix_tokens", 0),
            "workload.shared_prefix_tokens",
            whole=True,
            high=MAX_TOKENS,
        ),
        prefix_groups=keys.number(
            values.get("prefix_groups", 1), "workload.prefix_groups", whole=True, low=1, high=MAX_REQUESTS
        ),
        prefix_skew=keys.number(values.get("prefix_skew", 0.0), "workload.prefix_skew", high=10),
        priorities=priorities,
        priority_weights=weights,
        sessions=keys.number(values.get("sessions", 0), "workload.sessions", whole=True, high=MAX_REQUESTS),
    )
    loop = None
    if arrival.process == "closed_loop":
        loop = ClosedLoop(users=arrival.users, think_s=arrival.think_s)
    return workload.requests(seed), loop


def _arrival(given: Any) -> ArrivalProcess:
    if given is None:
        raise CapacityError(
            "workload.arrival is missing; expected process and rate_rps", field="workload.arrival"
        )
    values = keys.mapping(given, "workload.arrival")
    process = values.get("process", "poisson")
    if process not in ("closed_loop", "burst") and values.get("rate_rps") is None:
        raise CapacityError("workload.arrival.rate_rps is missing", field="workload.arrival.rate_rps")
    if process == "burst" and values.get("rate_rps") is None:
        values["rate_rps"] = 0.0
        values.setdefault("burst_size", MAX_REQUESTS)
    return keys.build(ArrivalProcess, values, "workload.arrival")


def length_of(given: Any, where: str = "length") -> Lengths:
    """A distribution from a number, the planner's {mean, cv} or a ``distribution`` object."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return Lengths(mean=keys.number(given, where, high=MAX_TOKENS), low=0)
    values = keys.mapping(given, where)
    keys.refuse_unknown(values, _LENGTH, where)
    default = "empirical" if "values" in values else "lognormal" if values.get("cv") else "constant"
    kind = values.get("distribution", "mixture" if "parts" in values else default)
    if kind == "lognormal" or kind == "exponential" or kind == "constant":
        mean = values.get("mean", values.get("value"))
        if mean is None:
            raise CapacityError(f"{where}.mean is missing", field=f"{where}.mean")
    else:
        mean = values.get("mean", 1.0)
    low = keys.number(
        values.get("min", 0 if kind == "constant" else 1), f"{where}.min", whole=True, high=MAX_TOKENS
    )
    high = keys.number(values.get("max", MAX_TOKENS), f"{where}.max", whole=True, low=low, high=MAX_TOKENS)
    if kind == "uniform" and ("min" not in values or "max" not in values):
        raise CapacityError(f"{where} is uniform and needs min and max", field=where)
    drawn: tuple[int, ...] = ()
    if values.get("values") is not None:
        many = values["values"]
        if not isinstance(many, list | tuple) or not 1 <= len(many) <= 1_000_000:
            raise CapacityError(
                f"{where}.values is {keys.seen(many)}; expected a list of 1 to 1,000,000 token counts",
                field=f"{where}.values",
            )
        drawn = tuple(keys.number(item, f"{where}.values", whole=True, high=MAX_TOKENS) for item in many)
    parts: tuple[Lengths, ...] = ()
    weights: tuple[float, ...] = ()
    if values.get("parts") is not None:
        many = values["parts"]
        if not isinstance(many, list) or not 1 <= len(many) <= 100:
            raise CapacityError(
                f"{where}.parts is {keys.seen(many)}; expected a list of 1 to 100 distributions",
                field=f"{where}.parts",
            )
        parts = tuple(length_of(item, f"{where}.parts[{index}]") for index, item in enumerate(many))
        weights = tuple(
            keys.number(
                keys.mapping(item, where).get("weight", 1.0), f"{where}.parts[{index}].weight", low=1e-9
            )
            for index, item in enumerate(many)
        )
    return Lengths(
        distribution=kind,
        mean=keys.number(mean, f"{where}.mean", high=MAX_TOKENS),
        cv=keys.number(values.get("cv", 1.0), f"{where}.cv", high=100),
        low=low,
        high=high,
        values=drawn,
        parts=parts,
        weights=weights,
    )


def _priorities(given: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """``priorities``: {"0": 0.8, "5": 0.2}, priority value -> weight."""
    if given is None:
        return (0,), (1.0,)
    values = keys.mapping(given, "workload.priorities")
    if not 1 <= len(values) <= 1000:
        raise CapacityError(
            "workload.priorities is empty; expected priority: weight", field="workload.priorities"
        )
    ranks: list[int] = []
    for key in values:
        if not re.fullmatch(r"[-+]?\d{1,9}", key.strip()):
            raise CapacityError(
                f"workload.priorities has {key[:40]!r}; expected whole numbers of at most nine digits as keys",
                field="workload.priorities",
            )
        ranks.append(int(key))
    weights = tuple(keys.number(item, "workload.priorities", low=1e-9) for item in values.values())
    return tuple(ranks), weights


def _classes(given: Any) -> tuple[RequestClass, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not 1 <= len(given) <= 100:
        raise CapacityError(
            f"workload.classes is {keys.seen(given)}; expected a list of 1 to 100 classes",
            field="workload.classes",
        )
    found = []
    for index, item in enumerate(given):
        where = f"workload.classes[{index}]"
        values = keys.mapping(item, where)
        keys.refuse_unknown(values, ("weight", "prompt_tokens", "output_tokens", "priority"), where)
        for name in ("prompt_tokens", "output_tokens"):
            if values.get(name) is None:
                raise CapacityError(f"{where}.{name} is missing", field=f"{where}.{name}")
        found.append(
            RequestClass(
                weight=keys.number(values.get("weight", 1.0), f"{where}.weight", low=1e-9),
                prompt_tokens=length_of(values["prompt_tokens"], f"{where}.prompt_tokens"),
                output_tokens=length_of(values["output_tokens"], f"{where}.output_tokens"),
                priority=keys.number(
                    values.get("priority", 0), f"{where}.priority", whole=True, low=-1e9, high=1e9
                ),
            )
        )
    return tuple(found)


def _listed(given: Any) -> Requests:
    """``requests``: a list of objects."""
    if not isinstance(given, list):
        raise CapacityError(
            f"workload.requests is {keys.seen(given)}; expected a list", field="workload.requests"
        )
    if not 1 <= len(given) <= MAX_REQUESTS:
        raise CapacityError(
            f"workload.requests has {len(given)} entries; expected 1 or more", field="workload.requests"
        )
    arrival: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    priority: list[int] = []
    prefixes: list[tuple[object, ...] | None] = []
    sessions: list[int] = []
    deadlines: list[float] = []
    shared = {0}
    for index, item in enumerate(given):
        where = f"workload.requests[{index}]"
        values = keys.mapping(item, where)
        keys.refuse_unknown(values, _REQUEST, where)
        arrival.append(keys.number(values.get("arrival_s", 0.0), f"{where}.arrival_s", low=-1e12))
        prompt.append(
            keys.number(values.get("prompt_tokens"), f"{where}.prompt_tokens", whole=True, high=MAX_TOKENS)
        )
        output.append(
            keys.number(values.get("output_tokens"), f"{where}.output_tokens", whole=True, high=MAX_TOKENS)
        )
        rank = values.get("priority")
        priority.append(
            keys.number(0 if rank is None else rank, f"{where}.priority", whole=True, low=-1e9, high=1e9)
        )
        sessions.append(keys.number(values.get("session", 0), f"{where}.session", whole=True))
        limit = keys.number(
            values.get("deadline_s"), f"{where}.deadline_s", low=1e-9, high=1e9, optional=True
        )
        deadlines.append(float("inf") if limit is None else limit)
        if values.get("prefix_id") is None:
            prefixes.append(None)
        else:
            tokens = keys.number(
                values.get("prefix_tokens"), f"{where}.prefix_tokens", whole=True, low=1, high=MAX_TOKENS
            )
            shared.add(tokens)
            prefixes.append((str(values["prefix_id"])[:100],))
    if len(shared) > 2:
        raise CapacityError(
            "prefix_tokens differ between requests; expected one length", field="prefix_tokens"
        )
    found = Requests.of(
        arrival_s=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        priority=priority,
        prefixes=prefixes if len(shared) > 1 else None,
        prefix_key_tokens=max(shared) or 16,
        sessions=sessions,
        deadline_s=deadlines if min(deadlines) < float("inf") else None,
    )
    first = float(found.arrival_s[0])
    if first < 0 or first > 1e7:
        note = "arrival times are absolute and were rebased to the first arrival"
        found = replace(found, arrival_s=np.asarray(found.arrival_s - first), notes=(*found.notes, note))
    return found
