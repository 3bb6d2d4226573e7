"""The links that a site wants to have, and what its user asks of them: as the roster says, as its configuration says.

It compares the committed roster with what is there, and asks again at every beat. Driven by `Participation`, and by the
state's transfer, which wants links to its sources for as long as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import AnswerRequest
from chaos_protocols.events import LinkChangeRequested, PeersChanged, Started
from chaos_protocols.links.network import Network
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.control import Goodbye, LinkAnswer, LinkRequest, LinkStateAdvertisement

LINK_REQUEST_TRIES_MAX = 20
"""A link request is asked again at every retry; after so many without an answer the user is told so."""

OWN = "auto-"
"""So begins the name of a request of this site, which no user waits for."""

TAKEN_BACK = "this was taken back before a scheduler had answered"

WAYS_BACK_MAX = 8
"""So many sites of the roster a site that is cut off tries to reach: any may be the way back, and all at once would be
a storm where a large run has come apart."""


@dataclass(slots=True)
class PendingLink:
    """A request that the scheduler has not answered yet."""

    request: LinkRequest
    asked_s: float
    tries: int = 0


class DesiredLinks:
    """See the module."""

    def __init__(
        self, outbox: Outbox, replica: RosterReplica, network: Network, membership: Membership, client: SchedulerClient
    ) -> None:
        self._peers: dict[SiteId, str] = {}
        """The configured neighbours, with their addresses."""
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._membership = membership
        self._client = client
        self._requests: dict[str, PendingLink] = {}
        self._closing: dict[SiteId, int] = {}
        """Links that are removed, and the round that must be over before they are closed."""
        self._guests: set[SiteId] = set()
        """Sources of this site's transfer that are no neighbours."""
        self._witnesses: set[SiteId] = set()
        """Who says that it is linked with a later start of this site's daemon."""
        self._failed: dict[SiteId, str] = {}
        """Who was removed as failed and is not back, and its address, the latest last: the ways back of a site that
        has nobody else in its roster."""
        self._linked_s = outbox.now_s
        """When this site last had a link that leads anywhere."""

    def started(self, event: Started) -> None:
        """The daemon runs: dial the neighbours of its configuration, and those of the last roster that it knew."""
        for site, address in event.peers:
            self._peers[site] = address
            self._network.want(site, address)
        self._client.sponsored_by(event)
        known = self._replica.last_known
        for site in known.neighbours(self._replica.site):
            self._want(site, known)

    def peers_changed(self, event: PeersChanged) -> None:
        """Dial whom the configuration names now. Whom it names no more is dialled only if the roster has that link; a
        link that is up stays, since a round may need it."""
        self._client.sponsored_by(event)
        named, agreed = dict(event.peers), self._replica.roster.neighbours(self._replica.site)
        for site in sorted(self._peers.keys() - named.keys()):
            del self._peers[site]
            if site not in agreed:
                self._network.links.forget(site)
        for site, address in event.peers:
            self._peers[site] = address
            self._network.want(site, address)

    def _want(self, site: SiteId, roster: Roster) -> None:
        record = roster.record(site)
        self._network.want(site, record.address if record else "")

    def follow(self, old: Roster, new: Roster, *, failed: bool, completed_round: int) -> None:
        """Have the links that the roster says; let go of those that it no longer has. A configured link that `failed`
        is dialled on: when the cut has healed it is asked for again."""
        site_here, links = self._replica.site, self._network.links
        if old.record(site_here) is not None and new.record(site_here) is None:
            return  # we left, or were removed: links stay until the last round is over, or the way back is found
        self._note_failed(old, new)
        before, after = set(old.neighbours(site_here)), set(new.neighbours(site_here))
        for site in sorted(set(new.banned) - set(old.banned) - {site_here}):
            before.discard(site)
            self._peers.pop(site, None)
            self._let_go(site, "it was banned from the run")
        for site in sorted(after - before):
            self._want(site, new)
            self._closing.pop(site, None)
        for site in sorted(before - after):
            if new.record(site) is None:  # it left, or failed: it will close, or is gone
                if site not in self._peers:
                    links.forget(site)
                continue
            if site in self._peers and (failed or not links.is_up(site)):
                continue
            self._peers.pop(site, None)  # on a user's word: it is not asked for again because it is configured
            self._requests.pop(self._own_request(site), None)
            # Who has done the first round without the link knows that the far end had the result before.
            self._closing[site] = new.views[-1].first_round if new.views and new.started else completed_round
        self.close_removed(completed_round)

    def _note_failed(self, old: Roster, new: Roster) -> None:
        """They are to dial this site. But where nobody else is left in its roster they may have gone on with a later
        start of it, and dial that."""
        gone = {one.site for one in new.departed if one.cause == "failed"}
        self._failed.update({one.site: one.address for one in old.sites if one.site in gone})
        for site in [*self._failed]:
            if new.record(site) is not None or site not in gone or len(self._failed) > WAYS_BACK_MAX:
                del self._failed[site]
        if len(new.sites) > 1:
            for site in self._failed:
                self.release(site)

    def close_removed(self, completed_round: int) -> None:
        """A removed link goes when no round before the change can need it any more."""
        for site, last_round in list(self._closing.items()):
            if completed_round >= last_round or not self._network.links.is_up(site):
                del self._closing[site]
                self._let_go(site, "this link was removed")

    def _let_go(self, site: SiteId, reason: str) -> None:
        """Close the link, and tell everybody: where both ends close at once neither sees it go down, and the others
        would send messages that way for ever."""
        links = self._network.links
        neighbour = links.neighbours.get(site)
        up = links.is_up(site)
        self._network.tell(site, Goodbye(reason=reason))
        self._outbox.emit(links.unwant(site, reason))
        if up and neighbour is not None:
            self._network.report_link(site, neighbour.incarnation, up=False, reason=reason)

    def release(self, site: SiteId) -> None:
        """It is not wanted any more for what it was; a link that is up stays, unless something else wants it gone."""
        agreed = self._replica.roster.neighbours(self._replica.site)
        if site not in agreed and not any(site in one for one in (self._peers, self._guests, self._witnesses)):
            self._network.links.forget(site)

    def reach(self, sources: set[SiteId]) -> None:
        """For a transfer: connections to those of its sources that are no neighbours, for as long as it takes."""
        roster = self._replica.roster
        neighbours = {*roster.neighbours(self._replica.site), *self._peers}
        wanted = {site for site in sources if site not in neighbours and roster.record(site) is not None}
        for site in sorted(self._guests - wanted):
            if site not in neighbours:
                self._let_go(site, "the state transfer is over")
        for site in sorted(wanted - self._guests):
            self._want(site, roster)
        self._guests = wanted

    def look_for_a_way_back(self, *, connected: bool) -> None:
        """At every beat. Cut off for long, or no neighbour is in the run: any site may be the way back."""
        outbox, replica = self._outbox, self._replica
        if connected:
            self._linked_s = outbox.now_s
        elif outbox.now_s - self._linked_s > outbox.settings.cut_off_s:
            known = replica.roster if replica.roster.epoch > 1 else replica.last_known
            for record in known.sites[:WAYS_BACK_MAX]:
                if record.site != replica.site:
                    self._network.want(record.site, record.address)
            if len(known.sites) == 1:
                for site, address in self._failed.items():
                    self._network.want(site, address)

    def told_of(self, source: SiteId, report: LinkStateAdvertisement) -> None:
        """A site says what becomes of its link to this one. Of two daemons with one key only the newer may go on, and
        who is linked with that one shows the proof to the other that dials it (spec 2.14). His bare word costs a
        dial."""
        replica, facts = self._replica, self._outbox.facts
        if report.neighbour != replica.site:
            return
        known = replica.has(source) or replica.roster.gone(source) is not None
        if known and report.up and report.incarnation > facts.incarnation:
            self._witnesses.add(source)
        elif source in self._witnesses:
            self._witnesses.remove(source)
            self.release(source)

    def look_for_a_later_start(self) -> None:
        """At every beat."""
        replica = self._replica
        for site in sorted(self._witnesses)[:WAYS_BACK_MAX]:
            self._want(site, replica.roster if replica.roster.record(site) is not None else replica.last_known)

    # -- users' requests

    def change_requested(self, event: LinkChangeRequested) -> None:
        """Connect-link or disconnect-link, on a user's word."""
        request, undone = event.request, (event.other, not event.add)
        message = LinkRequest(request=request, other=event.other, add=event.add, reason="asked for by a user")
        if not self._membership.in_roster:
            self._outbox.emit([AnswerRequest(request=request, done=False, reason="this site is not in the run (yet)")])
            return
        # What was not answered yet would be asked again after this, and undo it.
        for one in [one for one in self._requests.values() if (one.request.other, one.request.add) == undone]:
            self.answered(LinkAnswer(request=one.request.request, done=False, reason=TAKEN_BACK))
        self._requests[request] = PendingLink(message, self._outbox.now_s, 1)
        self._client.tell(message)

    def _own_request(self, site: SiteId) -> str:
        """Under which name this site asks for a link by itself."""
        return f"{OWN}{short(self._replica.site)}-{short(site)}"

    def answered(self, answer: LinkAnswer) -> None:
        """The scheduler's word; nobody waits for one about what this site asked for by itself."""
        if self._requests.pop(answer.request, None) is not None and not answer.request.startswith(OWN):
            self._outbox.emit([AnswerRequest(request=answer.request, done=answer.done, reason=answer.reason)])

    def went_down(self, site: SiteId) -> None:
        """There is nothing left to close."""
        self._closing.pop(site, None)

    def ask(self) -> None:
        """At every beat: users' requests again; and configured links that are up but not in the roster (a cut has
        healed)."""
        now_s = self._outbox.now_s
        for request, pending in list(self._requests.items()):
            if now_s < pending.asked_s + self._outbox.settings.retry_s:
                continue
            pending.asked_s, pending.tries = now_s, pending.tries + 1
            if pending.tries > LINK_REQUEST_TRIES_MAX:
                answer = LinkAnswer(request=request, done=False, reason="no scheduler answered; see chaosd status")
                self.answered(answer)
            else:
                self._client.tell(pending.request)
        roster, site_here = self._replica.roster, self._replica.site
        if not self._membership.is_member or roster.resolving:
            return
        for site in sorted(self._peers):
            request = self._own_request(site)
            known = roster.record(site) is not None and roster.link(site_here, site) is None
            if known and self._network.links.is_up(site) and request not in self._requests:
                message = LinkRequest(request=request, other=site, add=True, reason="a configured link is back")
                self._requests[request] = PendingLink(message, now_s)
                self._client.tell(message)
