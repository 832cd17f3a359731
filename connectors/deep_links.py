"""A page opened by its own address (``/live``) tells the browser where the app begins.

Streamlit's script in the browser first tries ``/live/_stcore/health``, reports two 404s in the console and waits
before it tries ``/_stcore/health``. It asks the right address at once where ``window.__streamlit`` names it. What
lies before the page's name (a proxy's prefix) stays in the address. Left out: the app's start page.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEAD = b"<head>"
SCRIPT = b"""<head>
    <script>
      {
        const app = new URL(".", location.href.split(/[?#]/)[0].replace(/\\/+$/, ""))
        window.__streamlit = { ...window.__streamlit, BACKEND_BASE_URL: app.href }
      }
    </script>"""


class DeepLinks:
    """ASGI middleware: adds one line of script to the HTML that answers a page's own address."""

    def __init__(self, app: ASGIApp, *, pages: Collection[str]) -> None:
        self._app = app
        self._pages = frozenset(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything else through untouched."""
        if scope["type"] != "http" or scope["method"] != "GET" or not self._is_page(scope["path"]):
            await self._app(scope, receive, send)
            return
        plain = [(name, value) for name, value in scope["headers"] if name.lower() != b"accept-encoding"]
        await self._app({**scope, "headers": plain}, receive, _Inserting(send))

    def _is_page(self, path: str) -> bool:
        return path.rstrip("/").rpartition("/")[2] in self._pages


class _Inserting:
    """Holds an HTML answer back until it is whole, then sends it with the script and its new length."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_html(message):
            self._start = message
            return
        if self._start is None or message["type"] != "http.response.body":
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body"):
            return
        body = self._body.replace(HEAD, SCRIPT, 1)
        length = (b"content-length", str(len(body)).encode())
        kept = [pair for pair in self._start["headers"] if pair[0].lower() != b"content-length"]
        await self._send({**self._start, "headers": [*kept, length]})
        await self._send({**message, "body": body})


def _is_html(message: Message) -> bool:
    headers = {name.lower(): value for name, value in message["headers"]}
    html = headers.get(b"content-type", b"").startswith(b"text/html")
    return message["status"] == 200 and html and b"content-encoding" not in headers
