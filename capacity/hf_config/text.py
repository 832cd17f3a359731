"""A config.json's text to one JSON object, with limits on size, depth and number of values.

What it answers: is this a model config at all? Left out: what the fields mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from capacity.errors import ConfigError

MAX_CHARACTERS = 4_000_000
MAX_DEPTH = 64
MAX_VALUES = 1_000_000


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object's pairs as a dict. Raises ConfigError that names a key written twice: which one holds is a guess."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        shown = twice[:60] if twice.isprintable() else json.dumps(twice[:60])
        raise ConfigError(f"the key {shown!r} is written twice in one object; expected it once", field=shown)
    return found


def config_from_text(text: str) -> dict[str, Any]:
    """The JSON object in ``text``. Raises ConfigError: too long, HTML, not JSON, not an object, nested too
    deeply.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"the config has {len(text):,} characters; expected at most {MAX_CHARACTERS:,}")
    start = text.lstrip("\ufeff \t\r\n")
    if not start:
        raise ConfigError("the config is empty; expected a JSON object as in config.json")
    if start[0] == "<":
        raise ConfigError("the config is an HTML or XML page; expected the JSON object of config.json")
    try:
        value = json.loads(start, object_pairs_hook=unique_keys)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"the config is nested too deeply; expected at most {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"the config is not JSON: {error.msg.lower()} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:
        raise ConfigError("the config holds a number of more than 4,300 digits") from None
    return checked_object(value)


def checked_object(value: Any) -> dict[str, Any]:
    """``value`` as a dict of bounded depth and size. Raises ConfigError."""
    if not isinstance(value, Mapping):
        kind = {list: "an array", str: "a text", bool: "true or false", type(None): "null"}.get(
            type(value), "a number"
        )
        raise ConfigError(f"the config is {kind}; expected the JSON object of config.json")
    if not value:
        raise ConfigError(
            "the config is an empty object; expected at least the layers, heads and hidden size"
        )
    level: list[Any] = [value]
    total = 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            below.extend(item.values() if isinstance(item, Mapping) else item)
        total += len(below)
        if total > MAX_VALUES:
            raise ConfigError(f"the config holds more than {MAX_VALUES:,} values")
        level = [item for item in below if isinstance(item, Mapping | list | tuple)]
        if not level:
            return dict(value)
    raise ConfigError(f"the config is nested too deeply; expected at most {MAX_DEPTH} levels")
