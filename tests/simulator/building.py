"""How a simulated site's machine is made from its disk: what `chaosd.daemon` does for a daemon."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chaos_protocols.agreement.commands import decode_roster, encode_roster
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft import Persist, RaftMachine, RaftSettings
from chaos_protocols.agreement.raft import bootstrap as bootstrap_log
from chaos_protocols.membership.facts import SiteFacts, bootstrap_roster
from chaos_protocols.site import SiteMachine
from tests.rigs.keys import RigKeys
from tests.simulator.contents import digest_of
from tests.simulator.releases import spoken

if TYPE_CHECKING:
    from tests.simulator.node import Node


def make_machine(node: Node) -> SiteMachine:
    """The next incarnation. A founder with an empty disk founds the run."""
    world, disk = node.world, node.disk
    disk.take_next_key()
    signer = RigKeys(node.site, disk.key_number)
    keys = KeyRing(signer, disk.key_chain)
    facts = SiteFacts(
        site=node.site,  # type: ignore[arg-type]
        name=node.name,
        address=node.site,
        public_key=signer.public_key,
        incarnation=disk.incarnation,
        run="simulated",
        min_sites=node.min_sites,
        floor_sites=world.floor_sites,
        reached=disk.reached,
        bounds=world.bounds,
        versions=spoken(node),
        origin=disk.origin,
    )
    if node.founder and disk.snapshot is None and disk.origin is None:
        run_id = 2 * digest_of((world.seed, node.site, disk.incarnation))
        first = encode_roster(bootstrap_roster(facts, world.planner, run_id))
        hard_state, snapshot = bootstrap_log(node.site, first)  # type: ignore[arg-type]
        disk.persist(Persist(hard_state=hard_state, truncate_from=None, entries=(), snapshot=snapshot))
    rng = random.Random(f"{world.seed}/{node.site}/{disk.incarnation}")
    raft = RaftMachine(
        node.site,  # type: ignore[arg-type]
        settings=RaftSettings(
            election_timeout_s=world.settings.election_timeout_s,
            heartbeat_interval_s=world.settings.raft_heartbeat_s,
        ),
        rng=rng,
        hard_state=disk.hard_state,
        snapshot=disk.snapshot,
        entries=disk.entries,
        now_s=world.now_s,
        keys=keys,
    )
    return SiteMachine(
        facts,
        settings=world.settings,
        planner=world.planner,
        raft=raft,
        roster=decode_roster(disk.snapshot.state) if disk.snapshot is not None else None,
        entries=disk.entries,
        keys=keys,
        now_s=world.now_s,
    )
