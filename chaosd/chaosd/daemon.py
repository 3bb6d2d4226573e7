"""The daemon: puts the parts of one site together, runs until the site has left, and leaves nothing behind.

`run_daemon` is what `chaosd start` calls. The parts: journal and history on disk, transport to the neighbours, worker
server and local API on unix sockets, the engines, and the driver with the site's machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil

from chaos_protocols.commands import decode_roster, encode_roster
from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.events import Event, LeaveRequested, LinkChangeRequested, LinkProgressed
from chaos_protocols.names import SiteId, short
from chaos_protocols.raft import Persist, RaftMachine, RaftSettings, found
from chaos_protocols.site import SiteMachine
from chaos_protocols.site_facts import SiteFacts, founding_roster
from chaos_protocols.transfer import TransferSettings
from chaosd.api import LocalApi
from chaosd.bulk_streams import BulkStreams
from chaosd.config import SiteConfig, parse_address
from chaosd.daemon_status import build_status, event_record
from chaosd.driver import Driver
from chaosd.history import History, HistoryRecord
from chaosd.identity import Identity
from chaosd.journal import Journal
from chaosd.measuring import LinkMeter
from chaosd.model_check import ModelCheck
from chaosd.monitor.probe import LinkProbe
from chaosd.plan_adapter import DaemonPlanner
from chaosd.reduce_engine import ReduceEngine
from chaosd.replication import ReplicationEngine
from chaosd.rounds_log import RoundsLog
from chaosd.status import EventRecord, Outcome, Status
from chaosd.transport import LinkShape, Transport, TransportSettings
from chaosd.worker_server import WorkerServer

log = logging.getLogger("chaosd")
FOLLOWER_QUEUE_MAX = 1000
EXIT_LEFT, EXIT_FAILED, EXIT_FORCED = 0, 1, 130
LEAVE_TIMEOUT_S = 60.0
"""`chaosd leave` answers after so long at the latest; the daemon goes on trying."""


class Daemon:
    """One site's daemon; also the `Control` behind the local API and the `TransportEvents` of the transport."""

    def __init__(self, config: SiteConfig, identity: Identity, journal: Journal, history: History) -> None:
        self.config = config
        self.identity = identity
        self._journal, self._history = journal, history
        self._requests = itertools.count(1)
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
            ),
        )
        self.driver: Driver

    # -- life

    async def run(self) -> int:
        """Until the site has left (0), was forced (130) or had to give up (1)."""
        await self.transport.start()
        loop = asyncio.get_running_loop()
        self.driver = driver = Driver(self._machine(time.monotonic()), self.identity, self._journal, self._history)
        driver.transport = self.transport
        driver.workers = WorkerServer(self.config.worker_socket, driver)
        probe = LinkProbe(self.transport)
        driver.models = ModelCheck(
            self.transport,
            lambda: driver.hello.state if driver.hello else None,
            lambda: list(driver.machine.links.up_sites()),
        )
        driver.meter = LinkMeter(
            probe,
            self.transport,
            self.config.probe,
            listen_host=parse_address(self.config.listen)[0],
            address_of=lambda site: driver.machine.links.neighbours[site].address,
        )
        driver.bulk = BulkStreams(
            ReduceEngine(self.identity.site, self.transport, driver),
            ReplicationEngine(
                self.identity.site,
                self.transport,
                driver,
                settings=TransferSettings(stall_timeout_s=2 * self.config.failure_timeout_s),
            ),
            probe,
            driver.models,
            driver.meter,
        )
        api = LocalApi(self.config.api_socket, self, lab=self.config.lab)
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

    def _machine(self, now_s: float) -> SiteMachine:
        planner = DaemonPlanner()
        config = self.config
        facts = SiteFacts(
            site=self.identity.site,
            name=config.name,
            address=self.transport.address,
            public_key=self.identity.public_key,
            incarnation=self._journal.incarnation,
            run=config.run,
            min_sites=config.min_sites,
        )
        recovered = self._journal.recovered
        hard_state, snapshot, entries = recovered.hard_state, recovered.snapshot, recovered.entries
        if config.found and snapshot is None and not entries:
            hard_state, snapshot = found(facts.site, encode_roster(founding_roster(facts, planner)))
            self._journal.persist(Persist(hard_state=hard_state, truncate_from=None, entries=(), snapshot=snapshot))
        rng = random.Random(f"{facts.site}/{facts.incarnation}")
        raft = RaftMachine(
            facts.site,
            settings=RaftSettings(
                election_timeout_s=config.settings.election_timeout_s,
                heartbeat_interval_s=config.settings.raft_heartbeat_s,
            ),
            rng=rng,
            hard_state=hard_state,
            snapshot=snapshot,
            entries=entries,
            now_s=now_s,
        )
        return SiteMachine(
            facts,
            settings=config.settings,
            planner=planner,
            rng=rng,
            raft=raft,
            roster=decode_roster(snapshot.state) if snapshot is not None else None,
            entries=entries,
            now_s=now_s,
        )

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
        watch = loop.create_task(self._watch(), name="watch links and worker")
        try:
            graceful, reason = await stopped
            log.info("the daemon ends: %s", reason)
            await asyncio.sleep(0.05)  # the last messages leave before the links close
            return EXIT_LEFT if graceful else EXIT_FORCED
        except Exception:
            return EXIT_FAILED
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

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

    async def _watch(self) -> None:
        """Facts that nobody brings: bulk bytes that moved (a busy link is not silent), a worker that was stopped."""
        seen: dict[SiteId, int] = {}
        stopped_since_s: float | None = None
        pause_s = self.config.settings.beat_s / 2
        while True:
            await asyncio.sleep(pause_s)
            driver = self.driver
            for site in driver.machine.links.up_sites():
                received, _ = self.transport.bulk_progress(site)
                if received != seen.get(site, 0):
                    seen[site] = received
                    driver.feed(LinkProgressed(site=site))
            if not self._worker_is_stopped():
                stopped_since_s = None
                continue
            stopped_since_s = stopped_since_s or driver.now_s()
            if driver.now_s() - stopped_since_s >= self.config.failure_timeout_s:
                stopped_since_s = None
                driver.workers.drop()
                driver.worker_lost("the worker process is stopped (SIGSTOP)")

    def _worker_is_stopped(self) -> bool:
        hello = self.driver.hello
        if hello is None or not self.driver.workers.connected:
            return False
        try:
            return bool(psutil.Process(hello.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

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
        if site not in self._refused and len(self._refused) < FOLLOWER_QUEUE_MAX:
            self._refused.add(site)
            log.warning("refused site %s: not trusted; add its id to 'trust' in the configuration to admit it", site)
        return "not trusted by this site"

    def link_up(self, site: SiteId, incarnation: int, address: str) -> None:
        self.driver.link_up(site, incarnation, address)

    def link_lost(self, site: SiteId, incarnation: int, reason: str, end_of_file: bool) -> None:
        self.driver.link_lost(site, incarnation, reason, end_of_file)

    def control_received(self, site: SiteId, frame: bytes) -> None:
        self.driver.control_received(site, frame)

    def bulk_buffer(self, site: SiteId, stream: int, header: bytes, size_bytes: int) -> memoryview | None:
        return self.driver.bulk.buffer(site, stream, header, size_bytes)

    def bulk_received(self, site: SiteId, stream: int, header: bytes, payload: memoryview | None) -> None:
        try:
            self.driver.bulk.received(site, stream, header, payload)
        except RemoteProtocolError as error:
            self.driver.peer_broke_rules(site, str(error))

    def bulk_lost(self, site: SiteId, stream: int, reason: str) -> None:
        self.driver.bulk_lost(site, stream, reason)

    # -- Control: what the local API may ask

    def status(self) -> Status:
        return build_status(self.driver, self.config, self.transport.address)

    def events(self, after_id: int, limit: int) -> list[EventRecord]:
        return [event_record(record) for record in self._history.read(after_id=after_id, limit=limit)]

    async def follow_events(self) -> AsyncIterator[EventRecord]:
        queue: asyncio.Queue[HistoryRecord] = asyncio.Queue(FOLLOWER_QUEUE_MAX)
        self.driver.followers.add(queue)
        try:
            while True:
                yield event_record(await queue.get())
        finally:
            self.driver.followers.discard(queue)

    async def change_link(self, site: str, *, add: bool) -> Outcome:
        found_site = self._find_site(site)
        if isinstance(found_site, Outcome):
            return found_site
        return await self._ask(
            lambda request: LinkChangeRequested(request=request, other=found_site, add=add),
            timeout_s=3 * self.config.settings.negotiation_timeout_s,
        )

    async def leave(self, reason: str) -> Outcome:
        return await self._ask(
            lambda request: LeaveRequested(request=request, reason=reason), timeout_s=LEAVE_TIMEOUT_S
        )

    async def _ask(self, make: Callable[[str], Event], *, timeout_s: float) -> Outcome:
        loop = asyncio.get_running_loop()
        request = f"user-{short(self.identity.site)}-{self._journal.incarnation}-{next(self._requests)}"
        answer: asyncio.Future[tuple[bool, str]] = loop.create_future()
        self.driver.answers[request] = answer
        begun_s = time.monotonic()
        self.driver.feed(make(request))
        try:
            done, reason = await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            done, reason = False, f"no answer within {timeout_s:g} s; the request goes on, see chaosd events"
        finally:
            self.driver.answers.pop(request, None)
        return Outcome(done=done, reason=reason, duration_s=time.monotonic() - begun_s)

    def _find_site(self, text: str) -> SiteId | Outcome:
        """By id, unique prefix of it, or name."""
        records = self.driver.machine.roster.sites
        matches = [one.site for one in records if text in (one.site, one.name)]
        matches = matches or [one.site for one in records if len(text) >= 4 and one.site.startswith(text)]
        if len(matches) == 1:
            return matches[0]
        known = ", ".join(f"{one.name} ({short(one.site)})" for one in records)
        what = "more than one site matches" if matches else "no site of the roster matches"
        return Outcome(done=False, reason=f"{what} '{text[:64]}'; there are: {known or 'none'}", duration_s=0.0)

    def shape(
        self,
        site: str | None,
        *,
        rate_bytes_per_s: float | None,
        latency_s: float,
        cut_in: bool,
        cut_out: bool,
        corrupt_probability: float,
    ) -> Outcome:
        if not self.config.lab:
            return Outcome(done=False, reason="only a daemon started with lab = true shapes its links", duration_s=0.0)
        shape = LinkShape(
            rate_bytes_per_s=rate_bytes_per_s,
            latency_s=latency_s,
            cut_in=cut_in,
            cut_out=cut_out,
            corrupt_probability=corrupt_probability,
            corrupt_random=random.Random(corrupt_probability) if corrupt_probability else None,
        )
        self.transport.shape(None if site is None else SiteId(site), shape)
        return Outcome(done=True, reason="shaped", duration_s=0.0)


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
