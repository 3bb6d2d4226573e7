"""TLS 1.3 over one TCP connection, straight into the caller's memory. Decides nothing about who the peer is.

Driven by the event loop (it is the protocol of a plain TCP transport) and by a connection above it.

Why not the loop's own TLS, which is as fast (`python -m benchmarks tls_channel`): it hides the TCP connection, by
which strangers are cut in the middle of their TLS handshake, what arrived is held back and handed on even if the peer
has died since, and the sender knows what the kernel has not taken yet. Decision 0002 has the figures.

Certificates are self-made, so the library verifies possession of the key (TLS 1.3, CertificateVerify) and nothing
else; who holds the key is judged above, by the site id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol, cast

from chaosd.identity import Identity
from chaosd.transport.errors import LinkClosed, PeerProtocolError
from chaosd.transport.nobody import NOBODY
from chaosd.transport.settings import CLOSE_FLUSH_TIMEOUT_S, WRITE_BUFFER_BYTES_MAX

READ_BYTES_SMALL = 16 << 10
"""One read of a connection that has proven nothing yet."""
READ_BYTES = 512 << 10
READ_TURN_BYTES = 1 << 20
"""Then whatever else waits has its turn: uvloop reads up to 32 times in one, as long as the socket fills the buffer.
Without, two sites that average took turns of 7 to 10 MiB, one waiting for the other (decision 0030)."""

_log = logging.getLogger("chaosd.transport")


class _Shared(threading.local):
    """One buffer for all established connections of a loop's thread: what is read into it is taken out again before
    the loop reads anything else (both loops call `get_buffer`, read, `buffer_updated` in one go)."""

    def __init__(self) -> None:
        self._buffer: memoryview | None = None

    def buffer(self) -> memoryview:
        if self._buffer is None:
            self._buffer = memoryview(bytearray(READ_BYTES))
        return self._buffer


_shared = _Shared()


class TlsSink(Protocol):
    """The connection above. `ended` is called exactly once, also after `abort`."""

    def secured(self) -> None:
        """The TLS handshake is done; `peer_certificate` is known."""

    def wants_bytes(self) -> bool:
        """False: read no further for now. Hands on first what was held back before."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes belong; not empty."""

    def takes_more(self) -> bool:
        """Whether that buffer may be filled with several records before `received`."""

    def received(self, size_bytes: int) -> None:
        """So many bytes were put there. May raise PeerProtocolError."""

    def writable(self) -> None:
        """The kernel took enough; senders may go on."""

    def ended(self, reason: str, end_of_file: bool) -> None:
        """The connection is over."""


class _Phase(Enum):
    NEW = "new"
    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSING = "closing"  # we said goodbye; what was sent before is still on its way
    CLOSED = "closed"


class TlsChannel(asyncio.BufferedProtocol):
    """One TLS connection. See the module."""

    def __init__(self, sink: TlsSink, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._sink: TlsSink = sink
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        # typeshed knows only the form without buffer; in quotes, for a type that is made costs as much as a record
        self._read = cast("Callable[[int, memoryview], int]", self._tls.read)
        self._raw = memoryview(bytearray(READ_BYTES_SMALL))
        self._phase = _Phase.NEW
        self._transport: asyncio.Transport | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._room_waiters: list[asyncio.Future[None]] = []
        self._reason: tuple[str, bool] | None = None
        self._reported = False
        self._reading = True
        self._turn_bytes = 0
        self._loop = asyncio.get_running_loop()
        self.received_bytes = self.written_bytes = 0
        """Encrypted, since the connection stands."""
        self.paused = False
        """True while the kernel does not take what was written."""
        self.after_read: Callable[[int, int], None] | None = None
        """Called when what a read has brought was taken out: its bytes, and those that wait in front of the library."""
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the socket is closed and nothing is left."""

    # -- towards the connection above ------------------------------------------------------------------------------

    @property
    def peer_certificate(self) -> bytes | None:
        """DER, as the peer sent it; its key is proven, its content is not."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def cipher(self) -> str:
        """Name of the cipher suite in use."""
        return (self._tls.cipher() or ("none",))[0]

    @property
    def transport(self) -> asyncio.Transport | None:
        """The TCP transport under this channel, once connected."""
        return self._transport

    @property
    def is_open(self) -> bool:
        """True from the end of the TLS handshake to the close."""
        return self._phase is _Phase.OPEN

    @property
    def waiting_bytes(self) -> int:
        """Encrypted bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def read_in_large_pieces(self) -> None:
        """The peer is trusted: read through the large buffer that such connections share."""
        if len(self._raw) < READ_BYTES:
            self._loop.call_soon(self._enlarge)

    def write(self, *parts: bytes | bytearray | memoryview) -> None:
        """Encrypt and hand over now, together, whatever the room; callers wait for `room` first. Ignored when not
        open."""
        if self._phase is not _Phase.OPEN:
            return
        for data in parts:
            sent = 0
            while sent < len(data):  # the library may write one record at a time
                sent += self._tls.write(memoryview(data)[sent:] if sent else data)
        self._flush()

    async def room(self) -> None:
        """Wait until the kernel takes bytes again. Raises LinkClosed when the connection ends first."""
        while self.paused and self._phase is _Phase.OPEN:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.append(waiter)
            try:
                await waiter
            finally:
                with contextlib.suppress(ValueError):
                    self._room_waiters.remove(waiter)
        if self._phase is not _Phase.OPEN:
            raise LinkClosed((self._reason or ("the connection is not open", False))[0])

    def keep_waiting(self, size_bytes: int) -> None:
        """From now on a sender waits as soon as more than so many encrypted bytes wait for the kernel."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=size_bytes)

    def set_reading(self, reading: bool) -> None:
        """Stop or resume reading from the socket; while stopped, an end-of-file is not noticed either."""
        if reading == self._reading or self._transport is None or self._phase is _Phase.CLOSED:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
            self._loop.call_soon(self.pump)
        else:
            self._transport.pause_reading()

    def close(self, reason: str) -> None:
        """Hand over what was written, say goodbye, close; cut after CLOSE_FLUSH_TIMEOUT_S."""
        if self._phase in (_Phase.CLOSING, _Phase.CLOSED):
            return
        if self._phase is not _Phase.OPEN or self._transport is None:
            self.abort(reason)
            return
        self._phase = _Phase.CLOSING
        self._reason = self._reason or (reason, False)
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        self._flush()
        self._flush_timer = self._loop.call_later(CLOSE_FLUSH_TIMEOUT_S, self._transport.abort)
        self._transport.close()
        self._wake()
        self._report()

    def abort(self, reason: str, *, end_of_file: bool = False) -> None:
        """Close now; what was not sent yet is lost."""
        self._reason = self._reason or (reason, end_of_file)
        self._phase = _Phase.CLOSED
        if self._transport is not None:
            self._transport.abort()
        self._wake()
        self._report()

    def disown(self) -> None:
        """The loop gave up connecting and closes the socket by itself; uvloop then reports no end, even where it had
        called `connection_made` already, and its transport keeps this channel: so the channel lets go of it."""
        self._phase = _Phase.CLOSED
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if not self.gone.done():
            self.gone.set_result(None)

    # -- towards the loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        if self._phase is _Phase.CLOSED:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self._phase = _Phase.HANDSHAKE
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._phase = _Phase.CLOSED
        self._reason = self._reason or (f"the connection broke: {exc}" if exc else "the connection was closed", True)
        if not self.gone.done():
            self.gone.set_result(None)
        self._wake()
        self._report()

    def eof_received(self) -> None:
        self._end_of_file()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._raw

    def buffer_updated(self, nbytes: int) -> None:
        self.count_received(nbytes)
        if self._phase in (_Phase.HANDSHAKE, _Phase.OPEN):
            self._incoming.write(self._raw[:nbytes])
            self.pump()
            if self.after_read is not None:
                self.after_read(nbytes, self._incoming.pending)

    def count_received(self, size_bytes: int) -> None:
        """So many bytes were read from the socket; after READ_TURN_BYTES no more are in this turn of the loop."""
        self.received_bytes += size_bytes
        self._turn_bytes += size_bytes
        if self._turn_bytes >= READ_TURN_BYTES and self._reading and self._transport is not None:
            self._turn_bytes = 0
            self._transport.pause_reading()
            self._loop.call_soon(self._next_turn)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._wake()
        if self._phase is _Phase.OPEN:
            self._sink.writable()

    # -- inside ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Decrypt everything that is there, as long as the connection above wants it."""
        try:
            if self._phase is _Phase.HANDSHAKE:
                self._tls.do_handshake()
                self._phase = _Phase.OPEN
                self._flush()
                self._sink.secured()
            while self._phase is _Phase.OPEN and self._sink.wants_bytes():
                count, emptied = self._fill(self._sink.get_buffer())
                if count == 0:
                    self._end_of_file()
                    return
                self._sink.received(count)
                if emptied:
                    break
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._end_of_file()
            return
        except ssl.SSLError as error:
            self._flush()
            if self._phase is _Phase.OPEN:  # a proven neighbour's: strangers that fail are told of by the listener
                _log.warning("a connection is dropped: the peer broke TLS: %s", error.reason or error)
            self.abort(f"the peer broke TLS: {error.reason or error}")
            return
        except PeerProtocolError as error:
            self.abort(f"the peer broke the protocol: {error}")
            return
        except Exception as error:  # a defect of ours must cost one connection, not the daemon, and must be seen
            self.abort(f"internal error: {error!r}")
            self._loop.call_exception_handler({"message": "defect while handling received bytes", "exception": error})
            return
        self._flush()

    def _fill(self, buffer: memoryview) -> tuple[int, bool]:
        """Decrypt into `buffer`: one record (the library gives no more at a time), or as many as are there where the
        sink takes them together. Also: whether there was nothing more. Raises ssl.SSLError."""
        read, size = self._read, len(buffer)
        count = read(size, buffer)
        if count == 0:
            return 0, False
        if not self._sink.takes_more():
            return count, self._is_emptied()
        try:
            while count < size:
                more = read(size - count, buffer[count:])
                if more == 0:
                    break
                count += more
        except ssl.SSLWantReadError:
            return count, True
        except ssl.SSLError:
            pass  # an end or a breach (0 is an end too): the next read tells it again, after what came was handed on
        return count, False

    def _is_emptied(self) -> bool:
        """The library has nothing more to give: to be told so by a read costs an exception for every short frame."""
        return not self._incoming.pending and not self._tls.pending()

    def _next_turn(self) -> None:
        if self._reading and self._transport is not None and self._phase in (_Phase.HANDSHAKE, _Phase.OPEN):
            self._transport.resume_reading()

    def _enlarge(self) -> None:
        self._raw = _shared.buffer()

    def _end_of_file(self) -> None:
        self.abort("the other end closed the connection", end_of_file=True)

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None and not self._transport.is_closing():
            data = self._outgoing.read()
            self.written_bytes += len(data)
            self._transport.write(data)

    def _wake(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _report(self) -> None:
        """Tells the sink and lets go of it (see `nobody`)."""
        if not self._reported and self._reason is not None:
            self._reported = True
            sink, self._sink, self.after_read = self._sink, NOBODY, None
            self._loop.call_soon(sink.ended, *self._reason)


def server_context(identity: Identity) -> ssl.SSLContext:
    """TLS 1.3 with this site's certificate; no session tickets, since every connection proves itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    identity.load_into(context)
    return context


def client_context() -> ssl.SSLContext:
    """TLS 1.3 that accepts any certificate whose key the server possesses; the site id is checked by the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
