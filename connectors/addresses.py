"""Addresses: what people type into a URL that can be asked, and which resolved addresses a visitor may reach.

Credentials never stand in a URL here. Left out: the request itself (``http``) and where targets come from
(``targets``).
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import SplitResult, urlsplit, urlunsplit

from connectors.errors import BadTarget, NotAllowed, TimedOut, Unreachable

LOOPBACK, LINK_LOCAL, METADATA = "loopback", "link-local", "metadata"
METADATA_ADDRESSES = frozenset({"169.254.169.254", "fd00:ec2::254", "100.100.100.200", "169.254.170.2"})
METADATA_NAMES = frozenset({"metadata.google.internal", "metadata", "metadata.goog", "instance-data"})
LOOPBACKS: list[tuple[int, IPv4Address | IPv6Address]] = [
    (socket.AF_INET, IPv4Address("127.0.0.1")),
    (socket.AF_INET6, IPv6Address("::1")),
]
NAT64 = ipaddress.ip_network("64:ff9b::/96")
BARE_IPV6 = re.compile(r"^[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F.]*(?:%\w+)?$")
SECRET_PARTS = re.compile(r"(?i)((?:token|key|password|secret|auth\w*|signature|sig)=)[^&#\s]+")

IPAddress = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPolicy:
    """Which addresses may be asked. ``allowed`` names classes that are otherwise refused.

    Operators' own targets use ``OPERATOR``; what a visitor adds is checked against the policy of
    waterline.toml, after name resolution and again for the address that is really connected.
    """

    allowed: frozenset[str] = frozenset()

    def check(self, host: str, address: IPAddress) -> None:
        """NotAllowed where this address is in a class that is not allowed."""
        kind = address_class(address)
        if host.lower().rstrip(".") in METADATA_NAMES:
            kind = METADATA
        if kind is not None and kind not in self.allowed:
            raise NotAllowed(f"{kind} addresses may not be added here; the operator can allow them")


OPERATOR = AddressPolicy(allowed=frozenset({LOOPBACK, LINK_LOCAL, METADATA, "other"}))
VISITOR = AddressPolicy()


def address_class(address: IPAddress) -> str | None:
    """The class of an address that needs permission, None for an ordinary one.

    >>> address_class(ipaddress.ip_address("::ffff:169.254.169.254"))
    'metadata'
    >>> address_class(ipaddress.ip_address("10.0.0.5")) is None
    True
    """
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address in NAT64:
            address = IPv4Address(int(address) & 0xFFFFFFFF)
        elif address.sixtofour is not None:
            address = address.sixtofour
    if str(address).partition("%")[0] in METADATA_ADDRESSES:
        return METADATA
    if address.is_loopback:
        return LOOPBACK
    if address.is_link_local:
        return LINK_LOCAL
    if address.is_unspecified:
        return LOOPBACK
    if address.is_multicast or address.is_reserved:
        return "other"
    return None


def redacted(url: str) -> str:
    """The URL without user, password or secret-looking query values; safe to show.

    >>> redacted("https://u:p@h/metrics?token=abc&x=1")
    'https://h/metrics?token=...&x=1'
    """
    parts = urlsplit(url)
    netloc = parts.netloc.rpartition("@")[2]
    return SECRET_PARTS.sub(r"\1...", urlunsplit(parts._replace(netloc=netloc, fragment="")))


def metrics_url(text: str, *, path: str = "/metrics") -> str:
    """A typed address as a URL that can be asked: scheme and path added, IPv6 in brackets.

    A path that ends in a slash is a base path: ``path`` is added to it. BadTarget says what would be valid.

    >>> metrics_url("gpu-7:8000")
    'http://gpu-7:8000/metrics'
    >>> metrics_url("https://gw.example/team-a/")
    'https://gw.example/team-a/metrics'
    >>> metrics_url("http://[2001:db8::5]:8000/metrics")
    'http://[2001:db8::5]:8000/metrics'
    """
    typed = text.strip()
    scheme, _, rest = typed.rpartition("://") if "://" in typed else ("http", "", typed)
    host_part = rest.split("/", 1)[0]
    if BARE_IPV6.match(host_part):
        address, _, port = host_part.rpartition(":")
        raise BadTarget(
            f"an IPv6 address needs brackets: {scheme}://[{address or '::'}]:{port or 8000}{path}; got {host_part}"
        )
    if scheme.lower() not in ("http", "https"):
        raise BadTarget(f"scheme {scheme[:20]!r} is not valid; valid: http, https")
    parts = _split(f"{scheme}://{rest}")
    if parts.username is not None or parts.password is not None:
        raise BadTarget("credentials do not belong in an address; give them by environment or secrets file")
    if not parts.hostname or re.search(r"\s", rest):
        raise BadTarget("no host in the address; valid: http://host:port/metrics")
    full = parts.path or "/"
    if full.endswith("/"):
        full = full.rstrip("/") + path
    return urlunsplit(parts._replace(path=full, fragment=""))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise BadTarget("the address cannot be read; valid: http://host:port/metrics") from error
    return parts


def resolve(host: str, port: int, *, seconds: float) -> list[tuple[int, IPAddress]]:
    """Address families and addresses of a host, in the resolver's order, bounded in time.

    ``localhost`` is tried in both families even where the system's table has one. The system resolver has no
    deadline of its own, so it runs beside and is left behind when it takes too long. Raises Unreachable, TimedOut.
    """
    literal = _literal(host)
    if literal is not None:
        return [(socket.AF_INET6 if literal.version == 6 else socket.AF_INET, literal)]
    found: list[tuple[int, IPAddress]] = []
    failed: list[Exception] = []

    def look_up() -> None:
        try:
            for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                if family in (socket.AF_INET, socket.AF_INET6):
                    found.append((family, ipaddress.ip_address(str(address[0]))))
        except (OSError, UnicodeError, ValueError) as error:
            failed.append(error)

    thread = threading.Thread(target=look_up, daemon=True, name="resolve")
    thread.start()
    thread.join(max(0.05, seconds))
    if thread.is_alive():
        raise TimedOut(f"the name {host} was not resolved in time")
    if host.lower().rstrip(".") == "localhost":
        found += LOOPBACKS
    elif failed or not found:
        raise Unreachable(f"the name {host} does not resolve")
    return list(dict.fromkeys(found))


def _literal(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def check_all(host: str, addresses: Collection[tuple[int, IPAddress]], policy: AddressPolicy) -> None:
    """NotAllowed where any address of a host is refused: a name with one bad address is refused whole."""
    for _, address in addresses:
        policy.check(host, address)
