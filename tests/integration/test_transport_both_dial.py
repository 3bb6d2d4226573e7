"""Both ends dial at once: the steps of the two dials are told apart, and one is held back at each while the other runs.

A step is one message of the handshake of one connection that is heard: challenge, hello, verdict. The sockets and the
TLS are real; what has arrived is only held back until its turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.transport import LOOPS, Site, run, start, until

from chaos_protocols.names import SiteId
from chaosd.transport.connection import PeerConnection
from chaosd.transport.tls import TlsChannel

pytestmark = pytest.mark.parametrize("loop_kind", LOOPS)

STEPS = 3 * 3
"""Of one dial: three messages on each of three connections (control, two streams)."""


class Gates:
    """Holds back what arrives on the connections of a dial, step by step."""

    def __init__(self) -> None:
        self.waiting: list[TlsChannel] = []
        self.open: set[SiteId] = set()
        self._pump, self._eof_received = TlsChannel.pump, TlsChannel.eof_received

    @contextlib.contextmanager
    def in_force(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(TlsChannel, "pump", lambda channel: self._arrived(channel))
            patch.setattr(TlsChannel, "eof_received", lambda channel: self._ended(channel))
            yield

    def _arrived(self, channel: TlsChannel) -> None:
        connection = channel._sink
        heard = isinstance(connection, PeerConnection) and connection._link is None and channel.is_open
        if not heard or dialer_of(channel) in self.open:
            self._pump(channel)
        elif channel not in self.waiting:
            self.waiting.append(channel)

    def _ended(self, channel: TlsChannel) -> bool:
        """The end is not heard before what was said. True keeps the socket."""
        if channel not in self.waiting:
            self._eof_received(channel)
        return channel in self.waiting

    def next_of(self, dialer: SiteId) -> TlsChannel | None:
        """What the dial of that site would do next."""
        return next((channel for channel in self.waiting if dialer_of(channel) == dialer), None)

    def step(self, channel: TlsChannel) -> None:
        self.waiting.remove(channel)
        self._pump(channel)

    def let_all(self, dialer: SiteId) -> None:
        self.open.add(dialer)
        while (channel := self.next_of(dialer)) is not None:
            self.step(channel)


_ports: dict[int, SiteId] = {}


def dialer_of(channel: TlsChannel) -> SiteId:
    """Which site dialled this connection, by the port that listens at one of its ends."""
    assert channel.transport is not None
    names = [channel.transport.get_extra_info(name) for name in ("sockname", "peername")]
    return next(_ports[name[1]] for name in names if name is not None and name[1] in _ports)


def dialling(site: Site, peer: Site) -> bool:
    return peer.id in site.transport._dials._attempts


async def both_dial(gates: Gates, first: Site, other: Site, before: int, meanwhile: int) -> None:
    """`first` dials and runs `before` steps, then `other` dials and runs `meanwhile` steps, then `first` ends, then
    `other`. A dial that has given way or ended runs no further steps."""
    dials: list[asyncio.Task[None]] = []
    gates.open.clear()
    for site, peer, steps in ((first, other, before), (other, first, meanwhile)):
        dial = asyncio.create_task(site.dial(peer))
        dials.append(dial)
        await until(lambda d=dial, s=site, p=peer: d.done() or dialling(s, p))  # type: ignore[misc]
        for _ in range(steps):
            await until(lambda s=site, p=peer: gates.next_of(s.id) or not dialling(s, p))  # type: ignore[misc]
            if (channel := gates.next_of(site.id)) is None:
                break
            gates.step(channel)
    gates.let_all(first.id)
    await until(lambda: not dialling(first, other))
    gates.let_all(other.id)
    await asyncio.gather(*dials)


@pytest.mark.parametrize("first", ["smaller", pytest.param("larger", marks=pytest.mark.long)])
def test_whatever_the_order_of_their_steps_two_dials_bring_up_one_link_once(
    loop_kind: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        pair = sorted((Site(tmp_path, "a"), Site(tmp_path, "b")), key=lambda site: site.id)
        one, other = pair if first == "smaller" else reversed(pair)
        await start(one, other)
        _ports.clear()
        _ports.update({one.transport._listener.port: other.id, other.transport._listener.port: one.id})
        gates = Gates()
        with gates.in_force(monkeypatch):
            for before, meanwhile in itertools.product(range(STEPS + 1), repeat=2):
                order = f"{before} steps of the {first} site, {meanwhile} of the other"
                await both_dial(gates, one, other, before, meanwhile)
                await until(lambda: one.neighbours and other.neighbours, f"the link at both ends ({order})")
                sessions = {
                    site.transport._links[peer.id].session.dialer for site, peer in ((one, other), (other, one))
                }
                assert len(sessions) == 1, f"both ends keep the same connections ({order})"
                assert one.transport.send_control(other.id, b"1") and other.transport.send_control(one.id, b"2")
                await until(lambda: one.events.frames and other.events.frames, f"a frame at both ends ({order})")
                for site in pair:
                    assert (len(site.events.ups), site.events.losses) == (1, []), order
                one.transport.close_link(other.id, "that was it")
                await until(lambda: one.events.losses and other.events.losses, "the end of the link")
                for site in pair:
                    for told in (site.events.ups, site.events.losses, site.events.frames):
                        told.clear()

    run(loop_kind, main)
