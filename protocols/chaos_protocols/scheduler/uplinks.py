"""The planner as the scheduler asks it: with what the sites say that they send at most (spec 9.41).

Whoever plans names members and links; what sites have reported is known to the scheduler of the term alone, and is no
part of the roster: a plan that was made without it is made anew when the links are looked at next (`replanning`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaos_protocols.agreement.roster import LinkRecord
from chaos_protocols.agreement.views import LinkKey, Planner
from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import SyncPlan

Uplinks = Mapping[SiteId, float]
"""Bytes per second that a site sends over all its links together at most; who is not named has no limit."""


class UplinkPlanner:
    """Implements `Planner` with another one. `known`: asked each time."""

    def __init__(self, planner: Planner, known: Callable[[], Uplinks]) -> None:
        self._planner = planner
        self._known = known
        self.all_sites, self.replicate = planner.all_sites, planner.replicate

    def sync(
        self,
        members: tuple[SiteId, ...],
        listeners: tuple[SiteId, ...],
        links: Mapping[LinkKey, LinkRecord],
        *,
        several: bool,
        uplinks: Uplinks | None = None,
    ) -> SyncPlan:
        known = self._known() if uplinks is None else uplinks
        return self._planner.sync(members, listeners, links, several=several, uplinks=known)

    def rate_bytes_per_s(
        self, plan: SyncPlan, links: Mapping[LinkKey, LinkRecord], uplinks: Uplinks | None = None
    ) -> float:
        return self._planner.rate_bytes_per_s(plan, links, self._known() if uplinks is None else uplinks)
