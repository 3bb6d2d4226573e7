"""When a site stops waiting for a result that nobody near keeps any more, so that nobody waits for it.

Driven by `Participation`, at every beat.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.links.network import Network
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine


class LostResults:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, network: Network, rounds: RoundMachine) -> None:
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._rounds = rounds
        self._waits_since_s = outbox.awake_s
        """Since when no byte of a result that is being fetched has come."""
        self._came_s = 0.0

    def look(self) -> None:
        """At every beat."""
        self.give_up_fetching()
        self.give_up_listening()

    def give_up_fetching(self) -> None:
        """Whoever holds a resolved result is no neighbour: the others must not wait for this site's contribution. One
        whose bytes come is waited for like that of any round, however long it takes: while it is fetched no round is
        open here, so that sites of the run send nothing else of rounds."""
        outbox, links = self._outbox, self._network.links
        came_s = max((links.rounds_came_s(site) for site in links.up_sites() if self._may_send(site)), default=0.0)
        if self._rounds.fetching is None or came_s > self._came_s:
            self._waits_since_s, self._came_s = outbox.awake_s, came_s
        elif outbox.awake_s - self._waits_since_s > outbox.settings.election_timeout_s:
            outbox.emit(self._rounds.give_up_fetching())

    def _may_send(self, site: SiteId) -> bool:
        """A guest's bytes are no result's."""
        roster = self._replica.roster
        return roster.record(site) is not None or roster.gone(site) is not None

    def give_up_listening(self) -> None:
        """Members that leave wait for the other members' rounds, not for those who only listen: the site that a
        listener has its results from may be gone, and what it kept is gone with it. A departure that no later view
        tells of is of another history of this round: it was done again since, with a new life of that site."""
        roster, site, running = self._replica.roster, self._replica.site, self._rounds.running
        view = roster.view_of(running.round) if running is not None else None
        if running is None or view is None or site in view.members:
            return
        later = [one for one in roster.views if one.first_round > running.round]
        for source in {parent for tree in view.plan.trees for child, parent in tree.parent if child == site}:
            if all(source in one.members for one in later):
                continue
            left = (one for one in roster.departed if one.site == source and one.last_round >= running.round)
            gone = next(left, None)
            if gone is not None and not self._network.links.is_up(source, gone.incarnation):
                self._outbox.emit(self._rounds.result_missed(running))
                return
