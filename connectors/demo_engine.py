"""A demonstration pool: real HTTP servers on loopback with a vLLM-style /metrics, and scripted incidents.

What it answers: what a pool looks like when it is calm, full, preempting, stalled or gone, without a GPU.
Everything it exports is made up and the product marks it DEMO. ``python -m connectors demo`` runs it alone.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NoReturn

from capacity.errors import CapacityError
from connectors.demo.engine import DemoEngine, EngineConfig, scoped
from connectors.demo.incidents import incident, incidents
from connectors.demo.metrics_text import parse_release, render

TICK_S = 0.1
MAX_CATCH_UP_S = 120.0
LAST_PORT = 65_535
MOST_REPLICAS = 64


class DemoPool:
    """Several replicas of one demonstration model on 127.0.0.1, from ``start()`` to ``stop()``.

    ``layout`` "ports": one URL per replica; "engines": one URL with ``replicas`` engine labels.
    ``port`` 0 picks free ports. ``speed`` accelerates engine time; ``warm_up_s`` of engine time pass
    before the first scrape. Raises CapacityError for an unknown incident or
    release, OSError when a port is taken.
    """

    def __init__(
        self,
        *,
        replicas: int = 3,
        incident_name: str = "calm",
        release: str = "0.32.0",
        layout: Literal["ports", "engines"] = "ports",
        port: int = 0,
        seed: int = 7,
        speed: float = 1.0,
        warm_up_s: float = 60.0,
        config: EngineConfig | None = None,
    ) -> None:
        if replicas < 1:
            raise CapacityError(f"replicas {replicas} is too few; valid: 1 or more", field="replicas")
        if not speed > 0:
            raise CapacityError(f"speed {speed} is not valid; valid: above 0", field="speed")
        self.speed = speed
        self.layout = layout
        self._seed = seed
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        settings = replace(config or EngineConfig(), release=parse_release(release))
        self._name = incident_name
        chosen = incident(incident_name)
        self.engines = [
            DemoEngine(config=settings, seed=seed * 1000 + i, incident=incident("calm"))
            for i in range(replicas)
        ]
        for engine in self.engines:
            engine.advance(warm_up_s)
        self._engine_from_s = warm_up_s
        self._apply(chosen.name)
        groups = [[e] for e in self.engines] if layout == "ports" else [self.engines]
        self._servers = [
            _Server(self, group, index, port + index if port else 0) for index, group in enumerate(groups)
        ]
        self._wall_offset_s = time.time() - warm_up_s
        self._mono_from_s = time.monotonic()
        self._ticker = threading.Thread(target=self._run, name="demo-engine", daemon=True)

    @property
    def urls(self) -> list[str]:
        """The /metrics URLs, one per port."""
        return [f"http://127.0.0.1:{server.port}/metrics" for server in self._servers]

    @property
    def incident_name(self) -> str:
        return self._name

    def set_incident(self, name: str) -> None:
        """Switch every replica to incident ``name`` now; CapacityError when it is not known."""
        incident(name)
        with self._lock:
            self._apply(name)
            self._name = name

    def _apply(self, name: str) -> None:
        chosen, calm = incident(name), incident("calm")
        for index, engine in enumerate(self.engines):
            mine = scoped(chosen, calm=calm, replica=index, replicas=len(self.engines))
            was_down = engine.is_down
            engine.set_incident(mine, at_s=engine.now_s)
            if was_down:
                engine.restart()

    def start(self) -> None:
        """Open the ports and let time run."""
        self._mono_from_s = time.monotonic()
        for server in self._servers:
            server.open()
        self._ticker.start()

    def stop(self) -> None:
        """Close the ports; returns when every thread is done."""
        self.stopping.set()
        if self._ticker.is_alive():
            self._ticker.join()
        for server in self._servers:
            server.close()

    def __enter__(self) -> DemoPool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self.stopping.wait(TICK_S):
            due = self._engine_from_s + (time.monotonic() - self._mono_from_s) * self.speed
            with self._lock:
                behind = due - self.engines[0].now_s
                if behind > MAX_CATCH_UP_S * max(1.0, self.speed):
                    self._mono_from_s += (behind - 1.0) / self.speed
                    due -= behind - 1.0
                for engine in self.engines:
                    engine.advance(due)
            for server in self._servers:
                server.follow()

    def payload(self, engines: Sequence[DemoEngine], first_index: int) -> str:
        """The text of one URL now."""
        with self._lock:
            return render(engines, first_index=first_index, wall_offset_s=self._wall_offset_s)

    def rehearse(self, seconds: float, *, step_s: float) -> Iterator[tuple[float, list[str]]]:
        """Before ``start()``: let ``seconds`` of engine time pass; (age_s, each URL's text) per step.

        ``age_s`` is how long before the start the moment lies, so that charts are not empty at first sight.
        """
        steps = int(seconds // step_s)
        self._wall_offset_s -= steps * step_s
        for left in range(steps, 0, -1):
            for engine in self.engines:
                engine.advance(self._engine_from_s + step_s)
            self._engine_from_s += step_s
            yield (left - 1) * step_s, [self.payload(s.engines, s.first_index) for s in self._servers]

    def state(self) -> dict[str, object]:
        """Incident, what it does, and the valid names, as the control route answers."""
        return {
            "demo": True,
            "incident": self._name,
            "what": incident(self._name).what,
            "incidents": {name: found.what for name, found in incidents().items()},
            "targets": self.urls,
        }


class _Server:
    """One port. It closes for real while its engine is down, except for a lone port, which drops /metrics."""

    def __init__(self, pool: DemoPool, engines: Sequence[DemoEngine], index: int, port: int) -> None:
        self.pool = pool
        self.engines = engines
        self.first_index = 0
        self.port = port
        self._http: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._index = index

    @property
    def is_down(self) -> bool:
        return all(engine.is_down for engine in self.engines)

    def open(self) -> None:
        server = _Listener(("127.0.0.1", self.port), _handler(self))
        self.port = server.server_address[1]
        self._http = server
        self._thread = threading.Thread(
            target=server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name=f"demo-http-{self._index}",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        if self._http is not None and self._thread is not None:
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()
        self._http = None

    def follow(self) -> None:
        if self.is_down and self._http is not None and self._others_open():
            self.close()
        elif not self.is_down and self._http is None and not self.pool.stopping.is_set():
            try:
                self.open()
            except OSError as error:
                print(f"demo: port {self.port} cannot be opened again: {error}", file=sys.stderr)

    def _others_open(self) -> bool:
        return any(s is not self and s._http is not None for s in self.pool._servers)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True


def _handler(server: _Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "waterline-demo"
        sys_version = ""
        timeout = 30

        def do_GET(self) -> None:
            if self.path == "/demo/incident":
                self._json(200, server.pool.state())
            elif server.is_down:
                self.close_connection = True
            elif self.path == "/metrics":
                delay_s = max(engine.incident.scrape_delay_s for engine in server.engines)
                if delay_s > 0 and server.pool.stopping.wait(delay_s):
                    self.close_connection = True
                    return
                text = server.pool.payload(server.engines, server.first_index)
                self._send(200, "text/plain; version=0.0.4; charset=utf-8", text.encode())
            elif self.path == "/health":
                self._send(200, "text/plain", b"")
            else:
                self._json(404, {"error": f"{self.path} is not served; valid: /metrics, /demo/incident"})

        def do_POST(self) -> None:
            length = min(int(self.headers.get("Content-Length") or 0), 10_000)
            body = self.rfile.read(length)
            if self.path != "/demo/incident":
                self._json(404, {"error": f"{self.path} is not served; valid: /demo/incident"})
                return
            try:
                name = json.loads(body)["incident"]
                server.pool.set_incident(str(name))
            except CapacityError as error:
                self._json(422, {"error": str(error)})
            except (ValueError, KeyError, TypeError):
                self._json(400, {"error": 'the body is not an incident; valid: {"incident": "ramp"}'})
            else:
                self._json(200, server.pool.state())

        def _json(self, status: int, body: dict[str, object]) -> None:
            self._send(status, "application/json", json.dumps(body).encode())

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Waterline-Demo", "1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, TimeoutError):
                self.close_connection = True

    return Handler


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"waterline: {message}", file=sys.stderr)
        raise SystemExit(2)


def _within(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    """A reader of numbers from ``low`` to ``high``."""
    what = "a whole number" if kind is int else "a number"

    def read(text: str) -> float:
        try:
            value = kind(text) if len(text) <= 40 else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"{text[:40]} is not valid; valid: {what} from {low:g} to {high:,.10g}"
            )
        return value

    return read


def _parser() -> argparse.ArgumentParser:
    listing = "; ".join(f"{name}: {found.what}" for name, found in incidents().items())
    parser = _Parser(prog="python -m connectors demo", description=__doc__, epilog=listing)
    parser.add_argument(
        "--port",
        type=_within(int, 0, LAST_PORT),
        default=9800,
        help="first port; replica i listens on port + i",
    )
    parser.add_argument("--replicas", type=_within(int, 1, MOST_REPLICAS), default=3)
    parser.add_argument("--incident", default="calm", help="see below; POST /demo/incident switches it")
    parser.add_argument("--release", default="0.32.0", help="vLLM release whose metric names are exported")
    parser.add_argument("--layout", choices=("ports", "engines"), default="ports")
    parser.add_argument("--seed", type=_within(int, 0, 1e9), default=7)
    parser.add_argument(
        "--speed", type=_within(float, 0.01, 1000), default=1.0, help="engine seconds per second"
    )
    parser.add_argument(
        "--seconds", type=_within(float, 0, 1e6), default=None, help="stop after this long (default: Ctrl-C)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration pool until Ctrl-C; 2 on a wrong argument, 1 when a port is taken."""
    args = _parser().parse_args(argv)
    last = args.port + args.replicas - 1
    if args.port and args.layout == "ports" and last > LAST_PORT:
        print(
            f"waterline: port {args.port} and {args.replicas} replicas end at port {last}; valid: at most {LAST_PORT}",
            file=sys.stderr,
        )
        return 2
    try:
        pool = DemoPool(
            replicas=args.replicas,
            incident_name=args.incident,
            release=args.release,
            layout=args.layout,
            port=args.port,
            seed=args.seed,
            speed=args.speed,
        )
        pool.start()
    except CapacityError as error:
        print(f"waterline: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"waterline: the demo cannot listen from port {args.port} on: {error.strerror}", file=sys.stderr
        )
        return 1
    print(f"DEMO {args.incident}: " + " ".join(pool.urls), flush=True)
    try:
        threading.Event().wait(args.seconds)
    except KeyboardInterrupt:
        pass
    finally:
        pool.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
