"""One GET with a total deadline, a size cap and a target policy: what arrives, or a ConnectorError.

``requests`` alone has no total deadline and follows redirects anywhere. Here every receive is bound by one
clock, the connected address is the one that was checked, and nothing is sent to another host. No proxy, no
.netrc, no cookies.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from connectors import addresses
from connectors.addresses import OPERATOR, AddressPolicy, redacted
from connectors.errors import (
    BadTarget,
    ConnectorError,
    Forbidden,
    NotMetrics,
    Redirected,
    TimedOut,
    TooLarge,
    Unauthorised,
    Unreachable,
)
from connectors.exposition import GZIP_MAGIC, SIZE_CAP_BYTES

DEADLINE_S = 5.0
SLACK_S = 0.2
MAX_REDIRECTS = 4
CHUNK_BYTES = 65_536
ACCEPT = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"

_call = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a target is asked. Secrets are kept out of ``repr``."""

    token: str | None = field(default=None, repr=False)
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer: decompressed body, content type, the final address (redacted) and how long it took."""

    body: bytes
    content_type: str
    address: str
    elapsed_s: float
    status: int = 200
    notes: tuple[str, ...] = ()


def _left() -> float:
    return float(getattr(_call, "deadline_s", 0.0)) - time.monotonic()


class _Bound:
    """Receiving that never outlives the call's deadline, however slowly bytes trickle in."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        left = _left()
        if left <= 0:
            raise TimeoutError("deadline")
        self.settimeout(left)  # type: ignore[attr-defined]
        return super().recv_into(*args, **kwargs)  # type: ignore[misc]


class _BoundSocket(_Bound, socket.socket):
    pass


class _BoundTls(_Bound, ssl.SSLSocket):
    pass


def _connect(host: str, port: int) -> socket.socket:
    """A socket to an address of ``host`` that the call's policy allows; every address is tried in turn."""
    found = addresses.resolve(host, port, seconds=_left())
    addresses.check_all(host, found, _call.policy)
    failure: OSError | None = None
    for family, address in found:
        left = _left()
        if left <= 0:
            raise TimedOut("no connection in time")
        try:
            sock = _BoundSocket(family, socket.SOCK_STREAM)
        except OSError as error:
            failure = failure or error
            continue
        sock.settimeout(left if address == found[-1][1] else max(0.1, left / 2))
        try:
            sock.connect((str(address), port))
        except OSError as error:
            sock.close()
            failure = error if isinstance(error, ConnectionRefusedError) else failure or error
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(max(0.05, _left()))
        return sock
    if isinstance(failure, TimeoutError):
        raise TimedOut("no connection in time") from failure
    raise Unreachable(_refusal(failure)) from failure


def _refusal(error: OSError | None) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    return f"no connection ({error.strerror.lower() if error and error.strerror else 'unknown cause'})"


class _Plain(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port or 80)


class _Tls(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port or 443)


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _Tls


class _Adapter(HTTPAdapter):
    """requests on the connections above."""

    def __init__(self, access: Access) -> None:
        self._context = _tls_context(access.ca_file, access.client_cert, access.client_key, access.verify)
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """The context above holds what is trusted; requests' own bundle is not loaded over it."""


@lru_cache(maxsize=64)
def _tls_context(
    ca_file: str | None, client_cert: str | None, client_key: str | None, verify: bool
) -> ssl.SSLContext:
    """One context for all targets with the same files: each holds about 1 MB of trusted certificates."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if client_cert:
            context.load_cert_chain(client_cert, client_key)
    except (OSError, ssl.SSLError) as error:
        raise BadTarget(
            "the CA file or client certificate of this target cannot be read; valid: PEM files"
        ) from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = _BoundTls
    return context


class HttpClient:
    """GETs for one target. Not shared between threads at the same time."""

    def __init__(
        self,
        access: Access | None = None,
        *,
        policy: AddressPolicy = OPERATOR,
        deadline_s: float = DEADLINE_S,
        cap_bytes: int = SIZE_CAP_BYTES,
    ) -> None:
        self._access = access or Access()
        self._policy = policy
        self._deadline_s = deadline_s
        self._cap_bytes = cap_bytes
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = self._access.verify
        adapter = _Adapter(self._access)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def close(self) -> None:
        """Give up the session's connections."""
        self._session.close()

    def get(self, url: str, *, accept: str = ACCEPT, errors_too: bool = False) -> Answer:
        """The answer at ``url``. ``errors_too``: hand back answers with an error status instead of raising.

        Raises Unreachable, TimedOut, TooLarge, Unauthorised, Forbidden, Redirected, NotAllowed, BadTarget;
        none of the messages holds a credential.
        """
        started = time.monotonic()
        _call.deadline_s = started + self._deadline_s - SLACK_S
        _call.policy = self._policy
        try:
            return self._follow(url, accept=accept, started=started, errors_too=errors_too)
        except ConnectorError:
            raise
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise _translated(error, self._deadline_s) from None

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {
            "Accept": accept,
            "Accept-Encoding": "gzip",
            "User-Agent": "waterline",
            "Connection": "close",
        }
        headers |= dict(self._access.headers)
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token}"
        elif self._access.username is not None:
            pair = f"{self._access.username}:{self._access.password or ''}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return headers

    def _follow(self, url: str, *, accept: str, started: float, errors_too: bool) -> Answer:
        seen = [url]
        while True:
            response = self._session.get(
                url,
                headers=self._headers(accept),
                stream=True,
                allow_redirects=False,
                timeout=self._deadline_s,
            )
            with response:
                self._session.cookies.clear()
                location = response.headers.get("Location")
                if response.status_code in (301, 302, 303, 307, 308) and location:
                    url = _next(url, location, seen)
                    seen.append(url)
                    continue
                if not errors_too:
                    _check_status(response.status_code)
                body = self._body(response)
            notes = (f"redirected to {redacted(url)}",) if len(seen) > 1 else ()
            return Answer(
                body=body,
                content_type=response.headers.get("Content-Type", ""),
                address=redacted(url),
                elapsed_s=time.monotonic() - started,
                status=response.status_code,
                notes=notes,
            )

    def _body(self, response: requests.Response) -> bytes:
        """The body, decompressed while it arrives; never more than the cap in memory."""
        cap = self._cap_bytes
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise NotMetrics(f"the body is compressed with {encoding[:20]!r}; valid: gzip, deflate or none")
        unpack: Any = None
        pieces: list[bytes] = []
        size = received = 0
        for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
            if _left() <= 0:
                raise TimeoutError("deadline")
            received += len(chunk)
            if received == len(chunk) and (encoding in ("gzip", "x-gzip", "deflate")):
                gzipped = chunk.startswith(GZIP_MAGIC)
                if gzipped or encoding == "deflate":
                    unpack = zlib.decompressobj(wbits=47 if gzipped or chunk[:1] == b"\x78" else -15)
            if unpack is not None:
                try:
                    chunk = unpack.decompress(chunk, cap - size + 1)
                except zlib.error:
                    raise NotMetrics("the compressed body is damaged; expected a metrics page") from None
            size += len(chunk)
            if size > cap:
                raise TooLarge(f"the page is larger than {cap / 1e6:.0f} MB; the cap protects this host")
            pieces.append(chunk)
        if _left() <= 0:
            raise TimeoutError("deadline")
        if unpack is not None and not unpack.eof:
            raise Unreachable(f"the connection was cut: the compressed body ends after {received} bytes")
        return b"".join(pieces)


def _next(url: str, location: str, seen: list[str]) -> str:
    target = urljoin(url, location)
    old, new = urlsplit(url), urlsplit(target)
    if new.username is not None or new.scheme not in ("http", "https"):
        raise Redirected("redirected to an address that is not followed; valid: the same host")
    same_port = (old.port or _default(old.scheme)) == (new.port or _default(new.scheme))
    upgraded = old.scheme == "http" and new.scheme == "https"
    if (
        old.hostname != new.hostname
        or not (same_port or upgraded)
        or (old.scheme, new.scheme) == ("https", "http")
    ):
        raise Redirected(f"redirected to another host ({(new.hostname or '')[:80]}), which is not followed")
    if target in seen or len(seen) > MAX_REDIRECTS:
        raise Redirected("redirected in a loop")
    return target


def _default(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _check_status(status: int) -> None:
    if status == 401:
        raise Unauthorised("the server asks for credentials (401); give them by environment or secrets file")
    if status == 403:
        raise Forbidden("the server refuses these credentials (403)")
    if status == 404:
        raise Unreachable("no page at this path (404); vLLM serves /metrics on its API port")
    if not 200 <= status < 300:
        raise Unreachable(f"the server answered with status {status}; expected 200")


def _translated(error: Exception, deadline_s: float) -> ConnectorError:
    """The library's error as one of ours. Its text is not passed on: it may hold the URL."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain and len(chain) < 12:
        chain.append(link)
        args = [a for a in link.args if isinstance(a, BaseException)]
        link = link.__cause__ or (args[0] if args else link.__context__)
    timeouts = (TimeoutError, requests.Timeout, urllib3.exceptions.TimeoutError)
    if _left() <= 0 or any(isinstance(one, timeouts) for one in chain):
        return TimedOut(f"no whole answer within {deadline_s:g} s")
    for one in chain:
        if isinstance(one, ssl.SSLCertVerificationError):
            return Unreachable(
                f"the certificate cannot be verified ({one.verify_message or 'unknown cause'})"
            )
        if isinstance(one, ssl.SSLError):
            return Unreachable("no TLS connection: is this an https port?")
    for one in chain:
        if isinstance(one, http.client.BadStatusLine) and not isinstance(one, ConnectionError):
            return Unreachable("the port answers, but not in HTTP")
    if any(isinstance(one, ConnectionError | urllib3.exceptions.ProtocolError) for one in chain):
        return Unreachable("the connection was cut before the answer was whole")
    if any(isinstance(one, requests.exceptions.InvalidURL | UnicodeError) for one in chain):
        return BadTarget("the address cannot be read; valid: http://host:port/metrics")
    return Unreachable(f"the answer cannot be read as HTTP ({type(chain[-1]).__name__})")
