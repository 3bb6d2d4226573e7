"""The daemon: puts the parts of one site together, runs until the site has left, and leaves nothing behind.

`run_daemon` is what `chaosd start` calls. The parts: journal and history on disk, transport to the neighbours, worker
server and local API on unix sockets, the engines, and the driver with the site's machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.events import LeaveRequested
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.versions import SOFTWARE_CHARACTERS_MAX, Versions
from chaosd.api import LocalApi
from chaosd.assembly import make_driver, make_machine
from chaosd.config import SiteConfig, parse_address
from chaosd.daemon_status import version
from chaosd.driver import Driver
from chaosd.history import History
from chaosd.identity import Identity
from chaosd.journal import Journal
from chaosd.operations import Operations
from chaosd.rounds_log import RoundsLog
from chaosd.transport import LinkShape, Transport, TransportSettings
from chaosd.watchdog import watch

log = logging.getLogger("chaosd")
REFUSALS_TOLD_MAX = 1000
EXIT_LEFT, EXIT_FAILED, EXIT_FORCED = 0, 1, 130


class Daemon:
    """One site's daemon; also the `TransportEvents` of the transport."""

    def __init__(self, config: SiteConfig, identity: Identity, journal: Journal, history: History) -> None:
        self.config = config
        self.identity = identity
        self._journal, self._history = journal, history
        self._interrupts = 0
        self._refused: set[SiteId] = set()
        host, port = parse_address(config.listen)
        self.transport = Transport(
            identity=identity,
            run=config.run,
            incarnation=journal.incarnation,
            events=self,
            settings=TransportSettings(
                listen_host=host,
                listen_port=port,
                advertise_address=config.advertise if config.advertise != config.listen else None,
                bulk_streams=config.bulk_streams,
                congestion=config.congestion,
                software=version()[:SOFTWARE_CHARACTERS_MAX],
            ),
        )
        self.driver: Driver

    # -- life

    async def run(self) -> int:
        """Until the site has left (0), was forced (130) or had to give up (1)."""
        await self.transport.start()
        loop = asyncio.get_running_loop()
        machine = make_machine(
            self.config, self.identity, self._journal, address=self.transport.address, now_s=time.monotonic()
        )
        self.driver = driver = make_driver(
            self.config, machine, self.identity, self._journal, self._history, self.transport
        )
        operations = Operations(driver, self.config, self._history)
        api = LocalApi(self.config.api_socket, operations, lab=self.config.lab)
        try:
            self._shape_at_start()
            if self.config.lab:
                driver.rounds_log = RoundsLog(self.config.data_dir / "rounds.jsonl")
            driver.remember_vector(self.config.data_dir / "vector.msgpack")
            await api.start()
            await driver.workers.start()
            self._catch_signals(loop)
            driver.start(tuple((SiteId(peer.site), peer.address) for peer in self.config.peers))
            self._greet()
            return await self._until_stopped(loop)
        finally:
            self._release_signals(loop)
            await api.close()
            await driver.workers.close()
            await driver.bulk.close()
            await self.transport.close()
            await driver.close()

    def _greet(self) -> None:
        config = self.config
        if self._journal.recovered.note:
            log.warning("journal: %s", self._journal.recovered.note)
        log.info("site %s (%s) of run '%s', listening on %s", short(self.identity.site), config.name, config.run,
                 self.transport.address)  # fmt: skip
        log.info("worker socket %s; start your script with CHAOS_SOCKET=%s", config.worker_socket, config.worker_socket)

    async def _until_stopped(self, loop: asyncio.AbstractEventLoop) -> int:
        stopped = self.driver.stopped
        assert stopped is not None
        watching = loop.create_task(watch(self.driver, self.config.settings), name="watch links and worker")
        try:
            graceful, reason = await stopped
            log.info("the daemon ends: %s", reason)
            await asyncio.sleep(0.05)  # the last messages leave before the links close
            return EXIT_LEFT if graceful else EXIT_FORCED
        except Exception:
            return EXIT_FAILED
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted)

    def _release_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _interrupted(self) -> None:
        """The first Ctrl+C leaves gracefully, the second forces."""
        self._interrupts += 1
        stopped = self.driver.stopped
        if self._interrupts > 1 and stopped is not None and not stopped.done():
            log.warning("forced: the other sites will see this as a failure")
            self.driver.machine.standing.stop("forced by the user", graceful=False)
            stopped.set_result((False, "forced by the user"))
            return
        log.info("leaving the run; Ctrl+C again forces")
        self.driver.feed(LeaveRequested(request="", reason="Ctrl+C in the daemon"))

    def _shape_at_start(self) -> None:
        for shape in self.config.shapes:
            rate = None if shape.rate_mbit is None else shape.rate_mbit * 125_000
            site = None if shape.site is None else SiteId(shape.site)
            self.transport.shape(site, LinkShape(rate_bytes_per_s=rate, latency_s=shape.latency_ms / 1000))

    # -- TransportEvents: who may connect is decided here, the rest is the driver's

    def admits(self, site: SiteId, purpose: str) -> str | None:
        roster = self.driver.machine.roster if hasattr(self, "driver") else None
        if roster is not None and site in roster.banned:
            return "banned from the run"
        trusted = {*self.config.trust, *(peer.site for peer in self.config.peers)}
        if roster is not None:
            trusted.update(roster.site_ids())
        if self.config.admission == "open" or site in trusted:
            return None
        if site not in self._refused and len(self._refused) < REFUSALS_TOLD_MAX:
            self._refused.add(site)
            log.warning("refused site %s: not trusted; add its id to 'trust' in the configuration to admit it", site)
        return "not trusted by this site"

    def link_up(self, site: SiteId, incarnation: int, address: str, versions: Versions) -> None:
        self.driver.link_up(site, incarnation, address, versions)

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        self.driver.link_lost(site, incarnation, reason, end_of_file)

    def control_received(self, site: SiteId, frame: bytes) -> None:
        self.driver.control_received(site, frame)

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        try:
            return self.driver.bulk.buffer(site, stream, header, size_bytes)
        except RemoteProtocolError as error:
            self.driver.peer_broke_rules(site, str(error))
            return None

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        try:
            self.driver.bulk.received(site, stream, header, payload)
        except RemoteProtocolError as error:
            self.driver.peer_broke_rules(site, str(error))

    def bulk_lost(self, site: SiteId, stream: int, reason: str) -> None:
        self.driver.bulk_lost(site, stream, reason)


def run_daemon(config: SiteConfig) -> int:
    """Run one site's daemon until it ends; the exit status. Raises IdentityError, JournalError, HistoryError,
    ListenError or WorkerServerError, each with a remedy, when it cannot start."""
    logging.basicConfig(
        stream=sys.stderr, level=config.log_level.upper(), format="%(asctime)s %(levelname)-7s %(message)s"
    )
    data_dir: Path = config.data_dir
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    identity = Identity.load(data_dir)
    with (
        Journal.open(data_dir, incarnation_floor=int(time.time() * 1000)) as journal,
        History.open(data_dir / "history.sqlite") as history,
    ):
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(Daemon(config, identity, journal, history).run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
