"""Errors that name the input, what was seen and what would be valid. Messages never hold a secret."""

from __future__ import annotations


class CapacityError(ValueError):
    """An input of the capacity core is missing, malformed or impossible.

    ``field`` is the scenario key at fault (vLLM's spelling) where one is; the message says what was seen
    and what would be valid, in lower case, as one line.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ConfigError(CapacityError):
    """A model config cannot be read as a decoder language model; the message lists what is missing."""


class UnknownArchitecture(ConfigError):
    """The architecture has no rule here. It can be planned as an upper bound only when the user asks for that."""
