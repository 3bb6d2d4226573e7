"""The SDK's end of the worker's socket, against bytes of a daemon of another release."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
import pytest

from chaos.connection import Connection, Wakeup
from chaos.errors import DaemonProtocolError
from chaos_protocols.wire.worker import TrainFrom, encode


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A script's connection, and the daemon's end of it."""
    ours, theirs = socket.socketpair()
    wakeup = Wakeup()
    connection = Connection(ours, wakeup)
    yield connection, theirs
    connection.close()
    theirs.close()
    wakeup.close()


def framed(**fields: object) -> bytes:
    body = msgspec.msgpack.encode(fields)
    return len(body).to_bytes(4, "big") + body


def test_what_a_newer_daemon_says_is_skipped_where_it_may_be_and_the_next_message_is_not_kept_waiting(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, daemon = ends
    daemon.sendall(framed(type="Advice", optional=True, text="rest") * 2 + encode(TrainFrom(round=1)))
    assert connection.receive(0.0) == TrainFrom(round=1), "without a wait"


def test_a_field_that_a_newer_daemon_adds_is_left_out_of_account(ends: tuple[Connection, socket.socket]) -> None:
    connection, daemon = ends
    daemon.sendall(framed(type="TrainFrom", round=3, pace="slow"))
    assert connection.receive(30.0) == TrainFrom(round=3)


def test_what_may_not_be_skipped_ends_the_conversation_with_the_remedy(ends: tuple[Connection, socket.socket]) -> None:
    connection, daemon = ends
    daemon.sendall(framed(type="Advice", text="stop"))
    with pytest.raises(DaemonProtocolError, match="install both from the same version"):
        connection.receive(30.0)
