"""What this site has heard of recoveries of its run, for its operator (spec 21.4).

A site that recovered the run without a majority of its voters, or that follows one that did, shows the statement in
every handshake with a site of the former run. It counts if a site of this site's own run has signed it, and all that
follows from it is words: an event, a line in the status, a way out. Only this site's operator moves it
(`StartingOver`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.recovered import RunRecovered, is_true
from chaos_protocols.wishes import RecoveryTold

HEARD_MAX = 8
"""Recoveries that are remembered, one of each site that says so; the one that was heard first goes first."""

TOLD_OF_EACH_MAX = 3
"""Events about one site that says that it has recovered the run, whatever it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A recovery, and where it was heard last: `via` may be the site that did it, or one that follows it."""

    statement: RunRecovered
    via: SiteId
    address: str
    shown: bool = True
    """By `via`; else by a guest, and the address is the roster's."""

    @property
    def text(self) -> str:
        """In words, with the way out."""
        return said(self.statement)


class RecoveredRuns:
    """See the module. `heard`: by the site that has recovered the run; the newest word of each."""

    def __init__(self, outbox: Outbox, replica: RosterReplica) -> None:
        self.heard: dict[SiteId, Heard] = {}
        self._outbox = outbox
        self._replica = replica
        self._told: dict[SiteId, int] = {}

    def told(self, event: RecoveryTold) -> None:
        """Somebody of a recovered run has a handshake with this site."""
        one = event.statement
        if not self._concerns(one) or not is_true(one, self._replica.keys.verify):
            return
        before = self.heard.get(one.by)
        if before is not None and before.statement.generation > one.generation:
            return
        self.heard[one.by] = self._to_remember(event, before)
        while len(self.heard) > HEARD_MAX:
            del self.heard[next(iter(self.heard))]
        times = self._told.get(one.by, 0)
        if (before is None or before.statement != one) and times < TOLD_OF_EACH_MAX:
            self._told[one.by] = times + 1
            self._outbox.record("recovered", short(one.by), f"generation {one.generation}", "", None, said(one))

    def _to_remember(self, event: RecoveryTold, before: Heard | None) -> Heard:
        """The statement, and whom this site would dial to follow, and believe like a peer of its configuration: who has
        recovered the run, once it has said so itself, else a site of the former run that follows it. A guest can show a
        true statement, too, and is no way to the run that it is of."""
        one = event.statement
        itself, was_here = event.site == one.by, self._was_here(event.site)
        if before is not None and before.statement == one and not itself:
            better = was_here and not (before.via == one.by and before.shown)
            if not better:
                return before
        if itself or was_here:
            return Heard(statement=one, via=event.site, address=event.address)
        known = self._replica.roster.record(one.by) or self._replica.last_known.record(one.by)
        return Heard(statement=one, via=one.by, address=known.address if known is not None else "", shown=False)

    def way_out(self) -> str:
        """For whom this site's run stands: the last word of a recovery; empty where there is none."""
        if not self.heard:
            return ""
        return said(list(self.heard.values())[-1].statement)

    def _concerns(self, one: RunRecovered) -> bool:
        """Whether it is of the run that this site is in, or of one that this one was made of, by a site that was in
        it."""
        replica, origin = self._replica, self._outbox.facts.origin
        before = origin.statement.former if origin is not None else ()
        ours, here = {replica.last_known.run_id, replica.roster.run_id, *before} - {""}, replica.roster.run_id
        if one.run_id == here or one.by == replica.site or not ours.intersection(one.former):
            return False
        return self._was_here(one.by) and one.by not in replica.roster.banned

    def _was_here(self, site: SiteId) -> bool:
        """It is in the run that this site is in, or was in the one that this was made of."""
        replica, origin = self._replica, self._outbox.facts.origin
        known = replica.roster.record(site) is not None or replica.last_known.record(site) is not None
        return known or (origin is not None and site in origin.sites)


def said(one: RunRecovered) -> str:
    """In words, with the way out."""
    return (
        f"this run was recovered as generation {one.generation} by {short(one.by)}, without {named(one.without)}; to "
        f"follow it, and give this site's membership of this run up: `chaosd recover --follow {short(one.by)}`"
    )


def named(sites: Iterable[SiteId]) -> str:
    """For people."""
    return ", ".join(short(site) for site in sites) or "nobody"
