"""What somebody may say before it is known who he is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.daemon.transport.test_handshake import proof_for

from chaos_protocols.wire.handshake import NONCE_BYTES, Hello, Verdict
from chaosd.identity import Identity
from chaosd.transport.errors import PeerProtocolError
from chaosd.transport.handshake import ListenerHandshake, Speaker
from chaosd.transport.listener import Listener, _Visitor
from chaosd.transport.settings import HANDSHAKES_MAX, TransportSettings


class Visitor:
    """A connection over which nothing more is sent."""

    peer_host = "192.0.2.1"


class Crowded(Visitor):
    """One of many, that has proven nothing yet."""

    def __init__(self, host: str) -> None:
        self.peer_host = host
        self.told: list[str] = []

    def abort(self, reason: str) -> None:
        self.told.append(reason)


class Undecided:
    """A gatekeeper that does not know yet, as with a link that is just coming from the other side."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def judge(self, site: str, hello: Hello, _: Any) -> tuple[Verdict | None, str]:
        self.asked.append(site)
        return None, ""


async def test_a_second_hello_on_one_connection_breaks_the_protocol_and_nobody_is_asked_again(tmp_path: Path) -> None:
    """Each one costs a signature to be checked."""
    dialer, listening = Identity.create(tmp_path / "dialer"), Identity.create(tmp_path / "listener")
    gatekeeper = Undecided()
    listener = Listener(
        listening, TransportSettings(listen_host="127.0.0.1", listen_port=0), cast(Any, gatekeeper), lambda _: None
    )
    machine = ListenerHandshake(listening, bytes(NONCE_BYTES), Speaker())
    connection = cast(Any, Visitor())
    deadline = asyncio.get_running_loop().call_later(60.0, lambda: None)
    listener._visitors[connection] = _Visitor(machine, deadline)
    proof = proof_for(dialer, listening, machine)
    listener.handshake_received(connection, proof)
    with pytest.raises(PeerProtocolError, match="more than one hello"):
        listener.handshake_received(connection, proof)
    deadline.cancel()
    assert gatekeeper.asked == [dialer.site]


def listener_at(path: Path, **settings: Any) -> Listener:
    return Listener(
        Identity.create(path / "listener"),
        TransportSettings(listen_host="127.0.0.1", listen_port=0, **settings),
        cast(Any, Undecided()),
        lambda _: None,
    )


async def test_so_many_connections_may_be_unproven_at_once(tmp_path: Path) -> None:
    listener = listener_at(tmp_path)
    channels = [listener._visit() for _ in range(2 * HANDSHAKES_MAX)]
    assert listener.visitors == HANDSHAKES_MAX
    await listener.close()
    assert len({id(channel) for channel in channels}) == 2 * HANDSHAKES_MAX, "each had its turn"


@pytest.mark.parametrize(
    ("hosts", "goes"),
    [
        (("192.0.2.2", "192.0.2.1", "192.0.2.1"), 1),  # the oldest at all may be a site that dials over a slow line
        (("192.0.2.1", "192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8::3"), 2),  # who has one of them has all
    ],
)
async def test_the_oldest_of_the_busiest_address_gives_way(tmp_path: Path, hosts: tuple[str, ...], goes: int) -> None:
    listener, crowd = listener_at(tmp_path), [Crowded(host) for host in hosts]
    for one in crowd:
        deadline = asyncio.get_running_loop().call_later(60.0, lambda: None)
        listener._visitors[cast(Any, one)] = _Visitor(cast(Any, None), deadline)
    listener._make_room()
    assert [number for number, one in enumerate(crowd) if one.told] == [goes]
    await listener.close()


async def test_a_proof_that_is_not_there_in_time_ends_the_connection(tmp_path: Path) -> None:
    listener = listener_at(tmp_path, handshake_timeout_s=7.0)
    listener._visit()
    ((connection, visitor),) = listener._visitors.items()
    assert visitor.deadline.when() <= asyncio.get_running_loop().time() + 7.0
    listener._too_slow(connection)  # what the deadline calls
    await asyncio.sleep(0)  # an end is told from the loop
    assert listener.visitors == 0 and visitor.deadline.cancelled()
