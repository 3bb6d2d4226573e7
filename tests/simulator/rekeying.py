"""Sites that change their keys, and a thief that has a former one (spec 20): in some runs an operator has his site's
key changed, another one approves it, and the site takes it with a start of its own, whatever happens meanwhile. Sites
sleep through it. When all that live have heard that the change is settled, somebody starts a daemon with the former
key.

Some thieves have signed themselves another next key, which nobody has approved.

Judged here: in the calm every change that was begun comes to its end; and who has heard of that has no link with the
thief, and takes no word of it (invariant 11). Nor has who was shown the new key by the site itself, unless the thief's
is none of the site's former keys. Who sleeps until then may let it in until it hears: as docs/security.md says.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from chaos_protocols.agreement.key_commands import keys_of
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import KeyChain, with_change
from chaos_protocols.wishes import KeyApproved, KeyOffered
from tests.rigs.keys import RigKeys
from tests.simulator.hanging import SEEDS_APART
from tests.simulator.key_lies import FORGED_NUMBER, forged_key
from tests.simulator.node import Node
from tests.simulator.strays import COPIES, LATER, THIEF

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.world import World

SHARE = 0.4
"""Of the runs with three sites or more."""
LOOKS_EVERY_S = 0.25
RESTARTS = (0.02, 0.1, 0.5)
"""How likely at each look a site takes its new key, which is agreed: soon, or when it was restarted anyhow."""
DOUBTFUL_SHARE, TAKES_BACK = 0.3, 0.25
"""Of the runs with a change; and how likely there at each look an operator takes the next key back that is not agreed
on yet, until the next look: the key is kept, in case that the run agrees on it all the same."""
THIEF_LIVES_S = (2.0, 8.0)
FORGES_SHARE = 0.4
PATIENT_SHARE = 0.5
"""Of the thieves: they come while the site itself is not there, and somebody sleeps."""


class Rotation:
    """Of one site's key, `times` times. `begin` starts a daemon again."""

    def __init__(self, world: World, rng: random.Random, begin: Callable[[Node], None]) -> None:
        self.world, self._rng, self._begin = world, rng, begin
        site, approver = rng.sample(list(world.nodes), 2)
        self.site, self.approver = SiteId(site), SiteId(approver)
        self.times = rng.choice((1, 1, 2))
        self._restarts = rng.choice(RESTARTS)
        self._thief: Node | None = None
        self._doubts = random.Random(f"doubts/{world.seed}")
        self._is_doubtful = self._doubts.random() < DOUBTFUL_SHARE
        thief = random.Random(f"forger/{world.seed}")
        self._forges, self._is_patient = thief.random() < FORGES_SHARE, thief.random() < PATIENT_SHARE
        self._stolen_start = 0
        """The start number that the thief shows; 0: there was none yet."""
        self._thieves = rng.choice((0, 1, 1))

    @property
    def _node(self) -> Node:
        return self.world.nodes[self.site]

    @property
    def settled(self) -> int:
        """How many changes are settled, as the log has it."""
        roster = self.world.oracles.newest
        known = keys_of(roster, self.site) if roster is not None else None
        return known.settled if known is not None else 0

    def may_believe(self, node: Node, site: str, incarnation: int) -> bool:
        """Whether a site may take this for a start of the one that has changed its key, since it has not heard that
        the key with which the thief showed it counts no more: it sleeps, or never was in the run."""
        return site == self.site and incarnation == self._stolen_start and not self._has_heard(node)

    @property
    def made(self) -> int:
        """How many keys the site has made itself, after its first."""
        return max(self._node.disk.key_number, self._node.disk.next_number)

    @property
    def is_over(self) -> bool:
        """All changes are settled."""
        return self.settled >= self.times

    def look(self) -> None:
        """What the operators of both sites do now."""
        self.world.schedule(LOOKS_EVERY_S, self.look)
        self._judge()
        if self.is_over:
            self._steal()
            return
        self._rotate()
        self._approve()

    def _rotate(self) -> None:
        node, disk = self._node, self._node.disk
        machine = node.machine
        if machine is None or node.stopped or not machine.membership.in_roster or self.settled < disk.key_number:
            return
        if disk.next_chain is not None:
            if self._rng.random() < self._restarts:
                self.world.tell(f"!! {node.name} takes its key {disk.next_number}")
                node.kill(worker_too=False)
                self._begin(node)
            return
        if not disk.next_number:
            if self.settled < len(self._agreed_chain()):
                return
            disk.next_number = disk.key_number + 1
            self.world.tell(f"!! {node.name} is to have another key, {disk.next_number}")
        if self._is_doubtful and self._restarts < 1.0 and self._doubts.random() < TAKES_BACK:
            self.world.tell(f"!! {node.name} takes its next key back, for now")
            node.handle(KeyOffered(chain=None))
            return
        new = RigKeys(self.site, disk.next_number)
        offer = with_change(machine.keys.own, machine.roster.run_id, RigKeys(self.site, disk.key_number), new)
        node.handle(KeyOffered(chain=offer))

    def _agreed_chain(self) -> tuple[bytes, ...]:
        roster = self.world.oracles.newest
        known = keys_of(roster, self.site) if roster is not None else None
        return tuple(change.key for change in known.chain.changes) if known is not None else ()

    def _approve(self) -> None:
        node, number = self.world.nodes[self.approver], self._node.disk.next_number
        if number and number > len(self._agreed_chain()) and node.machine is not None and not node.stopped:
            signer = RigKeys(self.site, number)
            node.handle(KeyApproved(site=self.site, key_id=SiteId(signer.owner(signer.public_key))))

    # -- the thief

    def _steal(self) -> None:
        """A daemon with the key before the last one, and with nothing else of the site, is started, once all that live
        have heard."""
        nodes = [node for node in self.world.nodes.values() if node.machine is not None]
        if not self._thieves or any(node.stopped or not self._has_heard(node) for node in nodes):
            return
        true = self._node
        somebody_sleeps = len(nodes) < len(self.world.nodes) - 1
        if self._is_patient and (true.machine is not None or not somebody_sleeps):
            return
        self._thieves -= 1
        hosts = [node.name for node in self.world.nodes.values() if node is not true]
        thief = Node(self.world, self.site, f"{true.name} (thief)", founder=False, peers=())
        thief.peers = tuple(self.world.site(host) for host in hosts)
        thief.stray = THIEF
        thief.disk.key_number = self.times - 1
        thief.disk.key_chain = None
        roster = self.world.oracles.newest
        known = keys_of(roster, self.site) if roster is not None else None
        if self.times > 1 and known is not None:
            thief.disk.key_chain = type(known.chain)(
                first=known.chain.first, run_id=known.chain.run_id, changes=known.chain.changes[: self.times - 1]
            )
        if self._forges and known is not None:
            former, forged = RigKeys(self.site, thief.disk.key_number), forged_key(self.site)
            chain = thief.disk.key_chain or KeyChain(first=former.public_key)
            thief.disk.key_number = FORGED_NUMBER
            thief.disk.key_chain = with_change(chain, known.chain.run_id, former, forged)
        thief.disk.incarnation = true.disk.incarnation + LATER
        self._thief = thief
        self.world.tell(f"!! somebody starts a daemon with the former key of {true.name}")
        thief.start()
        self._stolen_start = thief.disk.incarnation
        self.world.schedule(self._rng.uniform(*THIEF_LIVES_S), self._end_thief)

    def calm(self) -> None:
        """He does, and nobody puts off any longer what is to be done."""
        self._end_thief()
        self._restarts = 1.0

    def _end_thief(self) -> None:
        """He gives up."""
        if self._thief is not None:
            self._thief.kill()
            self._thief = None

    def _has_heard(self, node: Node) -> bool:
        assert node.machine is not None
        known = keys_of(node.machine.roster, self.site)
        return known is not None and known.settled >= self.times

    def _knows(self, node: Node) -> bool:
        """It has heard, or the site itself has shown it the key that came after the thief's."""
        newest = RigKeys(self.site, self.times).public_key
        return self._has_heard(node) or (not self._forges and self.world.doors.has_shown(node, self.site, newest))

    def _judge(self) -> None:
        thief = self._thief
        if thief is None:
            return
        for far, connection in thief.connections.items():
            there = connection.processes[far]
            if there.machine is not None and there.connections.get(self.site) is connection and self._knows(there):
                self.world.oracles.fail(11, f"{there.name} has a link with whoever has the former key of {self.site}")
        for node in self.world.nodes.values():
            if node.machine is None or node.site == self.site or not self._knows(node):
                continue
            if node.machine.network.incarnations.get(self.site, 0) >= thief.disk.incarnation:
                self.world.oracles.fail(11, f"{node.name} takes words of the former key of {self.site}")


def rotate(world: World, until_s: float, begin: Callable[[Node], None]) -> None:
    """By the seed: a site changes its key, or none. Not where a machine is copied, which is another trouble with
    keys."""
    rng = random.Random(f"keys/{world.seed}")
    if len(world.nodes) < 3 or rng.random() >= SHARE or world.seed % SEEDS_APART == COPIES:
        return
    world.rotation = Rotation(world, rng, begin)
    world.schedule(rng.uniform(1.0, 0.7 * until_s), world.rotation.look)
    world.schedule(until_s, world.rotation.calm)


def must_settle(world: World, limit_s: float) -> None:
    """In the calm: what was begun comes to its end."""
    rotation = world.rotation
    if rotation is not None and not world.run_until(lambda: rotation.is_over, limit_s=limit_s):
        world.oracles.fail(8, f"the change of the key of {rotation.site} is not settled {limit_s:g} s after the calm")
