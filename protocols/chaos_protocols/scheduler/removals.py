"""A site goes: how its removal is proposed, and what the roster keeps of it.

`removal_of` makes of a removal that was asked for the one that the roster of now wants; `remove_site` its command.
Used by the negotiation `ScaleIn`. Sources: spec 7.8, 13.5, 14.1, 14.11.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from chaos_protocols.agreement.commands import RemoveSite
from chaos_protocols.agreement.roster import Departure, Roster
from chaos_protocols.agreement.views import changed_views, connects
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.proposals import (
    REASON_CHARACTERS_MAX,
    STATES_VERSION,
    CannotPropose,
    Proposal,
    Situation,
    with_learner,
    without_site,
)
from chaos_protocols.wire.plans import CheckpointFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A site that is to be removed."""

    site: SiteId
    incarnation: int
    graceful: bool
    """It asked to leave, and takes part until its last round."""
    left: bool
    """It is recorded as left, not as failed."""
    keeps: CheckpointFacts | None = None
    """Of a leaver: the newest state on its disk when it goes, as it says."""
    resolve: bool
    """The running round must be resolved without it."""
    reason: str


def removal_of(situation: Situation, asked: Removal) -> Removal:
    """The removal as the roster of now wants it: under which name the site goes, and whether the running round must be
    resolved without it. Never takes back that it must: who proposes it again has failed to once."""
    roster, site = situation.roster, asked.site
    record = roster.record(site)
    left, incarnation = asked.left, asked.incarnation
    if record is not None and record.incarnation != incarnation:
        raise CannotPropose("it has joined again since", final=True)
    if record is None:
        if not any(site in view.members for view in roster.views):
            raise CannotPropose("it is out of the roster already", final=True)
        gone = roster.gone(site)
        if gone is not None:  # its name stays: who left is not called failed because its last round was resolved
            left, incarnation = gone.cause == "left", gone.incarnation
    whole = stays_whole_without(roster, site)
    counts = any(site in view.members for view in roster.views_in_force(situation.done))
    # More than this site is cut off, or it was promoted since its loss was seen: no round may wait for it.
    resolve = asked.resolve or (not asked.graceful and (roster.resolving or not whole or counts))
    if not resolve and not whole:
        raise CannotPropose("its leaving would split the overlay", final=False, split=True)
    return replace(asked, left=left, incarnation=incarnation, resolve=resolve)


def stays_whole_without(roster: Roster, site: SiteId) -> bool:
    """Whether the overlay still connects everybody else."""
    left = [link for link in roster.links if site not in link.key]
    members = [other for other in roster.member_ids() if other != site]
    learners = [other for other in roster.learner_ids() if other != site]
    return connects(members, learners, left)


def remove_site(situation: Situation, removal: Removal) -> Proposal:
    """`removal`: as `removal_of` made it from the same situation."""
    roster, site = situation.roster, removal.site
    if removal.resolve:
        views = roster.views
    else:
        left = [link for link in roster.links if site not in link.key]
        views = changed_views(
            roster,
            situation.planner,
            first_round=situation.first_round,
            done=situation.done,
            links=left,
            remove=site,
        )
    departure = Departure(
        site=site,
        incarnation=removal.incarnation,
        last_round=situation.first_round - 1 if removal.graceful else situation.done,
        cause="left" if removal.left else "banned" if site in situation.banned else "failed",
        reason=removal.reason[:REASON_CHARACTERS_MAX],
    )
    taken = _taken_along(situation, removal)
    if roster.version() >= STATES_VERSION and taken is not None:
        known = roster.record(site) or roster.departure(site, removal.incarnation)
        departure = msgspec.structs.replace(
            departure,
            name=known.name if known is not None else "",
            lineage=roster.restore_epoch,
            newest_round=taken,
        )
    configuration = without_site(situation.configuration, site)
    if removal.graceful:  # goes on hearing what is agreed until it is released
        configuration = with_learner(configuration, site)
    return Proposal(
        command=RemoveSite(departure=departure, resolve=removal.resolve, views=views),
        configuration=configuration,
        first_round=None if removal.resolve else situation.first_round,
    )


def _taken_along(situation: Situation, removal: Removal) -> int | None:
    """The newest round of whose state the site may be the only one to have; None: it takes nothing along that anybody
    waits for. A leaver does where no other member's worker has the state and it keeps one; also where that was said
    before, and its last round is resolved now: of its last rounds those that were done, as members know that were
    there."""
    if not removal.left:
        return situation.newest_round
    roster, site, keeps = situation.roster, removal.site, removal.keeps
    before = roster.away(site, removal.incarnation)
    if before is not None and before.lineage == roster.restore_epoch:
        return min(before.newest_round, situation.newest_round)
    stay = set(roster.site_ids()) - {site} - situation.ending  # where all end at once nobody is left to wait
    if situation.active - {site} or not stay or keeps is None or keeps.lineage < roster.restore_epoch:
        return None
    # A worker that has the state takes all results up to its last round, also where its script gives nothing more.
    return situation.first_round - 1 if site in situation.holding else min(keeps.round, situation.newest_round)
