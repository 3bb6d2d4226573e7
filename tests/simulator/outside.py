"""Operators of sites that nothing leads into the run any more: they name another peer, and where their site's journal
knows nobody who is there still, they do what the site tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos_protocols import events
from chaos_protocols.causes import Cause
from chaos_protocols.names import SiteId, short
from tests.simulator.strikes import begin

if TYPE_CHECKING:
    from chaos_protocols.agreement.roster import Roster
    from tests.simulator.node import Node
    from tests.simulator.world import World

UNLINKED = " (no site of the run has a link with it; `chaosd peer add` makes one)"

READS_S = 5.0
"""So long a site says the same, until its operator does what it says."""


class Outside:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._says_since_s: dict[str, float] = {}
        """Sites that know none of their neighbours in the run, and since when they say so."""

    def look(self, roster: Roster) -> None:
        """At the sites that are not out for good. `roster`: the newest."""
        for node in self._world.nodes.values():
            if not self._world.bans.is_out(node):
                self._name_another(node, roster)
                self._move_the_journal(node)

    def _name_another(self, node: Node, roster: Roster) -> None:
        """A newcomer whose peers have all given up has no other way in: its operator names another one. So has a
        founder who named none, is out of the run, and knows of no other site."""
        world = self._world
        known = node.peers if node.disk.snapshot is None else ()
        known = known or _known_outside(node, roster)
        if not world.bans.gone.issuperset(known):
            return
        members = [world.nodes[site] for site in roster.member_ids() if not world.bans.is_out(world.nodes[site])]
        named = next((one for one in members if not world.bans.are_parted(node, one)), None)
        if named is None or not known:
            return
        world.tell(f"!! the operator of {node.name} names {named.name} as its peer")
        node.peers = (named.site,)
        if node.machine is not None:
            node.handle(events.PeersChanged(peers=((SiteId(named.site), named.site),)))

    def _move_the_journal(self, node: Node) -> None:
        """What `unknown-members` tells him to do, where all that the journal knows are gone."""
        why = node.machine.participation.pause.why() if node.machine is not None and not node.stopped else None
        if node.machine is None or why is None or why.cause is not Cause.UNKNOWN_MEMBERS:
            self._says_since_s.pop(node.site, None)
            return
        since_s = self._says_since_s.setdefault(node.site, self._world.now_s)
        if self._world.now_s - since_s < READS_S or not self._world.bans.gone.issuperset(node.machine.replica.others):
            return
        self._world.tell(f"!! the operator of {node.name} moves its journal away: it comes back as a newcomer")
        node.kill(worker_too=False)
        node.disk.move_journal_away()
        self._world.oracles.agreement.journal_moved(node.site)
        node.founder = False
        begin(node)


def link_who_offers(world: World) -> bool:
    """Where the run waits for a state that only a site has with which no member is linked, the operator of a member
    does what that one tells him: he has it linked. Whether anybody was told so."""
    roster, told = world.oracles.newest, False
    for member in world.nodes.values():
        if roster is None or member.machine is None or roster.record(SiteId(member.site)) is None:
            continue
        says = member.machine.participation.pause.reason()
        named = [node for node in world.nodes.values() if any(f"{name}{UNLINKED}" in says for name in _names(node))]
        told = told or bool(named)
        for node in named:
            world.tell(f"!! the operator of {member.name} names {node.name} as its peer")
            member.peers = (*member.peers, node.site)
            member.handle(events.PeersChanged(peers=tuple((SiteId(peer), peer) for peer in member.peers)))
    return told


def _names(node: Node) -> tuple[str, str]:
    """What a text may call it."""
    return node.name, short(SiteId(node.site))


def _known_outside(node: Node, roster: Roster) -> tuple[str, ...]:
    """Of a founder that named no peer and is not in the run, whom it knows of."""
    if node.machine is None or node.peers or roster.record(SiteId(node.site)) is not None:
        return ()
    others = {*node.machine.roster.site_ids(), *node.machine.links.neighbours} - {node.site}
    return tuple(sorted(others))
