"""The daemon: puts the parts of one site together, runs until the site has left, and leaves nothing behind.

`run_daemon` is what `chaosd start` calls. The parts: journal and history on disk, transport to the neighbours, worker
sessions and local API on unix sockets, the engines, and the driver with the site's machine. All of them are whole when
they are made, before anything runs: who may connect is known before the first site knocks.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aiohttp import web

from chaos_protocols.events import ForcedStop, LeaveRequested
from chaos_protocols.names import SiteId, short
from chaos_protocols.state.transfer import TransferSettings
from chaos_protocols.wire.versions import SOFTWARE_CHARACTERS_MAX
from chaosd import hang_up, reloading
from chaosd.addresses import join_address, split_address
from chaosd.api.daemon_status import version
from chaosd.api.operations import Operations
from chaosd.api.server import LocalApi
from chaosd.api.status import Outcome
from chaosd.bulk.reduce.engine import ReduceEngine
from chaosd.bulk.replication.engine import ReplicationEngine
from chaosd.bulk.streams import AVERAGING, OTHER, STATE, BulkStreams, CountedSender
from chaosd.config.model import SiteConfig
from chaosd.driver import Driver, Parts
from chaosd.engine_reports import EngineReports
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
from chaosd.neighbours import Neighbours
from chaosd.os_errors import raise_files_allowed
from chaosd.page.access import PageDoor
from chaosd.page.server import PageServer
from chaosd.peer_view import PeerViews
from chaosd.recoveries import Recoveries
from chaosd.run_bounds import BoundsWishes
from chaosd.site_names import SiteNames
from chaosd.storage.checkpoint_keeper import StateKeeper
from chaosd.storage.checkpoints import CheckpointFolder
from chaosd.storage.history import History
from chaosd.storage.journal.journal import FILE as JOURNAL_FILE
from chaosd.storage.journal.journal import Journal
from chaosd.storage.recorder import Recorder
from chaosd.storage.rounds_log import RoundsLog
from chaosd.transport import Transport, TransportEvents, TransportSettings
from chaosd.trust import TrustList
from chaosd.worker.hang_command import HangCommand
from chaosd.worker.session import WorkerSessions

log = logging.getLogger("chaosd")
SIGNAL_CAUSES = {signal.SIGINT: "Ctrl+C in the daemon", signal.SIGTERM: "SIGTERM to the daemon"}
"""Of a site's leave, as the events tell it: a service manager presses no keys."""

EXIT_LEFT, EXIT_FAILED, EXIT_CAUSE, EXIT_FORCED = 0, 1, 4, 130
"""4: for a cause that stays (`Place.ENDS`): a service manager must not start this daemon again."""


class Daemon:
    """One site's daemon: its parts, and its life."""

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
        self.greeting: Callable[[], object] | None = None
        """Told as soon as this daemon has all that it needs, before its first line in the log."""
        self.metrics = Metrics()
        self._address = config.advertise if config.advertise != config.listen else None
        """What neighbours are told, where it is not what this site listens at."""
        address = join_address(*split_address(config.listen)) if self._address is None else self._address
        machine, self._founding = make_machine(config, identity, journal, address=address, now_s=time.monotonic())
        auth = MessageAuth(identity, machine.keys)
        names = SiteNames(machine, self._names_given)
        recorder = Recorder(history, machine, names)
        self.driver = Driver(machine, auth, journal, recorder, names, self.metrics, self._make_parts)
        self.metrics.registry.register(Gauges(self.driver, config, version()))

    def _make_parts(self, driver: Driver) -> Parts:
        """What carries this site's effects out."""
        config, site, metrics, machine = self.config, self.identity.site, self.metrics, driver.machine
        self._trust, self._keys = TrustList(config, driver), KeyChanges(config.data_dir, self.identity, driver)
        neighbours = Neighbours(driver, self._trust)
        transport = self.make_transport(neighbours, self._transport_settings())
        rounds_log = self.make_rounds_log()
        reports = EngineReports(driver, neighbours, rounds_log)
        folder = CheckpointFolder(
            config.checkpoint_dir,
            run=config.run,
            site=site,
            kept=config.checkpoints_kept,
            run_id=lambda: machine.roster.run_id,
        )
        probe = LinkProbe(CountedSender(transport, metrics, OTHER))
        averaging = ReduceEngine(site, CountedSender(transport, metrics, AVERAGING), reports)
        averaging.exchange.may_hold = machine.may_hold_results
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
            ReplicationEngine(site, CountedSender(transport, metrics, STATE), reports, settings=transfers),
            probe,
            ModelCheck(transport, lambda: workers.spec, lambda: list(machine.links.up_sites())),
            PeerViews(CountedSender(transport, metrics, OTHER), machine, self._trust, version(), config.way_out),
            meter,
            metrics,
        )
        return Parts(
            transport=transport,
            workers=workers,
            bulk=bulk,
            keeper=StateKeeper(driver.feed, folder if config.checkpoint != "off" else None),
            hang_command=HangCommand(config.on_hang, driver.spawn),
            rounds_log=rounds_log,
            key_agreed=self._keys.agreed,
        )

    def _names_given(self) -> Mapping[SiteId, str]:
        """What this site is called, and what its operator calls others."""
        return self._trust.names(self.config.name)

    def _transport_settings(self) -> TransportSettings:
        config = self.config
        host, port = split_address(config.listen)
        return TransportSettings(
            listen_host=host,
            listen_port=port,
            advertise_address=self._address,
            bulk_streams=config.bulk_streams,
            congestion=config.congestion,
            proxy=config.way_out,
            unacknowledged_max_s=config.settings.unacknowledged_max_s,
            software=version()[:SOFTWARE_CHARACTERS_MAX],
            name_of=self._trust.called,
        )

    # -- its parts: what a daemon for experiments makes in another way

    def make_transport(self, events: TransportEvents, settings: TransportSettings) -> Transport:
        """The links to the neighbours."""
        return Transport(
            identity=self.identity,
            run=self.config.run,
            incarnation=self._journal.incarnation,
            events=events,
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
            await self.driver.transport.start(self.listening)
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
        further += [*BoundsWishes(driver).local_routes(), *self._keys.local_routes()]
        further += [*Recoveries(driver, self._trust).local_routes(), *reloading.local_routes(self._reload)]
        api = self.make_api(operations, further)
        try:
            self.before_start()
            await api.start()
            await page.start()
            await driver.workers.start()
            self._catch_signals(loop)
            driver.start(self._trust.told())
            if self.config.send_bytes_per_s:
                reloading.limit_sending(driver, self.config)
            self._trust.started()
            self._keys.started()
            self._greet()
            return await self._until_stopped(loop)
        finally:
            self._release_signals(loop)
            await api.close()
            await page.close(self._ending)
            await driver.workers.close()
            await driver.bulk.close()
            await self.driver.transport.close()
            await driver.close()
            driver.recorder.close()

    def _greet(self) -> None:
        config = self.config
        if self.greeting is not None:
            self.greeting()
        if self._journal.recovered.note:
            log.warning("journal: %s", self._journal.recovered.note)
        log.info("site %s (%s) of run '%s', listening on %s", short(self.identity.site), config.name, config.run,
                 self.driver.transport.address)  # fmt: skip
        worker_socket = str(config.worker_socket)
        log.info("worker socket %s; start your script with CHAOS_SOCKET=%s", worker_socket, shlex.quote(worker_socket))

    async def _until_stopped(self, loop: asyncio.AbstractEventLoop) -> int:
        stopped = self.driver.stopped
        assert stopped is not None
        watching = loop.create_task(
            watch(self.driver, self.config.settings, self.config.data_dir / JOURNAL_FILE), name="watch links and worker"
        )
        watching.add_done_callback(self._watched)
        try:
            end = await stopped
            self._ending = end.reason
            self.stays = end.again or (end.for_script and not self.config.exit_with_worker)
            what = "the daemon stays, outside the run, for the next script" if self.stays else "the daemon ends"
            what = "the daemon begins another life" if end.again else what
            log.log(logging.INFO if end.cause is None else logging.ERROR, "%s: %s", what, end.reason)
            await asyncio.sleep(0.05)  # the last messages leave before the links close
            return EXIT_CAUSE if end.cause is not None else EXIT_LEFT if end.graceful else EXIT_FORCED
        except Exception:
            return EXIT_FAILED
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    def _watched(self, watching: asyncio.Task[None]) -> None:
        """Without it a daemon would take every link for one that carries nothing."""
        if not watching.cancelled() and (error := watching.exception()) is not None:
            assert isinstance(error, Exception)
            self.driver.fail(error)

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted, SIGNAL_CAUSES[number])
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def _release_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        hang_up.ends_nothing()

    def _hung_up(self) -> None:
        """SIGHUP: what can be changed while the daemon runs is; a terminal that is closed ends no run."""
        self._reload("SIGHUP")

    def _reload(self, cause: str) -> Outcome:
        lists = self._trust.told
        self.config, outcome = reloading.reloaded(self.config, self.reload, self.driver, lists, cause=cause)
        self._trust.config = self.config
        return outcome

    def _interrupted(self, cause: str) -> None:
        """The first Ctrl+C or SIGTERM leaves gracefully, the second forces."""
        self._interrupts += 1
        stopped = self.driver.stopped
        if self._interrupts > 1 and stopped is not None and not stopped.done():
            log.warning("forced: the other sites will see this as a failure")
            self.driver.feed(ForcedStop(reason="forced by the user"))
            return
        log.info("leaving the run (%s); a second Ctrl+C or SIGTERM forces", cause)
        self.driver.feed(LeaveRequested(request="", reason=cause))


MakeDaemon = Callable[[SiteConfig, Identity, Journal, History], Daemon]


def run_daemon(
    config: SiteConfig,
    make: MakeDaemon = Daemon,
    *,
    reload: Callable[[], SiteConfig] | None = None,
    listening: socket.socket | None = None,
    greeting: Callable[[], object] | None = None,
) -> int:
    """Run one site's daemon until it ends; the exit status. When its script alone has left, another life of it follows:
    to the run it is a daemon that was started anew, and nothing of the former life counts. `reload` reads its
    configuration again; its first life takes over the socket `listening`, and calls `greeting` once it has started.

    Raises IdentityError, JournalError, HistoryError, ListenError or UnixSocketError, each with a remedy, when it cannot
    start."""
    hang_up.ends_nothing()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(config.log_format))
    handler.addFilter(ForTerminals())
    logging.basicConfig(handlers=[handler], level=config.log_level.upper())
    data_dir: Path = config.data_dir
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
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
            if take_agreed(data_dir):  # while the journal is held: no other daemon uses this directory
                identity = Identity.load(data_dir)
                log.info("this site uses its new key from now on; the run agreed on it before")
            daemon = make(config, identity, journal, history)
            daemon.page_door = page_door = page_door or daemon.page_door
            daemon.reload = reload
            daemon.listening, listening = listening, None
            daemon.greeting, greeting = greeting, None
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
