"""The way out through an HTTP proxy, for a site whose network lets its machines reach the Internet in no other way.

The proxy is asked for a tunnel (CONNECT, RFC 9110 section 9.3.6); what goes through it is TLS between the two sites,
so it learns host, port and how much, and can cut. Used by the dialer, on the loop (`Tunnel`), and by what asks whether
a site answers, in threads (`Proxy.open`). Why no library: decision 0033.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from chaosd.addresses import join_address, split_address
from chaosd.os_errors import brief
from chaosd.storage.durable import read_at_once

HEAD_BYTES_MAX = 16 << 10
"""Of the proxy's answer; usual servers take heads of 8 KiB."""

AUTH_BYTES_MAX = 4 << 10
"""Of the file with user and password."""

SAID_CHARACTERS_MAX = 80
"""Of the proxy's own words, in a text for people."""

HEAD_ENDS = b"\r\n\r\n"
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]*))?\r\n")


class ProxyError(OSError):
    """The proxy opens no tunnel. `strerror` says why, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """See the module."""

    host: str
    port: int
    direct: tuple[str, ...] = ()
    """Who is reached without it: names of hosts, each with all names below it, addresses, networks (`parse_direct`)."""
    auth_file: Path | None = None
    """With `user:password`; read for each tunnel, so that a new password counts at once."""

    def serves(self, host: str) -> bool:
        """Whether that host is reached through it: not this machine, and none of `direct`. A name is not looked up."""
        name = host.lower().rstrip(".")
        try:
            number = ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return name != "localhost" and not any(f".{name}".endswith(f".{one}") for one in self.direct)
        networks = (ipaddress.ip_network(one) for one in self.direct if _is_network(one))
        return not number.is_loopback and not any(number in one for one in networks)

    def request(self, host: str, port: int) -> bytes:
        """What asks for a tunnel. Raises ProxyError where the file of the password is of no use."""
        place = join_address(host, port)
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        if self.auth_file is not None:
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(self._user()).decode()}")
        return "\r\n".join([*lines, "", ""]).encode()

    def _user(self) -> bytes:
        assert self.auth_file is not None
        try:
            found = read_at_once(self.auth_file, AUTH_BYTES_MAX + 1).strip()
        except OSError as error:
            raise self.failed(f"{self.auth_file} cannot be read: {error.strerror}", error.errno) from None
        if len(found) > AUTH_BYTES_MAX or b":" not in found or b"\n" in found:
            raise self.failed(f"{self.auth_file} must hold one line, user:password")
        return found

    def is_open(self, head: bytes) -> bool:
        """Whether the proxy has opened the tunnel; False: more is to come. Raises ProxyError."""
        ends = head.find(HEAD_ENDS)
        if ends < 0:
            if len(head) > HEAD_BYTES_MAX or not b"HTTP/1.".startswith(head[:7]):
                raise self.failed("what answers there is no HTTP proxy")
            return False
        status = STATUS_LINE.match(head)
        if status is None:
            raise self.failed("what answers there is no HTTP proxy")
        if not status[1].startswith(b"2"):
            raise self.failed(self._why_not(int(status[1]), status[2] or b""))
        if len(head) > ends + len(HEAD_ENDS):  # the far end waits for this one to begin
            raise self.failed("it sends something of its own into the tunnel")
        return True

    def _why_not(self, code: int, said: bytes) -> str:
        words = "".join(one for one in said.decode("ascii", "replace") if one.isprintable())[:SAID_CHARACTERS_MAX]
        told = f"it answers {code} {words}".rstrip()
        refuses = code in (401, 407)  # 401 is what tinyproxy says of a wrong password
        if refuses and self.auth_file is None:
            return f"{told}: it wants a user and a password, see proxy_auth_file"
        if refuses:
            return f"{told}: it does not take the user and password of {self.auth_file}"
        if code in (403, 405):
            return f"{told}: its operator has to allow CONNECT to that host and port; many allow port 443 alone"
        return told

    def failed(self, why: str, number: int | None = None) -> ProxyError:
        """An error that names the proxy. `number`: of the system's error below, if there is one."""
        return ProxyError(number or 0, f"through the proxy {join_address(self.host, self.port)}: {why}")

    def open(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """A tunnel as a socket that blocks, for threads, within that time. Raises ProxyError, and OSError as the socket
        does."""
        request = self.request(host, port)
        until_s = time.monotonic() + timeout_s
        try:
            opened = socket.create_connection((self.host, self.port), timeout=timeout_s)
        except OSError as error:
            raise self.failed(brief(error), error.errno) from None
        try:
            opened.sendall(request)
            head = b""
            while not self.is_open(head):
                left_s = until_s - time.monotonic()  # for the whole answer, not for each piece of it
                if left_s <= 0:
                    raise TimeoutError
                opened.settimeout(left_s)
                got = opened.recv(HEAD_BYTES_MAX)
                if not got:
                    raise self.failed("it has closed the connection")
                head += got
            opened.settimeout(timeout_s)
        except TimeoutError:
            opened.close()
            raise self.failed("it does not answer in time") from None
        except BaseException:
            opened.close()
            raise
        return opened


class Tunnel(asyncio.BufferedProtocol):
    """A connection to the proxy that becomes that of `inner` when the proxy has opened the tunnel."""

    def __init__(self, proxy: Proxy, host: str, port: int, inner: asyncio.BufferedProtocol) -> None:
        """Raises ProxyError, as `Proxy.request`."""
        self._proxy, self._inner = proxy, inner
        self._request = proxy.request(host, port)
        self._buffer = bytearray(HEAD_BYTES_MAX)
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when `inner` has the connection. Fails with ProxyError."""

    def close(self) -> None:
        """Nobody waits for it any more."""
        self.opened.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._head += self._buffer[:nbytes]
        assert self._transport is not None
        if self.opened.done():
            return  # it was given up
        try:
            if not self._proxy.is_open(self._head):
                return
        except ProxyError as error:
            self._fail(error)
            return
        transport, self._transport = self._transport, None
        transport.set_protocol(self._inner)
        self._inner.connection_made(transport)
        self.opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(self._proxy.failed("it has closed the connection"))

    def _fail(self, error: ProxyError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # who gave up does not look
        if self._transport is not None:
            self._transport.abort()


def connect(address: str, timeout_s: float, proxy: Proxy | None) -> socket.socket:
    """A socket that blocks, straight or through the proxy. Raises OSError, ValueError."""
    host, port = split_address(address)
    if proxy is not None and proxy.serves(host):
        return proxy.open(host, port, timeout_s)
    return socket.create_connection((host, port), timeout=timeout_s)


def parse_proxy(text: str) -> str:
    """`host:port` of an HTTP proxy, written so or as an address of the web. Raises ValueError."""
    if not text:
        return ""
    scheme, mark, rest = text.rpartition("://")
    if mark and scheme.lower() != "http":
        raise ValueError("must be an HTTP proxy, host:port or http://host:port; others (https, socks) are not spoken")
    if "@" in rest:
        raise ValueError("must be host:port; user and password belong into a file, see proxy_auth_file")
    place = rest.rstrip("/") if mark else rest
    split_address(place)
    return place


def parse_direct(text: str) -> str:
    """One entry of `no_proxy`: a host, a domain (with or without a leading dot), an address or a network. Raises
    ValueError."""
    if re.fullmatch(r"[0-9a-fA-F:.]*/[0-9]+", text) or _is_network(text):
        try:
            return str(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise ValueError("must be a network as 10.0.0.0/8") from None
    name = text.lower().strip(".")
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name):
        raise ValueError("must be a host, a domain, an address or a network, for example clinic.example or 10.0.0.0/8")
    return name


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
