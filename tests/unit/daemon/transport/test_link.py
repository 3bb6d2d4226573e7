"""What a link makes of the connections that it is given."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.handshake import Session
from chaosd.transport.connection import PeerConnection
from chaosd.transport.link import Link
from chaosd.transport.send_limit import SendLimit
from chaosd.transport.settings import PIECE_BYTES
from chaosd.transport.stream import JOIN_BYTES_MAX, BulkProgress, Stream, cut

A, B = SiteId("aa"), SiteId("bb")

REPORTS: Any = SimpleNamespace(send_limit=SendLimit())
"""What a link that is not up needs of its transport."""


@dataclass
class Established:
    """A bulk connection with its handshake behind it."""

    stream: int
    is_open: bool
    owners: list[Any] = field(default_factory=list)

    def hand_over(self, link: Any) -> None:
        self.owners.append(link)


def link_between() -> Link:
    session = Session(dialer=A, attempt=1)
    return Link(REPORTS, B, 1, session, 2, BulkProgress())


def test_a_stream_that_ended_before_it_was_added_is_lacking_still() -> None:
    link = link_between()
    lacking = link.missing
    ended, stands = Established(lacking[0], is_open=False), Established(lacking[1], is_open=True)
    for connection in (ended, stands):
        link.add(cast(PeerConnection, connection))
    assert link.missing == [lacking[0]]
    assert (ended.owners, stands.owners) == ([], [link])


class Written:
    """A channel that keeps what is handed over together."""

    def __init__(self) -> None:
        self.is_open, self.paused = True, False
        self.writes: list[bytes] = []

    def write(self, *parts: bytes | memoryview) -> None:
        self.writes.append(b"".join(parts))


@pytest.mark.parametrize("size_bytes", [10, JOIN_BYTES_MAX + 1, PIECE_BYTES, 2 * PIECE_BYTES + 5])
async def test_a_header_leaves_with_the_bytes_that_follow_it(size_bytes: int) -> None:
    """Alone it would wake the far end, which can do nothing before the payload comes."""
    channel, payload = Written(), memoryview(bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]
    link = link_between()
    connection: Any = Established(1, is_open=True)
    connection.channel = channel
    await Stream(connection, link).send(b"header", payload)
    assert b"".join(channel.writes) == b"".join(cut(b"header", payload))
    assert len(channel.writes) == -(-size_bytes // PIECE_BYTES)
    assert link.progress.sent_bytes == len(b"".join(channel.writes))


@dataclass
class Control:
    """A control connection with its handshake behind it."""

    stream: None = None
    flowing: list[bool] = field(default_factory=list)
    read_on: asyncio.Event = field(default_factory=asyncio.Event)

    def hand_over(self, link: Any) -> None:
        """Its frames come to this link."""

    def flow(self, flowing: bool) -> None:
        self.flowing.append(flowing)
        if flowing:
            self.read_on.set()


async def test_a_control_connection_is_not_read_for_as_long_as_is_said_of_a_frame() -> None:
    held: list[float] = [0.0, 1e-3]
    reports: Any = SimpleNamespace(
        send_limit=SendLimit(),
        link_completed=lambda link: None,
        control_received=lambda link, frame: held.pop(0),
    )
    control = Control()
    link = Link(reports, B, 1, Session(dialer=A, attempt=1), 0, BulkProgress())
    link.add(cast(PeerConnection, control))
    link.complete()
    control.flowing.clear()
    control.read_on.clear()
    link.control_received(b"one")
    assert control.flowing == []
    link.control_received(b"two")
    assert control.flowing == [False]
    await control.read_on.wait()
    assert control.flowing == [False, True]
