"""How the views of the roster change when a site joins, is promoted, leaves or fails, or a link comes or goes.

Pure functions from the roster as it stands to the views of the next command. A planned change begins at a round far
enough ahead that nobody waits (spec 6.5, 6.6); after a failure every view is made again. Sync plans come from
the planner that is handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from chaos_protocols.agreement.roster import LinkRecord, Roster, View, component_of
from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import TREES_SINCE, ReplicationPlan, SyncPlan
from chaos_protocols.wire.versions import CUTS_SINCE, NEWEST, UNNEGOTIATED

LinkKey = tuple[SiteId, SiteId]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What the replication planner knows of one source: rate of its link to the joiner (0: unknown) and its round-trip
    time."""

    site: SiteId
    rate_bytes_per_s: float
    rtt_s: float


class Planner(Protocol):
    """The pure planners of the daemon, handed to the machines. `all_sites`: a joiner's sources are all sites that hold
    the state, neighbours or not (a baseline of the paper); otherwise its neighbours."""

    all_sites: bool

    def sync(
        self,
        members: tuple[SiteId, ...],
        listeners: tuple[SiteId, ...],
        links: Mapping[LinkKey, LinkRecord],
        *,
        several: bool,
        uplinks: Mapping[SiteId, float] | None = None,
    ) -> SyncPlan:
        """Trees over the members with the listeners as leaves; one, unless `several` may be planned. `uplinks`: bytes
        per second that a site sends over all its links together at most, where that is known. Raises ValueError when
        the links do not connect them."""
        ...

    def rate_bytes_per_s(
        self, plan: SyncPlan, links: Mapping[LinkKey, LinkRecord], uplinks: Mapping[SiteId, float] | None = None
    ) -> float:
        """Bytes of the vector that this plan averages per second over these links; inf where it uses none, 0 where it
        uses one that is gone."""
        ...

    def replicate(
        self,
        *,
        transfer: str,
        joiner: SiteId,
        round_number: int,
        state_bytes: int,
        shard_bytes: int,
        sources: tuple[SourceFacts, ...],
    ) -> ReplicationPlan: ...


def connected_with(
    origin: SiteId, members: Iterable[SiteId], learners: Iterable[SiteId], links: Iterable[LinkKey]
) -> frozenset[SiteId]:
    """The members that `origin` can average with over these links, and the learners next to one of them. A learner
    relays nothing for a round: two members that meet only in a learner are apart."""
    keys = list(links)
    near = component_of(origin, {*members, origin}, keys)
    listening = {
        learner
        for learner in learners
        if any((one == learner and other in near) or (other == learner and one in near) for one, other in keys)
    }
    return frozenset(near | listening)


def connects(members: Iterable[SiteId], learners: Iterable[SiteId], links: Iterable[LinkRecord]) -> bool:
    """Whether the links connect all members with each other, and every learner with a member."""
    contributing, listening = tuple(members), tuple(learners)
    if not contributing:
        return True
    keys = [link.key for link in links]
    return len(connected_with(contributing[0], contributing, listening, keys)) == len({*contributing, *listening})


def changed_views(
    roster: Roster,
    planner: Planner,
    *,
    first_round: int,
    done: int,
    links: Iterable[LinkRecord],
    add_listener: SiteId | None = None,
    add_member: SiteId | None = None,
    remove: SiteId | None = None,
    version: int = NEWEST,
) -> tuple[View, ...]:
    """The views with one change from `first_round` on. Views that no round after `done - 1` can belong to are dropped
    (a member lags at most one round behind the scheduler). `version`: the newest that a site which comes in speaks."""
    assert not roster.views or first_round >= roster.views[-1].first_round
    base = roster.views[-1] if roster.views else None
    members = set(base.members) if base else set()
    listeners = set(base.listeners) if base else set()
    if add_listener is not None:
        listeners.add(add_listener)
    if add_member is not None:
        listeners.discard(add_member)
        members.add(add_member)
    if remove is not None:
        members.discard(remove)
        listeners.discard(remove)
    new = make_view(
        planner,
        first_round=first_round,
        members=members,
        listeners=listeners,
        links=links,
        version=min(version, roster.version()),
        rules=roster.rules,
    )
    kept = [view for view in roster.views if view.first_round < first_round]
    while len(kept) > 1 and kept[1].first_round <= done - 1:
        kept.pop(0)
    return (*kept, new)


def resolved_views(roster: Roster, planner: Planner, *, first_round: int) -> tuple[View, ...]:
    """Every view still to come, made again over the sites and links that are left. A site that is promoted from some
    later round on has caught up already: it contributes at once, so that all views have the same members. Where these
    are too few one view is left, since no round is done that leads from it to the next."""
    left = set(roster.site_ids())
    members = roster.member_ids()
    current = None
    later: list[View] = []
    for view in roster.views:
        if view.first_round <= first_round:
            current = view
        else:
            later.append(view)
    bases = ([current] if current else []) + later
    if len(members) < roster.floor_sites:
        bases = bases[-1:]
    made = []
    for number, base in enumerate(bases):
        begin = first_round if number == 0 else base.first_round
        made.append(
            make_view(
                planner,
                first_round=begin,
                members=members,
                listeners=(left & set(base.listeners)) - set(members),
                links=roster.links,
                version=roster.version(),
                rules=roster.rules,
            )
        )
    return tuple(made)


def make_view(
    planner: Planner,
    *,
    first_round: int,
    members: Iterable[SiteId],
    listeners: Iterable[SiteId],
    links: Iterable[LinkRecord],
    version: int = UNNEGOTIATED,
    rules: int = 0,
) -> View:
    """A new view; its epoch is filled in when the command is applied. `version`: the newest that all its sites are
    known to speak. `rules`: those that the run has agreed on."""
    ordered, listening = tuple(sorted(members)), tuple(sorted(listeners))
    plan = planner.sync(ordered, listening, {link.key: link for link in links}, several=version >= TREES_SINCE)
    if rules >= CUTS_SINCE:
        plan = msgspec.structs.replace(plan, fine=True)
    return View(epoch=0, first_round=first_round, members=ordered, listeners=listening, plan=plan)
