"""Typed reading of one section of a config.json: aliases, ranges and one clear sentence per fault.

Source: catalog/config_names.csv (spellings and valid ranges). Left out: what a field means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from capacity.catalog.table import read_table
from capacity.errors import ConfigError

MAX_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A field's valid range and its spellings, the first one found wins."""

    low: int
    high: int
    aliases: tuple[str, ...]


@lru_cache(maxsize=1)
def names() -> dict[str, Name]:
    """The table of spellings."""
    return {
        row["field"]: Name(
            low=int(row["low"]), high=int(row["high"]), aliases=tuple(row["aliases"].split("|"))
        )
        for row in read_table("config_names")
    }


def seen(value: Any) -> str:
    """What was seen, short enough for one line."""
    if isinstance(value, str):
        return f"{json.dumps(value[:40])} (text)"
    if isinstance(value, bool | type(None)):
        return json.dumps(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else "a number of more than 15 digits"
    if isinstance(value, float):
        return f"{value:g}"
    return "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else "no number"


def _is_finite(value: Any) -> bool:
    """Whether ``value`` is a number that is neither NaN nor infinite; a whole number of any size is finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


class Reader:
    """One section (``name`` is "" at the top) with a family's defaults behind it."""

    def __init__(
        self, section: Mapping[str, Any], *, name: str = "", defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.section = section
        self.name = name
        self.defaults = defaults or {}
        self.notes: list[str] = []

    def path(self, key: str) -> str:
        """The field's full name for a message."""
        plain = key[:60] if key.isprintable() else json.dumps(key[:60])
        return f"{self.name}.{plain}" if self.name else plain

    def spelling(self, field: str) -> str | None:
        """The spelling of ``field`` that this section uses with a value, or None."""
        known = names().get(field)
        for alias in known.aliases if known else (field,):
            if self.section.get(alias) is not None:
                return alias
        return None

    def raw(self, field: str) -> Any:
        """The value as written, else the family's default, else None."""
        alias = self.spelling(field)
        return self.section[alias] if alias is not None else self.defaults.get(field)

    def integer(self, field: str, *, low: int | None = None, high: int | None = None) -> int | None:
        """A whole number in its range, or None when absent. Raises ConfigError."""
        value = self.raw(field)
        if value is None:
            return None
        if isinstance(value, list):
            raise ConfigError(
                f"{self.path(self.spelling(field) or field)} is a list; expected one whole number"
            )
        return self.check(field, value, low=low, high=high)

    def required(self, field: str) -> int:
        """A whole number that the model cannot be planned without. Raises ConfigError that names its
        spellings.
        """
        value = self.integer(field)
        if value is None:
            known = names()[field]
            other = ", ".join([alias for alias in known.aliases if alias != field][:3])
            where = f" in {self.name}" if self.name else ""
            raise ConfigError(
                f"{field} is missing{where}; expected a whole number from {known.low:,} to {known.high:,}"
                + (f" (also read as {other})" if other else ""),
                field=field,
            )
        return value

    def per_layer(self, field: str, layers: int) -> list[int | None]:
        """One value per layer: a list as written (0 and null allowed), or one number for all."""
        value = self.raw(field)
        if not isinstance(value, list):
            return [self.integer(field)] * layers
        label = self.path(self.spelling(field) or field)
        if len(value) != layers:
            raise ConfigError(
                f"{label} has {len(value)} entries; expected one for each of the {layers} layers"
            )
        return [None if item is None else self.check(field, item, low=0) for item in value]

    def check(self, field: str, value: Any, *, low: int | None = None, high: int | None = None) -> int:
        """``value`` as a whole number within the field's range. Raises ConfigError."""
        known = names().get(field)
        low = low if low is not None else known.low if known else 0
        high = high if high is not None else known.high if known else 10**12
        label = self.path(self.spelling(field) or field)
        good = _is_finite(value)
        if not good or value != int(value) or not low <= value <= high:
            raise ConfigError(
                f"{label} is {seen(value)}; expected a whole number from {low:,} to {high:,}", field=field
            )
        return int(value)

    def number(self, key: str, *, default: float | None = None) -> float | None:
        """A finite number, or the default when absent. Raises ConfigError."""
        value = self.raw(key)
        if value is None:
            return default
        if not _is_finite(value) or not 0 <= value <= MAX_NUMBER:
            raise ConfigError(
                f"{self.path(key)} is {seen(value)}; expected a number from 0 to {MAX_NUMBER:,}", field=key
            )
        return float(value)

    def flag(self, key: str, *, default: bool | None = None) -> bool | None:
        """true or false, or the default when absent. Raises ConfigError."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool) and value not in (0, 1):
            raise ConfigError(f"{self.path(key)} is {seen(value)}; expected true or false", field=key)
        return bool(value)

    def text(self, key: str) -> str | None:
        """A text's first 100 characters, or None when absent. Raises ConfigError."""
        value = self.text_of(key)
        return value[:100] if value is not None else None

    def text_of(self, key: str) -> str | None:
        """A whole text, or None when absent. Raises ConfigError."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise ConfigError(f"{self.path(key)} is {seen(value)}; expected a text", field=key)
        return value

    def listed(self, key: str, *, length: int | None = None) -> Sequence[Any] | None:
        """A list (of ``length`` entries), or None when absent. Raises ConfigError."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise ConfigError(f"{self.path(key)} is {seen(value)}; expected a list", field=key)
        if length is not None and len(value) != length:
            raise ConfigError(
                f"{self.path(key)} has {len(value)} entries; expected one for each of the {length} layers",
                field=key,
            )
        return value

    def mapping(self, key: str) -> Reader | None:
        """A nested object as a reader, or None when absent. Raises ConfigError."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self.path(key)} is {seen(value)}; expected an object", field=key)
        return Reader(value, name=self.path(key))
