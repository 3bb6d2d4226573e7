"""Whether the run is to agree on a site's new key (spec 20.2, 20.4).

Each report says what its site offers, uses or approves, so nothing has to be remembered. Driven by `SchedulerMachine`;
decides, changes nothing. That it is proven is checked here only to propose nothing in vain: whoever applies it checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaos_protocols.agreement.key_commands import ApproveKey, KeyCommand, SettleKey, keys_of, why_not
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.decisions import Decision
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.proposals import Proposal
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.wire.keys import KeyNews
from chaos_protocols.wire.versions import KEYS_SINCE

IN_VAIN_MAX = 64


class Rekeying:
    """See the module."""

    def __init__(self, facts: Facts, reports: Reports) -> None:
        self._facts, self._reports = facts, reports
        self._in_vain: dict[KeyCommand, int] = {}
        """What was found false, and in which epoch: to check signatures is work, and reports come again and again."""

    def step(self) -> Decision | None:
        """A key that a site uses, or one that it offers and another member's operator has approved."""
        facts, roster = self._facts, self._facts.roster
        if not self._reports.name_keys and facts.key_news() is None:
            return None  # asked after every event
        if max(roster.version(), roster.needs) < KEYS_SINCE:
            return None
        for command in self._wanted():
            if self._in_vain.get(command) == roster.epoch:
                continue
            if not why_not(roster, facts.keys.signer, command):
                return Decision(reason="a site changes its key", proposal=Proposal(command=command))
            while len(self._in_vain) >= IN_VAIN_MAX:
                del self._in_vain[next(iter(self._in_vain))]
            self._in_vain[command] = roster.epoch
        return None

    def _wanted(self) -> Iterator[KeyCommand]:
        """What follows from the reports, proven or not."""
        told = self._told()
        approvals = [(by, approval) for by, news in told.items() for approval in news.approves]
        for site, news in told.items():
            known = keys_of(self._facts.roster, site)
            if news.uses and known is not None:
                yield SettleKey(site=site, number=len(known.chain.changes), signature=news.uses)
            offer = news.offers
            if offer is None or not offer.changes:
                continue
            about = (site, len(offer.changes), self._facts.keys.signer.owner(offer.key))
            for by, approval in approvals:
                if by != site and (approval.site, approval.number, approval.key_id) == about:
                    yield ApproveKey(site=site, chain=offer, by=by, approval=approval)

    def _told(self) -> dict[SiteId, KeyNews]:
        """By each site of the roster, in the order of their ids."""
        facts, found = self._facts, dict[SiteId, KeyNews]()
        for record in facts.roster.sites:
            if record.site == facts.site:
                news = facts.key_news()
            else:
                report = self._reports.of(record)
                news = report.keys if report is not None else None
            if news is not None:
                found[record.site] = news
        return found
