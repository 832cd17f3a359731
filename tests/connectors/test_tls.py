"""TLS to targets: a private CA, an unknown certificate, verification switched off, client certificates, a slow handshake."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from capacity.telemetry import State, TargetSnapshot
from connectors.errors import BadTarget
from connectors.http import Access, HttpClient
from connectors.scrape import observe
from connectors.targets import Target
from tests.connectors import metrics_files
from tests.connectors.fault_server import FaultServer, text

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
PAGE = text(metrics_files.page("v1_single_busy.prom"))


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


class TlsServer(FaultServer):
    """The fault server behind TLS; ``client_ca`` asks for a client certificate."""

    def __init__(self, pem: tuple[Path, Path], *, client_ca: Path | None = None) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*pem)
        if client_ca is not None:
            self.context.load_verify_locations(client_ca)
            self.context.verify_mode = ssl.CERT_REQUIRED
        super().__init__(lambda connection, _: connection.sendall(PAGE))

    def _serve(self, connection: socket.socket) -> None:
        try:
            wrapped = self.context.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        super()._serve(wrapped)


def look(server: FaultServer, access: Access) -> TargetSnapshot:
    url = f"https://localhost:{server.port}/metrics"
    return observe(Target(name="x", url=url, access=access))


def test_verification(pem: tuple[Path, Path]) -> None:
    server = TlsServer(pem)
    try:
        unknown = look(server, Access())
        assert unknown.state is State.DOWN and "certificate cannot be verified" in unknown.reason
        assert server.requests == []
        assert look(server, Access(ca_file=str(pem[0]))).state is State.OK
        assert look(server, Access(verify=False)).state is State.OK
    finally:
        server.close()


def test_client_certificate(pem: tuple[Path, Path]) -> None:
    server = TlsServer(pem, client_ca=pem[0])
    try:
        assert look(server, Access(ca_file=str(pem[0]))).state is State.DOWN
        mine = Access(ca_file=str(pem[0]), client_cert=str(pem[0]), client_key=str(pem[1]))
        assert look(server, mine).state is State.OK
    finally:
        server.close()


def test_files_that_cannot_be_read() -> None:
    with pytest.raises(BadTarget, match="PEM"):
        HttpClient(Access(ca_file="/no/such/ca.pem"))
    snapshot = observe(Target(name="x", url="https://localhost:1/", access=Access(ca_file="/no/such/ca.pem")))
    assert snapshot.state is State.DOWN and "/no/such" not in snapshot.reason


def test_a_handshake_and_a_body_that_never_end() -> None:
    for answer in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"):

        def handler(connection: socket.socket, _: str, answer: bytes = answer) -> None:
            connection.sendall(answer)
            connection.recv(1)

        server = FaultServer(handler)
        try:
            started = time.monotonic()
            target = Target(name="x", url=f"https://localhost:{server.port}/metrics")
            snapshot = observe(target, client=HttpClient(deadline_s=0.8))
            assert time.monotonic() - started <= 0.9
        finally:
            server.close()
        assert snapshot.state is State.DOWN
