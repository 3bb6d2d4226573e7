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
from chaosd.transport.settings import TransportSettings


class Visitor:
    """A connection over which nothing more is sent."""

    peer_host = "192.0.2.1"


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
