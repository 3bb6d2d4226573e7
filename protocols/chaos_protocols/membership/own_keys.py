"""The change of this site's own key, and what its operator approves for others (spec 20.2 to 20.4).

What is wanted is said in each report until the run has agreed on it, so nothing of it needs to be heard at once.
Driven by `SiteMachine`, and by the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from chaos_protocols.agreement.key_commands import keys_of, why_not_offered
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.effects import KeyAgreed
from chaos_protocols.events import Event
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.keys import (
    APPROVALS_MAX,
    KeyApproval,
    KeyChain,
    KeyNews,
    SiteKeys,
    approval_words,
    use_words,
)
from chaos_protocols.wishes import KeyApproved, KeyOffered


class OwnKeys:
    """See the module. `report`: tells the scheduler at once what this site's next report says."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, report: Callable[[], None]) -> None:
        self._outbox, self._replica, self._report = outbox, replica, report
        self._offer: KeyChain | None = None
        self._approvals: tuple[KeyApproval, ...] = ()
        self._noted: KeyChain | None = None
        self._news: tuple[int, KeyNews | None] | None = None
        """As of this epoch; None: to be found anew."""

    @property
    def agreed(self) -> SiteKeys | None:
        """What the run has agreed on about this site's keys."""
        return keys_of(self._replica.roster, self._replica.site)

    @property
    def approvals(self) -> tuple[KeyApproval, ...]:
        """What its operator has approved and the run has not agreed on yet."""
        return self._approvals

    # -- what the operator wants

    @property
    def takes(self) -> dict[type[Event], Callable[[Any], None]]:
        """Which of its methods takes which event."""
        return {KeyOffered: self.offered, KeyApproved: self.approved}

    def offered(self, event: KeyOffered) -> None:
        """There is a next key, durable; None: there is none any more."""
        self._offer, self._news = event.chain, None
        self._report()

    def approved(self, event: KeyApproved) -> None:
        """He has heard from the other one's operator which key is to be its next."""
        roster, keys = self._replica.roster, self._replica.keys
        known = keys_of(roster, event.site)
        number = 1 + (len(known.chain.changes) if known is not None else 0)
        words = approval_words(roster.run_id, event.site, number, event.key_id)
        approval = KeyApproval(
            site=event.site,
            number=number,
            key_id=event.key_id,
            public_key=keys.public_key,
            signature=keys.sign(words),
        )
        others = tuple(one for one in self._approvals if one.site != event.site)
        self._approvals, self._news = (*others, approval)[-APPROVALS_MAX:], None
        self._report()

    # -- what is said

    def news(self) -> KeyNews | None:
        """For the report of this site; None: there is nothing to say. Asked after every event where this site
        schedules."""
        epoch = self._replica.roster.epoch
        if self._news is None or self._news[0] != epoch:
            self._news = (epoch, self._found())
        return self._news[1]

    def _found(self) -> KeyNews | None:
        offer, uses = self._offer, self._use()
        if offer is not None and why_not_offered(
            self._replica.roster, self._replica.keys.signer, self._replica.site, offer
        ):
            offer = None
        if offer is None and not uses and not self._approvals:
            return None
        return KeyNews(offers=offer, uses=uses, approves=self._approvals)

    def _use(self) -> bytes:
        """This start uses the newest key that the run has agreed on, and the run does not know that yet."""
        agreed, keys = self.agreed, self._replica.keys
        if agreed is None or agreed.is_settled or agreed.chain.key != keys.public_key:
            return b""
        return keys.sign(use_words(agreed.chain.run_id, agreed.site, len(agreed.chain.changes)))

    # -- what is agreed

    def follow(self, sites: Iterable[SiteId]) -> None:
        """The run has agreed on something about the keys of these."""
        replica, roster, record = self._replica, self._replica.roster, self._outbox.record
        for site in sites:
            one = keys_of(roster, site)
            assert one is not None, "that is what is news"
            number, named = len(one.chain.changes), roster.called(site)
            if one.is_settled and not replica.known:
                told = f"the former counts no more{replica.late}"
                record("key", named, f"it uses its new key, number {number}", "done", None, told)
            elif not replica.known:
                told = f"both count until it uses it{replica.late}"
                record("key", named, f"its change of key {number} is agreed", "", None, told)
            self._approvals = tuple(a for a in self._approvals if a.site != site or a.number > number)
        self._news = None

    def look(self) -> None:
        """The roster is another one, or the first of this life: is there a key to be noted for the next start?"""
        agreed = self.agreed
        if agreed is None:
            return
        if agreed.chain.key != self._replica.keys.public_key and agreed.chain != self._noted:
            self._noted = agreed.chain
            self._outbox.emit([KeyAgreed(chain=agreed.chain)])
        if self._offer is not None and agreed.chain.changes[-1:] == self._offer.changes[-1:]:
            self._offer = None
