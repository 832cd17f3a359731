"""A page's link: widget values as a query string, and a long text (a pasted config.json) packed into one value.

Left out: secrets. Nothing secret is ever an input of a page that has a link.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit, urlunsplit

from capacity.errors import CapacityError

MAX_PACKED = 12_000
MAX_TEXT = 4_000_001


def pack(text: str) -> str | None:
    """``text`` compressed for a link, None when it would make the link too long.

    >>> unpack(pack('{"hidden_size": 4096}'))
    '{"hidden_size": 4096}'
    """
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode().rstrip("=")
    return packed if len(packed) <= MAX_PACKED else None


def unpack(packed: str) -> str:
    """The text of ``pack``. Raises CapacityError when the link was cut, changed or holds too much."""
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        stream = zlib.decompressobj()
        text = stream.decompress(data, MAX_TEXT).decode("utf-8")
    except (binascii.Error, zlib.error, ValueError):
        raise CapacityError("the config in the link is damaged; paste the config.json again") from None
    if not stream.eof:
        raise CapacityError("the config in the link is cut or too large; paste the config.json again")
    return text


def link(page_url: str, values: Mapping[str, str]) -> str:
    """The address of a page with its inputs.

    >>> link("http://localhost:8501/?old=1", {"plan_gpu": "h100-sxm"})
    'http://localhost:8501/?plan_gpu=h100-sxm'
    """
    parts = urlsplit(page_url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path or "/", urlencode(dict(values)), ""))
