"""An HTTP proxy of the kind that institutions have: CONNECT alone, a password if it has one, its answer in pieces."""

from __future__ import annotations

import base64
import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

BUFFER_BYTES = 64 << 10


@dataclass(kw_only=True)
class HttpProxy:
    """Threads; ends with its context. `hosts`: where what it is asked for is really, so that a test sees that nobody
    else was asked."""

    hosts: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    """`user:password`; empty: everybody may."""
    answer: bytes = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 rig\r\n\r\n"
    asked: list[str] = field(default_factory=list)
    """What it was asked to connect to."""
    carried_bytes: int = 0
    _open: list[socket.socket] = field(default_factory=list)

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """All tunnels."""
        opened, self._open = self._open, []
        for one in opened:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(taken)
            threading.Thread(target=self._serve, args=(taken,), daemon=True).start()

    def _serve(self, taken: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                got = taken.recv(1)
                if not got:
                    return
                head += got
            request, *headers = head.decode().split("\r\n")
            method, place, _ = request.split()
            assert method == "CONNECT"
            self.asked.append(place)
            proof = "Proxy-Authorization: Basic " + base64.b64encode(self.user.encode()).decode()
            if self.user and proof not in headers:
                taken.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
                taken.shutdown(socket.SHUT_RDWR)
                return
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in self.answer:
                taken.sendall(bytes([byte]))
            if b" 200 " not in self.answer:
                taken.shutdown(socket.SHUT_RDWR)
                return
            host, _, port = place.rpartition(":")
            far = socket.create_connection((self.hosts.get(host, host), int(port)))
            self._open.append(far)
            threading.Thread(target=self._carry, args=(far, taken), daemon=True).start()
            self._carry(taken, far)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while got := source.recv(BUFFER_BYTES):
                self.carried_bytes += len(got)
                target.sendall(got)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        self.cut()


@contextlib.contextmanager
def proxying(**settings: object) -> Iterator[HttpProxy]:
    """One that listens on this machine."""
    made = HttpProxy(**settings)  # type: ignore[arg-type]
    made._listen()
    try:
        yield made
    finally:
        made._end()


def opening_context(folder: Path) -> ssl.SSLContext:
    """Of a proxy that opens TLS: it answers with a certificate of its own, of the usual kind."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "far.invalid")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "opening.pem"
    file.write_bytes(made.public_bytes(pem) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
