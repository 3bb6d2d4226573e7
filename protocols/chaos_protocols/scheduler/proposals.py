"""From what a negotiation wants to the command that the scheduler proposes: made when its turn has come, from the
roster of then.

Pure functions from a `Situation` to a `Proposal`; `CannotPropose` says why not, and whether waiting helps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from chaos_protocols.agreement.commands import (
    AddLink,
    AddSite,
    Command,
    PromoteSite,
    RemoveLink,
    Replicate,
    SetVoters,
)
from chaos_protocols.agreement.raft.messages import Configuration
from chaos_protocols.agreement.roster import LinkRecord, Roster, SiteRecord
from chaos_protocols.agreement.views import LinkKey, Planner, SourceFacts, changed_views, connects
from chaos_protocols.names import SiteId, short
from chaos_protocols.scheduler.join_figures import UNKNOWN, Judgement, RunFigures, judge
from chaos_protocols.scheduler.uplinks import Uplinks
from chaos_protocols.wire.control import JoinRequest
from chaos_protocols.wire.plans import HOLDS_SINCE, ReplicationPlan

STATES_VERSION = 4
"""From here on a departure says which state may have gone with the site."""

REASON_CHARACTERS_MAX = 1024
"""What a command may say of its reason (`agreement/commands.py`)."""

OUTRUN = "the rounds were too fast for it each time before"
"""Why they wait for a site whose links would carry them."""

SPLITS_OVERLAY = "removing this link would split the overlay; connect another link first (chaosd link add SITE)"


class CannotPropose(Exception):
    """Why the command cannot be made. `final`: it never can; `split`: because the overlay would fall apart; `refused`:
    the site is not let in, and is told why."""

    def __init__(self, reason: str, *, final: bool, split: bool = False, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final
        self.split = split
        self.refused = refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a command is made from."""

    roster: Roster
    configuration: Configuration
    planner: Planner
    first_round: int
    """Where a planned change may begin."""
    done: int
    """The last round that is done at the scheduler."""
    active: frozenset[SiteId]
    """Members whose workers have the state, and train."""
    holding: frozenset[SiteId] = frozenset()
    """Those, and members whose workers have it and give nothing more."""
    ending: frozenset[SiteId] = frozenset()
    """Of these the ones that leave, too."""
    figures: RunFigures = UNKNOWN
    """What its rounds ask of a joiner's links."""
    newest_round: int = 0
    """Nobody of the run has a state that is more than a round newer (`Reports.newest_possible`)."""
    banned: frozenset[SiteId] = frozenset()
    """Whom most members want out."""
    uplinks: Uplinks = field(default_factory=dict)
    """What sites send at most, where they have said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change of the roster, of the agreement's configuration, or of both in one entry."""

    command: Command
    configuration: Configuration | None = None
    """None: stays as it is."""
    first_round: int | None = None
    """A planned change begins with this round, and the scheduler's own site gives nothing to it until the entry's fate
    is known (spec 6.7). None: it begins with no round, or resolves the one under way."""


def record_of(site: SiteId, request: JoinRequest, state: str) -> SiteRecord:
    """What the roster gets of a site that asks to join."""
    return SiteRecord(
        site=site,
        name=request.name,
        address=request.address,
        public_key=request.public_key,
        incarnation=request.incarnation,
        state=state,
        versions=request.versions,
    )


def add_site(
    situation: Situation, transfer: str, joiner: SiteId, request: JoinRequest, links: Iterable[LinkRecord]
) -> Proposal:
    """Admit the joiner as a learner over those of `links` (each as measured by the far end) whose far ends are still in
    the roster."""
    roster = situation.roster
    assert roster.model is not None
    there = tuple(link for link in links if roster.record(far_end(link, joiner)) is not None)
    sources = sources_for(situation, joiner, there)
    if not sources:
        raise CannotPropose(
            "none of its neighbours has the training state at the moment; connect it to a site whose worker trains",
            final=True,
        )
    record = record_of(joiner, request, "learner")
    replication = _planned(situation, transfer, joiner, sources, spoken=request.versions.newest, admitted=True)
    views = changed_views(
        roster,
        situation.planner,
        first_round=situation.first_round,
        done=situation.done,
        links=(*roster.links, *there),
        add_listener=joiner,
        version=request.versions.newest,
    )
    return Proposal(
        command=AddSite(record=record, links=there, views=views, replication=replication),
        configuration=with_learner(situation.configuration, joiner),
        first_round=situation.first_round,
    )


def replicate(
    situation: Situation, transfer: str, joiner: SiteId, *, outrun: bool = False, may_hold: bool = True
) -> Proposal:
    """The state once more, for a site of the roster; a new epoch marks the snapshot's round. `outrun`: the rounds were
    too fast for it so far, and wait. Not `may_hold`: whatever the figures say,
    they do not."""
    roster = situation.roster
    assert roster.model is not None
    record = roster.record(joiner)
    if record is None:
        raise CannotPropose(f"{short(joiner)} is no longer in the roster", final=True)
    sources = sources_for(situation, joiner, roster.links)
    if not sources:
        raise CannotPropose("none of its neighbours has the training state at the moment", final=True)
    replication = _planned(
        situation, transfer, joiner, sources,
        spoken=record.versions.newest, admitted=False, outrun=outrun, may_hold=may_hold,
    )  # fmt: skip
    views = changed_views(
        roster, situation.planner, first_round=situation.first_round, done=situation.done, links=roster.links
    )
    return Proposal(command=Replicate(views=views, replication=replication), first_round=situation.first_round)


def _planned(
    situation: Situation,
    transfer: str,
    joiner: SiteId,
    sources: tuple[SourceFacts, ...],
    *,
    spoken: int,
    admitted: bool,
    outrun: bool = False,
    may_hold: bool = True,
) -> ReplicationPlan:
    """Who sends the joiner what, and whether the rounds wait for it. `admitted`: it may be refused; a site of the
    roster takes part in every round, and so sets the pace. `spoken`: the newest version that the joiner speaks.
    `outrun`: whatever the figures say, the rounds wait. Not `may_hold`: they do not."""
    roster = situation.roster
    assert roster.model is not None
    plan = situation.planner.replicate(
        transfer=transfer,
        joiner=joiner,
        round_number=situation.first_round - 1,
        state_bytes=roster.model.state_bytes,
        shard_bytes=roster.model.shard_bytes,
        sources=sources,
    )
    if not may_hold or min(spoken, roster.version()) < HOLDS_SINCE:
        return plan
    judged = judge(situation.figures, roster.model.state_bytes, [source.rate_bytes_per_s for source in sources])
    if judged.refusal and admitted:
        raise CannotPropose(judged.refusal, final=True, refused=True)
    if outrun and not judged.hold_s:
        judged = Judgement(hold_s=situation.figures.hold_s, reason=OUTRUN)
    if not judged.hold_s:
        return plan
    reason = f"{judged.reason}; {plan.reason}"[:REASON_CHARACTERS_MAX]
    return msgspec.structs.replace(plan, hold_s=judged.hold_s, reason=reason)


def far_end(link: LinkRecord, site: SiteId) -> SiteId:
    return link.other if link.one == site else link.one


def sources_for(situation: Situation, joiner: SiteId, links: Iterable[LinkRecord]) -> tuple[SourceFacts, ...]:
    """Who can send the state: the joiner's neighbours that have it; with `all_sites` also members further away, whose
    rate to the joiner nobody has measured."""
    near = {far_end(link, joiner): link for link in sorted(links, key=lambda one: one.key) if joiner in link.key}
    found = [
        SourceFacts(site=site, rate_bytes_per_s=_sent(situation, site, link), rtt_s=link.rtt_s)
        for site, link in near.items()
        if site in situation.active
    ]
    if found and situation.planner.all_sites:
        far = situation.active - set(near) - {joiner}
        found += [SourceFacts(site=site, rate_bytes_per_s=0.0, rtt_s=0.0) for site in sorted(far)]
    return tuple(found)


def _sent(situation: Situation, site: SiteId, link: LinkRecord) -> float:
    """Bytes per second over this link, of which the site may send less; 0: nothing is known."""
    limit, rate = situation.uplinks.get(site), link.rate_bytes_per_s
    return rate if limit is None else min(rate or limit, limit)


def promote_site(situation: Situation, joiner: SiteId, *, waits: bool) -> Proposal:
    """`waits`: it has not caught up yet, and its first round waits for it."""
    roster = situation.roster
    if roster.record(joiner) is None:
        raise CannotPropose(f"{short(joiner)} is no longer in the roster", final=True)
    views = changed_views(
        roster,
        situation.planner,
        first_round=situation.first_round,
        done=situation.done,
        links=roster.links,
        add_member=joiner,
    )
    return Proposal(command=PromoteSite(site=joiner, views=views, waits=waits), first_round=situation.first_round)


def release_site(situation: Situation, site: SiteId) -> Proposal:
    """Who has left hears no more of what is agreed."""
    if situation.roster.record(site) is not None:
        raise CannotPropose("it has joined again", final=True)
    return Proposal(command=SetVoters(), configuration=without_site(situation.configuration, site))


def add_link(situation: Situation, link: LinkRecord) -> Proposal:
    roster = situation.roster
    for site in link.key:
        if roster.record(site) is None:
            raise CannotPropose(f"{short(site)} is no longer in the roster", final=True)
    others = [known for known in roster.links if known.key != link.key]
    views = changed_views(
        roster, situation.planner, first_round=situation.first_round, done=situation.done, links=(*others, link)
    )
    return Proposal(command=AddLink(link=link, views=views), first_round=situation.first_round)


def remove_link(situation: Situation, key: LinkKey, *, asked: bool, resolve: bool, reason: str) -> Proposal:
    """`asked`: somebody wants it gone, but not at the price of a split overlay. Otherwise it is dead, whatever hangs on
    it. `resolve`: a round depended on it."""
    roster = situation.roster
    if roster.link(*key) is None and not resolve:
        raise CannotPropose("there is no such link any more", final=True)
    left = [link for link in roster.links if link.key != key]
    whole = connects(roster.member_ids(), roster.learner_ids(), left)
    resolves = resolve or (not whole and not asked)
    if not resolves and not whole:
        raise CannotPropose(SPLITS_OVERLAY, final=True)
    if resolves:
        views = roster.views
    else:
        views = changed_views(
            roster, situation.planner, first_round=situation.first_round, done=situation.done, links=left
        )
    one, other = key
    return Proposal(
        command=RemoveLink(one=one, other=other, resolve=resolves, views=views, reason=reason[:REASON_CHARACTERS_MAX]),
        first_round=None if resolves else situation.first_round,
    )


def with_vote(configuration: Configuration, site: SiteId) -> Configuration:
    return Configuration(
        voters=tuple(sorted({*configuration.voters, site})),
        learners=tuple(one for one in configuration.learners if one != site),
    )


def without_vote(configuration: Configuration, site: SiteId) -> Configuration:
    return with_learner(without_site(configuration, site), site)


def without_site(configuration: Configuration, site: SiteId) -> Configuration:
    return Configuration(
        voters=tuple(one for one in configuration.voters if one != site),
        learners=tuple(one for one in configuration.learners if one != site),
    )


def with_learner(configuration: Configuration, site: SiteId) -> Configuration:
    if site in configuration.voters:
        return configuration
    return Configuration(voters=configuration.voters, learners=tuple(sorted({*configuration.learners, site})))
