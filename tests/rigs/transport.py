"""Sites with real sockets and real TLS on 127.0.0.1 for the transport tests; a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from chaos_lab.links.transport import LabTransport
from chaos_protocols.causes import Why
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.recovered import RunRecovered
from chaosd.identity import Identity, site_of
from chaosd.transport import PeerProtocolError, TransportSettings
from chaosd.transport.handshake import Speaker
from chaosd.transport.settings import KeptOut

LOOPS = ("uvloop", pytest.param("asyncio", marks=pytest.mark.long))
"""The loop that a daemon has, and the one it takes where uvloop cannot be had. The second says the same once more, so
it is not for every `make test`."""
RUN = "hearts"
WAIT_S = 60.0

_started: list[Site] = []
_identities: dict[tuple[Path, str], Identity] = {}


def run(loop_kind: str, main: Callable[[], Awaitable[None]]) -> None:
    """Run `main` on a fresh loop; fails when it leaves a task, a file descriptor or an unhandled error."""
    complaints: list[str] = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        _started.clear()
        try:
            await main()
        finally:
            await close(*_started)
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"tasks left behind: {others}"

    factory = uvloop.new_event_loop if loop_kind == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.sleep(0))  # a library opens what it keeps for good with its first loop
    before = open_descriptors()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(body())
    assert not complaints, complaints
    assert open_descriptors() <= before, "file descriptors left behind"


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def identity(folder: Path, name: str) -> Identity:
    """One key for each name within a test."""
    key = (folder, name)
    if key not in _identities:
        _identities[key] = Identity.create(folder / name)
    return _identities[key]


class Recorder:
    """The driver's side: admits whom it is told to, remembers everything."""

    def __init__(self) -> None:
        self.trusted: set[SiteId] = set()
        self.of_the_run: set[SiteId] = set()
        self.ups: list[tuple[SiteId, int, str]] = []
        self.losses: list[tuple[SiteId, int, str, bool]] = []
        self.frames: list[bytes] = []
        self.bulk: list[tuple[int, bytes, memoryview | None]] = []
        self.bulk_losses: list[tuple[int, str]] = []
        self.asked: list[tuple[SiteId, str]] = []
        self.buffers: dict[bytes, memoryview] = {}
        self.run, self.agreed, self.rules = "", 0, 0
        self.refusals: list[tuple[SiteId, Why]] = []
        self.recovery: RunRecovered | None = None
        self.recoveries: list[tuple[SiteId, str, RunRecovered]] = []

    def recovered(self) -> RunRecovered | None:
        return self.recovery

    def heard_recovered(self, site: SiteId, address: str, statement: RunRecovered) -> None:
        self.recoveries.append((site, address, statement))

    def run_id(self) -> str:
        return self.run

    def run_rules(self) -> int:
        return self.rules

    def may_name_hosts(self, site: SiteId) -> bool:
        return site in self.of_the_run

    def both_in_run(self, site: SiteId) -> bool:
        return site in self.of_the_run

    def newest_start(self, site: SiteId) -> int:
        return self.agreed

    def refused(self, site: SiteId, why: Why) -> None:
        self.refusals.append((site, why))

    def accepts(self, site: SiteId, chain: KeyChain) -> bool:
        return site_of(chain.first) == site

    def let_in(self, site: SiteId) -> None:
        """It shows in `asked`."""

    def keeps_out(self, site: SiteId, purpose: str, chain: KeyChain, host: str) -> KeptOut | None:
        self.asked.append((site, purpose))
        return None if site in self.trusted else KeptOut("not in the roster of this test", stranger=True)

    def link_up(self, site: SiteId, incarnation: int, address: str, speaker: Speaker) -> None:
        self.ups.append((site, incarnation, address))

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        self.losses.append((site, incarnation, reason, end_of_file))

    def control_received(self, site: SiteId, frame: bytes) -> None:
        self.frames.append(frame)

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        if header == b"refuse":
            raise PeerProtocolError("this test takes no such payload")
        if header == b"discard":
            return None
        return self.buffers.get(header) or memoryview(bytearray(size_bytes))

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        self.bulk.append((stream, header, payload))

    def bulk_lost(self, site: SiteId, stream: int, reason: str) -> None:
        self.bulk_losses.append((stream, reason))


class Site:
    """One transport and its recorder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        run: str = RUN,
        incarnation: int = 1,
        known_as: Identity | None = None,
        **settings: object,
    ) -> None:
        """`known_as`: its key, where that is not the one of its name."""
        self.identity = known_as or identity(folder, name)
        self.events = Recorder()
        self.transport = LabTransport(
            identity=self.identity,
            run=run,
            incarnation=incarnation,
            events=self.events,
            settings=TransportSettings(listen_host="127.0.0.1", **settings),  # type: ignore[arg-type]
        )

    @property
    def id(self) -> SiteId:
        return self.identity.site

    async def dial(self, other: Site, timeout_s: float = WAIT_S) -> None:
        await self.transport.dial(other.id, other.transport.address, timeout_s=timeout_s)

    @property
    def neighbours(self) -> list[SiteId]:
        return [link.site for link in self.transport.links()]


async def start(*sites: Site, trusting: bool = True) -> None:
    """Start all; with `trusting` everybody admits everybody."""
    for site in sites:
        if site not in _started:
            _started.append(site)
            await site.transport.start()
        if trusting:
            site.events.trusted |= {one.id for one in sites}


async def link(a: Site, b: Site) -> None:
    """Start both; `a` dials, and both ends have the link."""
    await start(a, b)
    await a.dial(b)
    await until(lambda: b.neighbours)


async def linked(folder: Path) -> tuple[Site, Site]:
    a, b = Site(folder, "a"), Site(folder, "b")
    await link(a, b)
    return a, b


async def close(*sites: Site) -> None:
    """A second close does nothing."""
    for site in sites:
        await site.transport.close()


async def until(condition: Callable[[], object], what: str = "the condition", timeout_s: float = WAIT_S) -> None:
    """Wait for something that the loop has to bring about."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline_s, f"{what} did not come about within {timeout_s} s"
        await asyncio.sleep(0.002)
