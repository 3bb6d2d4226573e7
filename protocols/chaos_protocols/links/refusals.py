"""Sites that this one does not let in: told to its operator once in a while, whatever they do.

Whoever can reach the port can make as many keys as it likes, so everything here is bounded: what is kept, and what is
written to the event history. Driven by `SiteMachine`; read by the status.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols import events
from chaos_protocols.causes import Cause, Why
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox

REFUSALS_KEPT = 64
"""Sites that are remembered as refused; the one that tried longest ago is forgotten first."""

REFUSALS_TOLD_MAX = 32
"""Entries in the event history about refused sites in REFUSALS_WINDOW_S."""

REFUSALS_WINDOW_S = 600.0
"""A site that is refused for one cause all the time is told so often."""

NEWER_LINK_S = 10.0
"""So long after an older start was refused the link with the newer one may come up for that one to hear of it."""


@dataclass(slots=True)
class Refusal:
    """One site, and why it was refused last. `count`: attempts since it was first seen; times in seconds."""

    why: Why
    count: int
    first_s: float
    last_s: float
    told_s: float


class Refusals:
    """See the module. `sites` is readable by everybody, changed here alone; who tried last comes last."""

    def __init__(self, outbox: Outbox) -> None:
        self.sites: dict[SiteId, Refusal] = {}
        self._outbox = outbox
        self._window_s = outbox.now_s
        self._told = 0

    def refused(self, event: events.SiteRefused) -> bool:
        """It was not let in. Whether that is in the history now, as news."""
        site, now_s = event.site, self._outbox.now_s
        known = self.sites.pop(site, None)
        one = known or Refusal(event.why, 0, now_s, now_s, float("-inf"))
        self.sites[site] = one
        if event.why.cause is not one.why.cause:
            one.told_s = float("-inf")
        one.why, one.count, one.last_s = event.why, one.count + 1, now_s
        while len(self.sites) > REFUSALS_KEPT:
            del self.sites[next(iter(self.sites))]
        if now_s < one.told_s + REFUSALS_WINDOW_S or not self._may_tell():
            return False
        one.told_s = now_s
        self._outbox.record("refused", short(site), event.why.cause.code, "refused", None, event.why.text)
        return True

    def of_strangers(self) -> dict[SiteId, Refusal]:
        """Those of sites that nobody here trusts, which an operator may let in; who tried last comes last."""
        return {site: one for site, one in self.sites.items() if one.why.cause is Cause.UNTRUSTED}

    def admitted(self, site: SiteId) -> Refusal | None:
        """It has a link now, or may have one: what was before is over, and is told here for the last time."""
        return self.sites.pop(site, None)

    def _may_tell(self) -> bool:
        now_s = self._outbox.now_s
        if now_s >= self._window_s + REFUSALS_WINDOW_S:
            self._window_s, self._told = now_s, 0
        self._told += 1
        return self._told <= REFUSALS_TOLD_MAX


FOR_GOOD = frozenset(
    (
        Cause.DISTRUSTED,
        Cause.KEPT_OUT,
        Cause.LET_IN_BEFORE,
        Cause.OTHER_VERSION,
        Cause.OTHER_NAME,
        Cause.OTHER_RUN,
        Cause.ANOTHER_SITE,
        Cause.OLDER_START,
    )
)
"""Causes of a link that does not come about which somebody has to take away: each ends in the history, once."""
