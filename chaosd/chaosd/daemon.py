"""The daemon: puts the parts of one site together, runs until the site has left, and leaves nothing behind.

`run_daemon` is what `chaosd start` calls. The parts: journal and history on disk, transport to the neighbours, worker
sessions and local API on unix sockets, the engines, and the driver with the site's machine. All of them are whole when
they are made, before anything runs: who may connect is known before the first site knocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from chaos_protocols.causes import Why
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.events import ForcedStop, LeaveRequested, SiteRefused
from chaos_protocols.links.keys import FORMER_KEY
from chaos_protocols.names import SiteId, short
from chaos_protocols.state.transfer import TransferSettings
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.versions import SOFTWARE_CHARACTERS_MAX, Versions
from chaosd.addresses import join_address, split_address
from chaosd.api.daemon_status import version
from chaosd.api.operations import Operations
from chaosd.api.server import LocalApi
from chaosd.bulk.reduce.engine import ReduceEngine
from chaosd.bulk.replication.engine import ReplicationEngine
from chaosd.bulk.streams import AVERAGING, OTHER, STATE, BulkStreams, CountedSender
from chaosd.conduct import GUESTS_LINKED_MAX
from chaosd.config.model import SiteConfig
from chaosd.driver import Driver, Parts
from chaosd.identity import Identity
from chaosd.key_changes import KeyChanges
from chaosd.key_files import take_agreed
from chaosd.log_format import ForTerminals, formatter
from chaosd.machine import make_machine
from chaosd.message_auth import MessageAuth
from chaosd.metrics import Metrics
from chaosd.model_check import ModelCheck
from chaosd.monitor.gauges import Gauges
from chaosd.monitor.link_meter import LinkMeter
from chaosd.monitor.probe import LinkProbe
from chaosd.monitor.watchdog import watch
from chaosd.os_errors import raise_files_allowed
from chaosd.page.access import PageDoor
from chaosd.page.server import PageServer
from chaosd.peer_view import PeerViews
from chaosd.reloading import reloaded
from chaosd.run_bounds import BoundsWishes
from chaosd.storage.checkpoint_keeper import StateKeeper
from chaosd.storage.checkpoints import CheckpointFolder
from chaosd.storage.history import History
from chaosd.storage.journal.journal import Journal
from chaosd.storage.recorder import Recorder
from chaosd.storage.rounds_log import RoundsLog
from chaosd.transport import Transport, TransportSettings
from chaosd.transport.settings import KeptOut
from chaosd.trust import TrustList
from chaosd.worker.hang_command import HangCommand
from chaosd.worker.session import WorkerSessions

log = logging.getLogger("chaosd")
EXIT_LEFT, EXIT_FAILED, EXIT_CAUSE, EXIT_FORCED = 0, 1, 4, 130
"""4: for a cause that stays (`Place.ENDS`): a service manager must not start this daemon again."""


class Daemon:
    """One site's daemon; also the `TransportEvents` of the transport."""

    def __init__(self, config: SiteConfig, identity: Identity, journal: Journal, history: History) -> None:
        self.config = config
        self.identity = identity
        self._journal, self._history = journal, history
        self._interrupts = 0
        self.page_door = PageDoor(config.page)
        self._ending = "the daemon gave up; its log says why"
        self.stays = False
        """Its script has left, nobody else: another life is to follow this one."""
        self.reload: Callable[[], SiteConfig] | None = None
        """Reads the configuration again; None: it did not come from a file."""
        self.listening: socket.socket | None = None
        """Listens at the configured address already; None: the daemon opens the port itself."""
        host, port = split_address(config.listen)
        self.metrics = Metrics()
        self.transport = self.make_transport(
            TransportSettings(
                listen_host=host,
                listen_port=port,
                advertise_address=config.advertise if config.advertise != config.listen else None,
                bulk_streams=config.bulk_streams,
                congestion=config.congestion,
                unacknowledged_max_s=config.settings.unacknowledged_max_s,
                software=version()[:SOFTWARE_CHARACTERS_MAX],
                name_of=self.name_of,
            )
        )
        address = config.advertise if config.advertise != config.listen else join_address(host, port)
        machine, self._founding = make_machine(config, identity, journal, address=address, now_s=time.monotonic())
        self.driver = Driver(
            machine,
            MessageAuth(identity, machine.keys),
            journal,
            Recorder(history, machine),
            self.transport,
            self.metrics,
            self._make_parts,
        )
        self._trust, self.keys = TrustList(config, self.driver), KeyChanges(config.data_dir, identity, self.driver)
        self.metrics.registry.register(Gauges(self.driver, config, version()))

    def _make_parts(self, driver: Driver) -> Parts:
        """What carries this site's effects out."""
        config, site, metrics = self.config, self.identity.site, self.metrics
        machine, transport = driver.machine, driver.transport
        folder = CheckpointFolder(config.checkpoint_dir, run=config.run, site=site, kept=config.checkpoints_kept)
        probe = LinkProbe(CountedSender(transport, metrics, OTHER))
        averaging = ReduceEngine(site, CountedSender(transport, metrics, AVERAGING), driver)
        workers = WorkerSessions(
            config.worker_socket,
            driver.feed,
            averaging,
            site=site,
            run=config.run,
            vector_file=config.data_dir / "vector.msgpack",
        )
        meter = LinkMeter(
            probe,
            transport,
            config.probe,
            metrics,
            listen_host=split_address(config.listen)[0],
            address_of=lambda far: machine.links.neighbours[far].address,
            is_of_run=machine.is_trusted,
        )
        transfers = TransferSettings(stall_timeout_s=2 * config.failure_timeout_s, witness=config.verify == "witness")
        bulk = BulkStreams(
            averaging,
            ReplicationEngine(site, CountedSender(transport, metrics, STATE), driver, settings=transfers),
            probe,
            ModelCheck(transport, lambda: workers.spec, lambda: list(machine.links.up_sites())),
            PeerViews(CountedSender(transport, metrics, OTHER), machine, self.lets_in, version()),
            meter,
            metrics,
        )
        return Parts(
            workers=workers,
            bulk=bulk,
            keeper=StateKeeper(driver.feed, folder if config.checkpoint != "off" else None),
            hang_command=HangCommand(config.on_hang, driver.spawn),
            rounds_log=self.make_rounds_log(),
            key_agreed=lambda chain: self.keys.agreed(chain),  # noqa: PLW0108 - made after the driver
        )

    # -- its parts: what a daemon for experiments makes in another way

    def make_transport(self, settings: TransportSettings) -> Transport:
        """The links to the neighbours, with this daemon as their `TransportEvents`."""
        return Transport(
            identity=self.identity,
            run=self.config.run,
            incarnation=self._journal.incarnation,
            events=self,
            settings=settings,
        )

    def make_api(self, operations: Operations, further: Sequence[web.RouteDef]) -> LocalApi:
        """The local API, with `further` routes beside its own."""
        return LocalApi(self.config.api_socket, operations, further=further)

    def make_rounds_log(self) -> RoundsLog | None:
        """Who contributed to which round: written for experiments only."""
        return None

    def before_start(self) -> None:
        """Everything is made; no API, no worker and no dial yet."""

    # -- life

    async def run(self) -> int:
        """Until the site has left (0), was forced (130) or had to give up (1)."""
        try:
            await self.transport.start(self.listening)
        except BaseException:
            await self.driver.close()
            raise
        loop = asyncio.get_running_loop()
        driver = self.driver
        if self._founding is not None:
            self._journal.persist(self._founding)
        operations = Operations(driver, self.config, self._history)
        page = PageServer(
            operations,
            site=self.identity.site,
            door=self.page_door,
            metrics_token_file=self.config.metrics_token_file,
            lists=self._trust,
        )
        further = [*page.local_routes(), *self._trust.local_routes(), *driver.bulk.views.local_routes()]
        further += [*BoundsWishes(driver).local_routes(), *self.keys.local_routes()]
        api = self.make_api(operations, further)
        try:
            self.before_start()
            await api.start()
            await page.start()
            await driver.workers.start()
            self._catch_signals(loop)
            driver.start(self._trust.addresses())
            self._trust.started()
            self.keys.started()
            self._greet()
            return await self._until_stopped(loop)
        finally:
            self._release_signals(loop)
            await api.close()
            await page.close(self._ending)
            await driver.workers.close()
            await driver.bulk.close()
            await self.transport.close()
            await driver.close()
            driver.recorder.close()

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
            end = await stopped
            self._ending = end.reason
            self.stays = end.for_script and not self.config.exit_with_worker
            what = "the daemon stays, outside the run, for the next script" if self.stays else "the daemon ends"
            log.log(logging.INFO if end.cause is None else logging.ERROR, "%s: %s", what, end.reason)
            await asyncio.sleep(0.05)  # the last messages leave before the links close
            return EXIT_CAUSE if end.cause is not None else EXIT_LEFT if end.graceful else EXIT_FORCED
        except Exception:
            return EXIT_FAILED
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def _release_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def _hung_up(self) -> None:
        """SIGHUP: what can be changed while the daemon runs is; a terminal that is closed ends no run."""
        self.config = reloaded(self.config, self.reload, self.driver, self._trust.addresses)
        self._trust.config = self.config

    def _interrupted(self) -> None:
        """The first Ctrl+C leaves gracefully, the second forces."""
        self._interrupts += 1
        stopped = self.driver.stopped
        if self._interrupts > 1 and stopped is not None and not stopped.done():
            log.warning("forced: the other sites will see this as a failure")
            self.driver.feed(ForcedStop(reason="forced by the user"))
            return
        log.info("leaving the run; Ctrl+C again forces")
        self.driver.feed(LeaveRequested(request="", reason="Ctrl+C in the daemon"))

    # -- TransportEvents: who may connect is decided here, the rest is the driver's

    def keeps_out(self, site: SiteId, purpose: str, chain: KeyChain) -> KeptOut | None:
        roster = self.driver.machine.roster
        if not self.accepts(site, chain):
            return KeptOut(FORMER_KEY)
        if site in roster.banned:
            return KeptOut("banned from the run")
        if refusal := self.driver.conduct.why_not(site):
            return KeptOut(refusal)
        if not self.driver.conduct.has_room(site, self.driver.machine.links.up_sites()):
            return KeptOut(f"{GUESTS_LINKED_MAX} sites outside the run are linked already")
        if self.config.admission == "open" or site in self._trust or site in roster.site_ids():
            return None
        return KeptOut("not trusted by this site", stranger=True)

    def accepts(self, site: SiteId, chain: KeyChain) -> bool:
        return self.driver.machine.keys.accepts(site, chain)

    def lets_in(self, site: SiteId) -> str:
        """What lets that site connect, for people; empty: nothing but `admission = "open"`."""
        return self._trust.lets_in(site)

    def name_of(self, site: SiteId) -> str:
        """What it is called before people."""
        return self._trust.called(site)

    def run_id(self) -> str:
        return self.driver.machine.roster.run_id

    def run_rules(self) -> int:
        return self.driver.machine.replica.rules

    def newest_start(self, site: SiteId) -> int:
        record = self.driver.machine.roster.record(site)
        return record.incarnation if record is not None else 0

    def refused(self, site: SiteId, why: Why) -> None:
        self.driver.feed(SiteRefused(site=site, why=why))

    def link_up(self, site: SiteId, incarnation: int, address: str, versions: Versions) -> None:
        self.driver.link_up(site, incarnation, address, versions)

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        self.driver.link_lost(site, incarnation, reason, end_of_file)

    def control_received(self, site: SiteId, frame: bytes) -> float:
        return self.driver.control_received(site, frame)

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


MakeDaemon = Callable[[SiteConfig, Identity, Journal, History], Daemon]


def run_daemon(
    config: SiteConfig,
    make: MakeDaemon = Daemon,
    *,
    reload: Callable[[], SiteConfig] | None = None,
    listening: socket.socket | None = None,
) -> int:
    """Run one site's daemon until it ends; the exit status. When its script alone has left, another life of it follows:
    to the run it is a daemon that was started anew, and nothing of the former life counts. `reload` reads its
    configuration again; its first life takes over the socket `listening`.

    Raises IdentityError, JournalError, HistoryError, ListenError or UnixSocketError, each with a remedy, when it cannot
    start."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(config.log_format))
    handler.addFilter(ForTerminals())
    logging.basicConfig(handlers=[handler], level=config.log_level.upper())
    data_dir: Path = config.data_dir
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if take_agreed(data_dir):
        log.info("this site uses its new key from now on; the run agreed on it before")
    identity = Identity.load(data_dir)
    page_door: PageDoor | None = None
    if told := raise_files_allowed(len(config.peers)):
        log.warning("%s", told)
    while True:
        with (
            Journal.open(data_dir, incarnation_floor=int(time.time() * 1000), site=identity.site) as journal,
            History.open(data_dir / "history.sqlite") as history,
            asyncio.Runner(loop_factory=_loop_factory()) as runner,
        ):
            daemon = make(config, identity, journal, history)
            daemon.page_door = page_door = page_door or daemon.page_door
            daemon.reload = reload
            daemon.listening, listening = listening, None
            code = runner.run(daemon.run())
            config = daemon.config
        if not daemon.stays:
            return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
