"""Processes that are not of the run, or no longer: somebody who founds a second run of its name, and the older of two
daemons with one key, of a machine that was copied.

A stray is in no list of sites, so nothing is expected of it; what it says and does reaches the others like anything
else, and what a daemon's listener would judge (spec 2.13, 2.14) is judged here.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

from chaos_protocols import events
from chaos_protocols.causes import Cause, Why
from chaos_protocols.links.keys import FORMER_KEY
from chaos_protocols.names import SiteId, other_run, short
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wishes import RecoveryTold
from tests.simulator.disk import Disk
from tests.simulator.hanging import SEEDS_APART
from tests.simulator.node import Node

if TYPE_CHECKING:
    from tests.simulator.world import World

FOUNDERS, COPIES = 5, 7
"""Of sixteen seeds one has a second founder, another a copied machine."""

FOUNDER, OLDER, THIEF, FORMER = "founder", "older", "thief", "former"
"""What a node's `stray` says; empty: it is a site of the run. FORMER: it is in another one than that which is judged,
by a recovery (`runs`)."""

LATER = 1_000_000
"""Start numbers of daemons are milliseconds: those of two machines do not meet."""

ENDS_S = 12.0
"""So long may the older of two daemons live that can reach the others: it ends when it dials."""
LOOKS_S = 1.0
"""Between two looks whether it can."""


def _blocked(node: Node, other: Node) -> tuple[Why, Why | None] | None:
    """An operator at either end wants the other one out of the run."""
    if not node.world.bans.are_parted(node, other):
        return None
    return Cause.DISTRUSTED.told(site=other.site, own=node.site, words=""), None


class Doors:
    """What the listeners of all sites know of those that dial them: the newest start of each, while they live."""

    def __init__(self) -> None:
        self._proven: dict[tuple[str, int, str], tuple[int, KeyChain]] = {}
        self._shown: dict[tuple[str, int, str], bytes] = {}
        """The key with which each site itself, no stray, was last linked with a daemon."""
        self.unread = 0
        """Words that were signed with keys that do not count where they came."""

    def saw(self, node: Node, far: Node) -> None:
        """A connection stands: each end has the other's signed start number."""
        for one, other in ((node, far), (far, node)):
            key = (one.site, one.disk.incarnation, other.site)
            assert other.machine is not None
            number, chain = other.disk.incarnation, other.machine.keys.own
            if number >= self._newest(one, other.site, chain)[0]:
                self._proven[key] = (number, chain)
            if not other.stray:
                self._shown[key] = chain.key

    def has_shown(self, here: Node, site: str, key: bytes) -> bool:
        """Whether the site itself has had a link with this daemon under that key."""
        return self._shown.get((here.site, here.disk.incarnation, site)) == key

    def has_proof(self, here: Node, node: Node) -> bool:
        """Whether this daemon was linked with a newer start than that one."""
        assert node.machine is not None
        return self._newest(here, node.site, node.machine.keys.own)[0] > node.disk.incarnation

    def _newest(self, here: Node, site: str, shown: KeyChain) -> tuple[int, bytes]:
        """The newest start of a site that it has proven to this daemon with a key that counts, and that key. It says
        nothing of who shows a key that did not come before that one."""
        number, chain = self._proven.get((here.site, here.disk.incarnation, site), (0, KeyChain(first=b"")))
        assert here.machine is not None
        holds = here.machine.link_keys.accepts(site, chain) and shown.key in chain.keys  # type: ignore[arg-type]
        return (number, chain.key) if holds else (0, b"")

    def reads(self, node: Node, neighbour: str, envelope: Any) -> bool:
        """Whether the driver hands a word on to the machine: what a neighbour says to this site itself, and what is
        signed with a key that counts for its source."""
        if node.machine is None or (envelope.source == neighbour and envelope.destination == node.site):
            return True
        counts = node.machine.keys.counts(envelope.source, envelope.public_key)
        self.unread += not counts
        return counts

    def refuse(self, node: Node, other: Node) -> bool:
        """Whether `other` refuses the dial of `node`; both are told why."""
        told = _blocked(node, other) or self._keys(node, other)
        told = told or self._two_runs(node, other) or self._older(node, other)
        if told is None:
            return False
        there, here = told
        if here is not None:
            other.handle(events.SiteRefused(site=node.site, why=here))  # type: ignore[arg-type]
        node.handle(events.DialFailed(site=other.site, reason="refused", why=there))  # type: ignore[arg-type]
        return True

    def _keys(self, node: Node, other: Node) -> tuple[Why, Why | None] | None:
        """Each end looks whether the other one's key counts; the dialer first."""
        assert node.machine is not None and other.machine is not None
        if not node.machine.link_keys.accepts(other.site, other.machine.keys.own):  # type: ignore[arg-type]
            return Cause.ANOTHER_SITE.told(site=other.site, address=other.site, reason=FORMER_KEY), None
        if not other.machine.link_keys.accepts(node.site, node.machine.keys.own):  # type: ignore[arg-type]
            there = Cause.DISTRUSTED.told(site=other.site, own=node.site, words="")
            return there, Cause.SHUT_OUT.told(reason=FORMER_KEY)
        return None

    def _two_runs(self, node: Node, other: Node) -> tuple[Why, Why] | None:
        assert node.machine is not None and other.machine is not None
        ours, theirs = node.machine.roster.run_id, other.machine.roster.run_id
        if not other_run(ours, theirs):
            return None
        for here, far in ((node, other), (other, node)):
            if (origin := far.disk.origin) is not None and here.machine is not None:
                told = RecoveryTold(site=SiteId(far.site), address=far.site, statement=origin.statement)
                here.handle(told)
        there = Cause.OTHER_RUN.told(site=other.site, there=short(theirs), here=short(ours))
        return there, Cause.REFUSED_RUN.told(there=short(ours), here=short(theirs))

    def _older(self, node: Node, other: Node) -> tuple[Why, Why] | None:
        assert node.machine is not None and other.machine is not None
        record = other.machine.roster.record(node.site)  # type: ignore[arg-type]
        proven, key = self._newest(other, node.site, node.machine.keys.own)
        newest = max(proven, record.incarnation if record is not None else 0)
        if newest <= node.disk.incarnation:
            return None
        reason = f"start {node.disk.incarnation} is older than {newest}"
        there = Cause.OLDER_START.told(site=other.site, reason=reason)
        if proven == newest and key == node.machine.keys.public_key:  # it can check it with its own key alone
            there = Cause.KEY_ELSEWHERE.told(site=other.site)
        return there, Cause.REFUSED_START.told(reason=reason)


def found_again(world: World, name: str, peers: tuple[str, ...]) -> Node:
    """Somebody founds a second run of the name, and dials sites of the first."""
    node = Node(world, f"99{name}", name, founder=True, peers=tuple(world.site(peer) for peer in peers))
    node.stray = FOUNDER
    world.tell(f"!! {name} founds a second run, with {' '.join(peers)} as its peers")
    node.start()
    return node


def copy_machine(world: World, node: Node) -> Node:
    """The machine of `node` is copied as it stands, and the copy is started: from now on it is the site; `node` is the
    older of two daemons with one key."""
    assert type(node.disk) is Disk, "a journal in memory is not copied"
    fresh = Node(world, node.site, node.name, founder=node.founder, peers=node.peers)
    fresh.min_sites, fresh.disk = node.min_sites, copy.copy(node.disk)
    fresh.disk.incarnation += LATER
    world.tell(f"!! the machine of {node.name} is copied, and the copy started")
    node.stray, node.name = OLDER, f"{node.name} (older)"
    world.oracles.agreement.copied(node)
    world.nodes[node.site] = fresh
    fresh.start()
    fresh.start_worker()
    _watch(world, node, world.now_s)
    return fresh


def _watch(world: World, node: Node, since_s: float) -> None:
    """Since then the older of two daemons could reach one that it dials."""
    if not node.alive or node.stopped or node.machine is None:
        return
    if not _reaches_anybody(world, node):
        since_s = world.now_s
    if world.now_s >= since_s + ENDS_S:
        world.oracles.fail(8, f"{node.name} runs on, {ENDS_S:g} s after a newer daemon with its key was started")
    world.schedule(LOOKS_S, lambda: _watch(world, node, since_s))


def _reaches_anybody(world: World, node: Node) -> bool:
    """Who could tell it, by the proof that the newer one gave, or will give."""
    assert node.machine is not None
    passes, newer = world.network.passes, world.nodes[node.site]
    dialled = {*node.machine.roster.site_ids(), *node.peers} - {node.site}
    there = [one for site in dialled if (one := world.nodes.get(site)) is not None and one.alive]
    knowing = [one for one in there if newer.alive or world.doors.has_proof(one, node)]
    return any(passes(node.site, one.site) and passes(one.site, node.site) for one in knowing)


def strays(world: World, until_s: float) -> None:
    """By the seed: a second founder, a copied machine, or neither."""
    kind = world.seed % SEEDS_APART
    if kind not in (FOUNDERS, COPIES):
        return
    rng = random.Random(f"strays/{world.seed}")
    at_s = rng.uniform(2.0, until_s)
    world.schedule(at_s, lambda: _found(world, rng) if kind == FOUNDERS else _copy(world, rng))


def _found(world: World, rng: random.Random) -> None:
    """Its peers are sites that have been in the run: one that never was would take its run for the only one."""
    known = [one.name for one in world.nodes.values() if one.machine is not None and one.machine.roster.run_id]
    if known:
        node = found_again(world, "zz", tuple(rng.sample(known, min(2, len(known)))))
        world.schedule(rng.uniform(3.0, 10.0), lambda: node.kill())


def _copy(world: World, rng: random.Random) -> None:
    """Of a site that everybody reaches: cut off, the older daemon could vote where the newer one does not."""
    free = [one for one in world.nodes.values() if one.alive and not one.stopped and type(one.disk) is Disk]
    free = [one for one in free if one.connections and one.machine is not None and not world.must_live(one)]
    if free and not world.network.cuts and not any(one.crash_at is not None for one in world.nodes.values()):
        copy_machine(world, rng.choice(free))
