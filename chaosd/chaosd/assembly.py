"""Puts the parts of one site together: its machine from config, identity and journal; its driver with all engines.

Used by `daemon.py`, once at its start.
"""

from __future__ import annotations

import random

from chaos_protocols.commands import TooNew, decode_roster, encode_roster
from chaos_protocols.raft import Persist, RaftMachine, RaftSettings, found
from chaos_protocols.site import SiteMachine
from chaos_protocols.site_facts import SiteFacts, founding_roster
from chaos_protocols.transfer import TransferSettings
from chaosd.bulk_streams import BulkStreams
from chaosd.checkpoints import CheckpointFolder
from chaosd.config import SiteConfig, parse_address
from chaosd.driver import Driver
from chaosd.history import History
from chaosd.identity import Identity
from chaosd.journal import Journal, JournalError
from chaosd.measuring import LinkMeter
from chaosd.mirror import StateKeeper
from chaosd.model_check import ModelCheck
from chaosd.monitor.probe import LinkProbe
from chaosd.plan_adapter import DaemonPlanner
from chaosd.reduce_engine import ReduceEngine
from chaosd.replication import ReplicationEngine
from chaosd.transport import Transport
from chaosd.worker_server import WorkerServer


def make_machine(
    config: SiteConfig, identity: Identity, journal: Journal, *, address: str, now_s: float
) -> SiteMachine:
    """The site's machine with what its journal recovered; a founder without one founds the run. Raises JournalError
    where a newer version has written the journal."""
    planner = DaemonPlanner(config.replication)
    facts = SiteFacts(
        site=identity.site,
        name=config.name,
        address=address,
        public_key=identity.public_key,
        incarnation=journal.incarnation,
        run=config.run,
        min_sites=config.min_sites,
    )
    recovered = journal.recovered
    hard_state, snapshot, entries = recovered.hard_state, recovered.snapshot, recovered.entries
    if config.found and snapshot is None and not entries:
        hard_state, snapshot = found(facts.site, encode_roster(founding_roster(facts, planner)))
        journal.persist(Persist(hard_state=hard_state, truncate_from=None, entries=(), snapshot=snapshot))
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
    try:
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
    except TooNew as error:
        raise JournalError(f"the journal in {config.data_dir} cannot be used: {error}") from None


def make_driver(
    config: SiteConfig,
    machine: SiteMachine,
    identity: Identity,
    journal: Journal,
    history: History,
    transport: Transport,
) -> Driver:
    """The driver with everything that carries effects out. Nothing runs yet."""
    driver = Driver(machine, identity, journal, history)
    driver.transport = transport
    driver.workers = WorkerServer(config.worker_socket, driver)
    folder = CheckpointFolder(config.checkpoint_dir, run=config.run, site=identity.site, kept=config.checkpoints_kept)
    driver.keeper = StateKeeper(driver.feed, folder if config.checkpoint != "off" else None)
    probe = LinkProbe(transport)
    driver.models = ModelCheck(
        transport,
        lambda: driver.hello.state if driver.hello else None,
        lambda: list(driver.machine.links.up_sites()),
    )
    driver.meter = LinkMeter(
        probe,
        transport,
        config.probe,
        listen_host=parse_address(config.listen)[0],
        address_of=lambda site: driver.machine.links.neighbours[site].address,
    )
    driver.bulk = BulkStreams(
        ReduceEngine(identity.site, transport, driver),
        ReplicationEngine(
            identity.site,
            transport,
            driver,
            settings=TransferSettings(stall_timeout_s=2 * config.failure_timeout_s, witness=config.verify == "witness"),
        ),
        probe,
        driver.models,
        driver.meter,
    )
    return driver
