"""The site's machine, made of the configuration, the key and what the journal recovered."""

from __future__ import annotations

import random

from chaos_protocols.agreement.commands import TooNew, decode_roster, encode_roster
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft import Persist, RaftMachine, RaftSettings, bootstrap
from chaos_protocols.membership.facts import SiteFacts, bootstrap_roster
from chaos_protocols.site import SiteMachine
from chaosd.config.model import SiteConfig
from chaosd.identity import Identity, new_run_id
from chaosd.plan_adapter import DaemonPlanner
from chaosd.storage.journal.journal import Journal, JournalError


def make_machine(
    config: SiteConfig, identity: Identity, journal: Journal, *, address: str, now_s: float
) -> tuple[SiteMachine, Persist | None]:
    """The site's machine with what its journal recovered. A founder without one founds the run: what is to be durable
    then comes with it, for when this daemon listens. Raises JournalError where a newer version has written the
    journal."""
    planner = DaemonPlanner(config.replication, config.averaging)
    facts = SiteFacts(
        site=identity.site,
        name=config.name,
        address=address,
        public_key=identity.public_key,
        incarnation=journal.incarnation,
        run=config.run,
        min_sites=max(config.start_sites, config.min_sites),
        floor_sites=config.min_sites,
        reached=journal.recovered.reached,
        bounds=config.bounds,
        origin=journal.recovered.origin,
    )
    recovered = journal.recovered
    hard_state, snapshot, entries = recovered.hard_state, recovered.snapshot, recovered.entries
    founding: Persist | None = None
    if config.bootstrap and snapshot is None and not entries and facts.origin is None:
        roster = bootstrap_roster(facts, planner, new_run_id(config.run, identity))
        hard_state, snapshot = bootstrap(facts.site, encode_roster(roster))
        founding = Persist(hard_state=hard_state, truncate_from=None, entries=(), snapshot=snapshot)
    keys = KeyRing(identity, identity.chain)
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
        keys=keys,
    )
    try:
        machine = SiteMachine(
            facts,
            settings=config.settings,
            planner=planner,
            raft=raft,
            roster=decode_roster(snapshot.state) if snapshot is not None else None,
            entries=entries,
            keys=keys,
            now_s=now_s,
        )
    except TooNew as error:
        raise JournalError(f"the journal in {config.data_dir} cannot be used: {error}") from None
    return machine, founding
