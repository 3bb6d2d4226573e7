"""Options of bulk sockets: asked for where they help, done without where the system does not allow them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from chaosd.transport import sockets
from chaosd.transport.sockets import SocketOptions, congestion_of, round_trip_s, streams_for, tune, window_bytes

MIB = 1 << 20


@pytest.fixture
def connected() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
        with near, far:
            yield near


@pytest.mark.parametrize(
    ("rtt_ms", "window", "available", "streams"),
    [
        (0.0, 2 * MIB, 3, 1),
        (0.05, 2 * MIB, 3, 1),
        (3.0, 2 * MIB, 3, 2),
        (80.0, 2 * MIB, 3, 3),
        (80.0, 2 * MIB, 15, 15),
        (20.0, 16 * MIB, 3, 2),
        (80.0, 2 * MIB, 0, 0),
    ],
)
def test_a_long_round_trip_asks_for_more_streams_and_a_large_window_for_fewer(
    rtt_ms: float, window: int, available: int, streams: int
) -> None:
    assert streams_for(rtt_ms / 1000, window, available) == streams


def test_a_control_socket_sends_at_once_and_keeps_the_rest_as_it_was(connected: socket.socket) -> None:
    before = congestion_of(connected)
    assert tune(connected, bulk=False) == ""
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert congestion_of(connected) == before


@pytest.mark.skipif(sys.platform != "linux", reason="congestion control of a socket can be chosen on Linux only")
def test_a_congestion_control_that_is_named_is_used_and_one_that_is_not_there_is_done_without(
    connected: socket.socket,
) -> None:
    before = congestion_of(connected)
    assert tune(connected, bulk=True) == before, "loopback is left alone"
    assert tune(connected, bulk=True, options=SocketOptions(congestion="reno")) == "reno"
    assert tune(connected, bulk=True, options=SocketOptions(congestion="nosuchthing")) == "reno"


def test_what_a_socket_does_not_tell_counts_as_unknown(connected: socket.socket) -> None:
    assert round_trip_s(None) == 0.0
    assert congestion_of(None) == ""
    assert window_bytes(None) > 0
    assert tune(None, bulk=True) == ""
    assert 0 <= round_trip_s(connected) < 1


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may exceed the limit")
def test_a_buffer_that_is_fixed_for_a_long_path_does_not_fix_the_window_of_a_young_connection(
    connected: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fixes the size of a buffer switches the system's tuning off, and with it the growth of the window."""
    monkeypatch.setattr(sockets, "_is_local", lambda one: False)
    monkeypatch.setattr(sockets, "round_trip_s", lambda one: 0.02)
    window = getattr(socket, "TCP_WINDOW_CLAMP", 10)
    young = connected.getsockopt(socket.IPPROTO_TCP, window)
    tune(connected, bulk=True)
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > sockets.BULK_BUFFER_BYTES, "it is fixed"
    assert young < MIB < sockets.BULK_BUFFER_BYTES_MAX <= connected.getsockopt(socket.IPPROTO_TCP, window)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_socket_that_was_closed_meanwhile_has_no_figures(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The daemon looks at its connections while others close them."""

    async def closed() -> Any:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        one = writer.get_extra_info("socket")
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        server.close()
        return one

    with asyncio.Runner(loop_factory=loop) as runner:
        gone = runner.run(closed())
    assert sockets.path_bytes_per_s(gone) is None
    figures: list[Callable[[Any], float]] = [sockets.delivery_bytes_per_s, sockets.unacknowledged_bytes]
    figures += [round_trip_s, sockets.retransmitted_segments, sockets.unread_bytes]
    assert [figure(gone) for figure in figures] == [0, 0, 0, 0, 0]
    assert congestion_of(gone) == "" and tune(gone, bulk=True) == "" and window_bytes(gone) > 0
    assert not sockets.keep_unsent(gone, 1000)


def test_what_the_system_holds_of_what_came_is_known_though_nobody_is_woken_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
        with near, far:
            assert sockets.unread_bytes(near) == 0
            sockets.wake_for(near, 50_000)
            far.sendall(bytes(10_000))
            far.shutdown(socket.SHUT_WR)  # the end wakes, when all has come
            select.select([near], [], [], 10.0)
            assert sockets.unread_bytes(near) == 10_000
            near.recv(4_000)
            assert sockets.unread_bytes(near) == 6_000
