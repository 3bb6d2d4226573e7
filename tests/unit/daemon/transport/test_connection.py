"""The order of what a connection hands on."""

from __future__ import annotations

import asyncio

from chaosd.transport.connection import PeerConnection
from chaosd.transport.tls import client_context


class NoOwner:
    def secured(self, connection: PeerConnection) -> None:
        raise AssertionError("nothing was connected")

    def handshake_received(self, connection: PeerConnection, frame: bytes) -> None:
        raise AssertionError("nothing was connected")

    def ended(self, connection: PeerConnection, reason: str, end_of_file: bool) -> None:
        raise AssertionError("nothing was connected")


async def test_frames_wait_for_what_was_told_before_they_were_let_through() -> None:
    """A link is reported with call_soon, then its connections flow: bytes that the loop reads before it makes that call
    (uvloop does) must not be handed on before it."""
    connection = PeerConnection(client_context(), NoOwner(), server_side=False)
    connection.establish(0)
    told: list[bool] = []
    asyncio.get_running_loop().call_soon(lambda: told.append(connection.wants_bytes()))
    connection.flow(True)
    assert not connection.wants_bytes(), "bytes that are read right now must wait"
    await asyncio.sleep(0)
    assert told == [False]
    assert connection.wants_bytes()


async def test_a_cut_that_comes_at_once_after_the_release_holds() -> None:
    connection = PeerConnection(client_context(), NoOwner(), server_side=False)
    connection.establish(0)
    connection.flow(True)
    connection.flow(False)
    await asyncio.sleep(0)
    assert not connection.wants_bytes()
