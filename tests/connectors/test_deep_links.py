"""A page's own address gets one script more; everything else passes through as it was."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from connectors.deep_links import DeepLinks

PAGE = "<!DOCTYPE html><html><head><title>x</title></head><body>" + "y" * 2000 + "</body></html>"


async def answer(request: Request) -> Response:
    if request.query_params.get("json"):
        return JSONResponse({"head": "<head>"})
    return HTMLResponse(PAGE, status_code=int(request.query_params.get("status", "200")))


app = Starlette(
    routes=[Route("/{path:path}", answer)],
    middleware=[
        Middleware(DeepLinks, pages=["live", "plan"]),
        Middleware(GZipMiddleware, minimum_size=10),
    ],
)


def get(address: str) -> tuple[dict[bytes, bytes], str]:
    """(headers, body) of one request that allows gzip, as a browser's does."""
    path, _, query = address.partition("?")
    sent: list[dict[str, Any]] = []

    async def ask() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(b"accept-encoding", b"gzip")],
            "server": ("x", 80),
        }
        await app(scope, receive, send)

    asyncio.run(ask())
    headers = {name.lower(): value for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    if headers.get(b"content-encoding") == b"gzip":
        body = gzip.decompress(body)
    return headers, body.decode()


@pytest.mark.parametrize("path", ["/live", "/live/", "/plan?a=1", "/prefix/live"])
def test_a_page_address_names_the_start_of_the_app(path: str) -> None:
    headers, text = get(path)
    assert "BACKEND_BASE_URL" in text and text.index("BACKEND") < text.index("<title>")
    assert int(headers[b"content-length"]) == len(text.encode())
    begin, end = text.index("<head>") + len("<head>"), text.index("</script>") + len("</script>")
    assert text[:begin] + text[end:] == PAGE


@pytest.mark.parametrize("path", ["/", "/other", "/live/_stcore/health", "/live?json=1", "/live?status=404"])
def test_everything_else_is_untouched(path: str) -> None:
    _, text = get(path)
    assert text == ('{"head":"<head>"}' if "json" in path else PAGE)
