"""The links that a site wants to have, and what its user asks of them: as the roster says, as its configuration says.

It works like `standing.py`, of which it is a part: compare the committed roster with what is there, and ask again at
every beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos_protocols.effects import AnswerRequest
from chaos_protocols.messages import Farewell, LinkAnswer, LinkRequest
from chaos_protocols.names import SiteId, short
from chaos_protocols.roster import Roster

if TYPE_CHECKING:
    from chaos_protocols.site import SiteMachine

LINK_REQUEST_TRIES_MAX = 20
"""A link request is asked again at every retry; after so many without an answer the user is told so."""


@dataclass(slots=True)
class PendingLink:
    """A request that the scheduler has not answered yet."""

    request: LinkRequest
    asked_s: float
    tries: int = 0


class WantedLinks:
    """See the module. `peers`: the configured neighbours, with their addresses."""

    def __init__(self, machine: SiteMachine) -> None:
        self._machine = machine
        self.peers: dict[SiteId, str] = {}
        self._links: dict[str, PendingLink] = {}
        self._closing: dict[SiteId, int] = {}
        self._guests: set[SiteId] = set()

    def follow(self, old: Roster, new: Roster, *, failed: bool) -> None:
        """Have the links that the roster says; let go of those that it no longer has. A configured link that `failed`
        is dialled on: when the cut has healed it is asked for again."""
        machine = self._machine
        if old.record(machine.site) is not None and new.record(machine.site) is None:
            return  # we left, or were removed: links stay until the last round is over, or the way back is found
        before, after = set(old.neighbours(machine.site)), set(new.neighbours(machine.site))
        for site in sorted(after - before):
            record = new.record(site)
            machine.emit(machine.links.want(site, record.address if record else "", now_s=machine.now_s))
            self._closing.pop(site, None)
        for site in sorted(before - after):
            if new.record(site) is None:  # it left, or failed: it will close, or is gone
                if site not in self.peers:
                    machine.links.forget(site)
                continue
            if site in self.peers and (failed or not machine.links.is_up(site)):
                continue
            self.peers.pop(site, None)  # on a user's word: it is not asked for again because it is configured
            # Who has done the first round without the link knows that the far end had the result before.
            self._closing[site] = new.views[-1].first_round if new.views and new.started else machine.rounds.done
        self.close_removed()

    def close_removed(self) -> None:
        """A removed link goes when no round before the change can need it any more."""
        machine = self._machine
        for site, last_round in list(self._closing.items()):
            if machine.rounds.done >= last_round or not machine.links.is_up(site):
                del self._closing[site]
                self._let_go(site, "this link was removed")

    def _let_go(self, site: SiteId, reason: str) -> None:
        """Close the link, and tell everybody: where both ends close at once neither sees it go down, and the others
        would send messages that way for ever."""
        machine = self._machine
        neighbour = machine.links.neighbours.get(site)
        up = machine.links.is_up(site)
        machine.tell(site, Farewell(reason=reason))
        machine.emit(machine.links.unwant(site, reason))
        if up and neighbour is not None:
            machine.report_link(site, neighbour.incarnation, up=False, reason=reason)

    def reach(self, sources: set[SiteId]) -> None:
        """For a transfer: connections to those of its sources that are no neighbours, for as long as it takes."""
        machine = self._machine
        neighbours = {*machine.roster.neighbours(machine.site), *self.peers}
        wanted = {site for site in sources if site not in neighbours and machine.roster.record(site) is not None}
        for site in sorted(self._guests - wanted):
            if site not in neighbours:
                self._let_go(site, "the state transfer is over")
        for site in sorted(wanted - self._guests):
            record = machine.roster.record(site)
            machine.emit(machine.links.want(site, record.address if record else "", now_s=machine.now_s))
        self._guests = wanted

    def change_requested(self, request: str, other: SiteId, add: bool) -> None:
        """Connect-link or disconnect-link, on a user's word."""
        machine = self._machine
        message = LinkRequest(request=request, other=other, add=add, reason="asked for by a user")
        if not machine.standing.in_roster:
            machine.emit([AnswerRequest(request=request, done=False, reason="this site is not in the run (yet)")])
            return
        self._links[request] = PendingLink(message, machine.now_s, 1)
        machine.tell_scheduler(message)

    def answered(self, answer: LinkAnswer) -> None:
        if self._links.pop(answer.request, None) is not None and not answer.request.startswith("auto-"):
            self._machine.emit([AnswerRequest(request=answer.request, done=answer.done, reason=answer.reason)])

    def went_down(self, site: SiteId) -> None:
        self._closing.pop(site, None)

    def ask(self) -> None:
        """Users' requests again; and configured links that are up but not in the roster (a cut has healed)."""
        machine = self._machine
        for request, pending in list(self._links.items()):
            if machine.now_s < pending.asked_s + machine.settings.retry_s:
                continue
            pending.asked_s, pending.tries = machine.now_s, pending.tries + 1
            if pending.tries > LINK_REQUEST_TRIES_MAX:
                answer = LinkAnswer(request=request, done=False, reason="no scheduler answered; see chaosd status")
                self.answered(answer)
                self._links.pop(request, None)
            else:
                machine.tell_scheduler(pending.request)
        record = machine.own_record
        if not machine.standing.in_roster or record is None or record.state != "member" or machine.roster.settling:
            return
        for site in sorted(self.peers):
            request = f"auto-{short(machine.site)}-{short(site)}"
            known = machine.roster.record(site) is not None and machine.roster.link(machine.site, site) is None
            if known and machine.links.is_up(site) and request not in self._links:
                message = LinkRequest(request=request, other=site, add=True, reason="a configured link is back")
                self._links[request] = PendingLink(message, machine.now_s)
                machine.tell_scheduler(message)
