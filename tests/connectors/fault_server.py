"""A local server that answers wrongly in every way of the fault list, one thread per connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

Handler = Callable[[socket.socket, str], None]


def http(status: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """A whole HTTP/1.1 answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def text(body: bytes) -> bytes:
    """A 200 answer with a metrics page."""
    return http("200 OK", body, "Content-Type: text/plain; version=0.0.4")


class FaultServer:
    """Serves ``handler`` on 127.0.0.1 until ``close``; ``requests`` are the requests seen."""

    def __init__(self, handler: Handler, *, family: int = socket.AF_INET) -> None:
        self.handler = handler
        self.requests: list[str] = []
        self.closing = threading.Event()
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        self._socket.listen(16)
        self._socket.settimeout(0.1)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            request = b""
            while b"\r\n\r\n" not in request:
                piece = connection.recv(4096)
                if not piece:
                    return
                request += piece
            asked = request.decode("latin-1")
            self.requests.append(asked)
            self.handler(connection, asked)

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the test."""
        self.closing.wait(seconds)

    def close(self) -> None:
        self.closing.set()
        self._socket.close()
        self._thread.join(2)


@contextlib.contextmanager
def serving(answer: bytes | Handler) -> Iterator[FaultServer]:
    """A server with one fixed answer or a handler."""

    def fixed(connection: socket.socket, _: str) -> None:
        assert isinstance(answer, bytes)
        connection.sendall(answer)

    server = FaultServer(fixed if isinstance(answer, bytes) else answer)
    try:
        yield server
    finally:
        server.close()


def trickle(server_pause: Callable[[float], None], body: bytes, *, per_second: float) -> Handler:
    """Send headers at once and the body byte by byte."""

    def handler(connection: socket.socket, _: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        end = time.monotonic() + 9
        for i in range(len(body)):
            if time.monotonic() > end:
                return
            connection.sendall(body[i : i + 1])
            server_pause(1 / per_second)

    return handler
