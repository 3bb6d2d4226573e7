"""The daemon of a lab's site whose links are not encrypted: `python -m benchmarks.plain_daemon --config FILE`.

For `allreduce_raw` alone: what averaging costs without TLS, as gloo's has none. No daemon of an institution can do
this, nor has it a switch for it: classes of the transport are replaced here, from outside. Nobody proves a listener's
key then, and anybody on the way can read, and change, what is said.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from unittest.mock import patch

import typer

from chaos_lab import daemon
from chaosd.identity import Identity
from chaosd.transport import connection, listener, transport
from chaosd.transport.errors import PeerProtocolError
from chaosd.transport.tls import TlsChannel

LENGTH = struct.Struct("!I")


class PlainContext:
    """In the place of a context of the library `ssl`. `certificate`: of a listener, which it tells every dialer."""

    def __init__(self, certificate: bytes = b"") -> None:
        self._certificate = certificate

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_side: bool) -> PlainObject:
        return PlainObject(incoming, outgoing, self._certificate if server_side else None)


class PlainObject:
    """In the place of an `ssl.SSLObject`: bytes pass as they are. `certificate`: None at the dialing end."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, certificate: bytes | None) -> None:
        self._incoming, self._outgoing, self._certificate = incoming, outgoing, certificate
        self._told = b""

    def do_handshake(self) -> None:
        if self._certificate is not None:
            self._outgoing.write(LENGTH.pack(len(self._certificate)) + self._certificate)
            return
        while not self._told or len(self._told) < LENGTH.size + LENGTH.unpack_from(self._told)[0]:
            missing = LENGTH.size - len(self._told)
            if missing <= 0:
                missing += LENGTH.unpack_from(self._told)[0]
            self._told += self._read(missing)

    def read(self, size: int, buffer: memoryview) -> int:
        data = self._read(size)
        buffer[: len(data)] = data
        return len(data)

    def _read(self, size: int) -> bytes:
        if not self._incoming.pending:
            raise ssl.SSLWantReadError
        return self._incoming.read(size)

    def pending(self) -> int:
        return 0

    def unwrap(self) -> None: ...

    def getpeercert(self, *, binary_form: bool) -> bytes:
        return self._told[LENGTH.size :]

    def cipher(self) -> None:
        return None


class PlainChannel(TlsChannel):
    """One connection. What is received goes straight to its place; what is sent is copied, since its memory may change
    before the kernel takes it."""

    _direct = False

    def write(self, *parts: bytes | bytearray | memoryview) -> None:
        if self.is_open and self._transport is not None and not self._transport.is_closing():
            for part in parts:
                self.written_bytes += len(part)
                self._transport.write(bytes(part))

    def get_buffer(self, sizehint: int) -> memoryview:
        self._direct = self.is_open and not self._incoming.pending and self._sink.wants_bytes()
        return self._sink.get_buffer() if self._direct else super().get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if not self._direct:
            super().buffer_updated(nbytes)
            return
        self.count_received(nbytes)
        try:
            self._sink.received(nbytes)
        except PeerProtocolError as error:
            self.abort(f"the peer broke the protocol: {error}")


@contextmanager
def not_encrypted() -> Iterator[None]:
    """Every transport that is made meanwhile."""

    def listening(identity: Identity) -> ssl.SSLContext:
        return cast(ssl.SSLContext, PlainContext(identity.certificate_der))

    with (
        patch.object(connection, "TlsChannel", PlainChannel),
        patch.object(listener, "server_context", listening),
        patch.object(transport, "client_context", PlainContext),
    ):
        yield


if __name__ == "__main__":
    with not_encrypted():
        typer.run(daemon.main)
