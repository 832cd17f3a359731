"""What can go wrong when the product reads the world. Messages: what was seen, what was expected, never a
secret.
"""

from __future__ import annotations


class ConnectorError(Exception):
    """Something outside could not be read. The message is one lower-case line that is safe to show."""


class Unreachable(ConnectorError):
    """No usable answer: name not found, refused, connection cut, or a status that is not success."""


class TimedOut(ConnectorError):
    """The whole exchange did not finish within its deadline."""


class NotMetrics(ConnectorError):
    """An answer came, but it is not a metrics page of a known engine."""


class TooLarge(ConnectorError):
    """The answer is larger than the cap, before or after decompression."""


class Unauthorised(ConnectorError):
    """The server asks for credentials (401)."""


class Forbidden(ConnectorError):
    """The server refuses these credentials (403)."""


class Redirected(ConnectorError):
    """The server sends the request in a loop or to another host, which is not followed."""


class NotAllowed(ConnectorError):
    """The operator's target policy does not allow this address."""


class BadTarget(ConnectorError):
    """A target's address or settings cannot be used; the message says what would be valid."""


class QueryFailed(ConnectorError):
    """A Prometheus-compatible server answered with an error."""
