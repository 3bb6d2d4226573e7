"""From what a negotiation wants to the command that the scheduler proposes: made when its turn has come, from the
roster of then.

Pure functions; `CannotPropose` says why not, and whether waiting helps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chaos_protocols.commands import (
    AddLink,
    AddSite,
    Command,
    PromoteSite,
    RemoveLink,
    RemoveSite,
    Replicate,
    SetVoters,
)
from chaos_protocols.names import VOTERS_MAX, SiteId, link_key, short
from chaos_protocols.negotiation import ConnectLink, DisconnectLink, ScaleIn, ScaleOut
from chaos_protocols.raft.messages import Configuration
from chaos_protocols.roster import Departure, LinkRecord, Roster, SiteRecord
from chaos_protocols.views import Planner, SourceFacts, changed_views, connects


class CannotPropose(Exception):
    """Why the command cannot be made. `final`: it never can; `split`: because the overlay would fall apart."""

    def __init__(self, reason: str, *, final: bool, split: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final
        self.split = split


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a command is made from. `first_round`: where a planned change may begin; `active`: members whose workers
    have the state."""

    scheduler: SiteId
    roster: Roster
    configuration: Configuration
    planner: Planner
    first_round: int
    done: int
    active: frozenset[SiteId]


Proposal = tuple[Command, Configuration | None]


def add_site(situation: Situation, negotiation: ScaleOut) -> Proposal:
    roster, joiner = situation.roster, negotiation.joiner
    assert negotiation.request is not None and roster.model is not None
    request = negotiation.request
    neighbours = [site for site in sorted(negotiation.links) if roster.record(site) is not None]
    links = []
    for site in neighbours:
        answer = negotiation.links[site]
        one, other = link_key(site, joiner)
        links.append(LinkRecord(one=one, other=other, rate_bytes_per_s=answer.rate_bytes_per_s, rtt_s=answer.rtt_s))
    sources = sources_for(situation, joiner, links)
    if not sources:
        raise CannotPropose(
            "none of its neighbours has the training state at the moment; connect it to a site whose worker trains",
            final=True,
        )
    record = SiteRecord(
        site=joiner,
        name=request.name,
        address=request.address,
        public_key=request.public_key,
        incarnation=request.incarnation,
        state="learner",
        versions=request.versions,
    )
    replication = situation.planner.replicate(
        transfer=negotiation.identifier,
        joiner=joiner,
        round_number=situation.first_round - 1,
        state_bytes=roster.model.state_bytes,
        shard_bytes=roster.model.shard_bytes,
        sources=sources,
    )
    views = changed_views(
        roster,
        situation.planner,
        first_round=situation.first_round,
        done=situation.done,
        links=(*roster.links, *links),
        add_listener=joiner,
    )
    command = AddSite(record=record, links=tuple(links), views=views, replication=replication)
    return command, with_learner(situation.configuration, joiner)


def replicate(situation: Situation, negotiation: ScaleOut) -> Proposal:
    """The state once more, for a site of the roster; a new epoch marks the snapshot's round."""
    roster, joiner = situation.roster, negotiation.joiner
    assert roster.model is not None
    record = roster.record(joiner)
    if record is None:
        raise CannotPropose(f"{short(joiner)} is no longer in the roster", final=True)
    sources = sources_for(situation, joiner, roster.links)
    if not sources:
        raise CannotPropose("none of its neighbours has the training state at the moment", final=True)
    replication = situation.planner.replicate(
        transfer=negotiation.identifier,
        joiner=joiner,
        round_number=situation.first_round - 1,
        state_bytes=roster.model.state_bytes,
        shard_bytes=roster.model.shard_bytes,
        sources=sources,
    )
    views = changed_views(
        roster, situation.planner, first_round=situation.first_round, done=situation.done, links=roster.links
    )
    return Replicate(views=views, replication=replication), None


def sources_for(situation: Situation, joiner: SiteId, links: Iterable[LinkRecord]) -> tuple[SourceFacts, ...]:
    """Who can send the state: the joiner's neighbours that have it; with `all_sites` also members further away, whose
    rate to the joiner nobody has measured."""
    near = {
        (link.other if link.one == joiner else link.one): link
        for link in sorted(links, key=lambda one: one.key)
        if joiner in link.key
    }
    found = [
        SourceFacts(site=site, rate_bytes_per_s=link.rate_bytes_per_s, rtt_s=link.rtt_s)
        for site, link in near.items()
        if site in situation.active
    ]
    if found and situation.planner.all_sites:
        far = situation.active - set(near) - {joiner}
        found += [SourceFacts(site=site, rate_bytes_per_s=0.0, rtt_s=0.0) for site in sorted(far)]
    return tuple(found)


def promote_site(situation: Situation, negotiation: ScaleOut) -> Proposal:
    roster, joiner = situation.roster, negotiation.joiner
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
    return PromoteSite(site=joiner, views=views, waits=negotiation.waits), None


def remove_site(situation: Situation, negotiation: ScaleIn) -> Proposal:
    roster, site = situation.roster, negotiation.site
    record = roster.record(site)
    if record is not None and record.incarnation != negotiation.incarnation:
        raise CannotPropose("it has joined again since", final=True)
    if record is None:
        if not any(site in view.members for view in roster.views):
            raise CannotPropose("it is out of the roster already", final=True)
        gone = next((one for one in roster.departed if one.site == site), None)
        if gone is not None:  # its name stays: who left is not called failed because its last round was settled
            negotiation.left, negotiation.incarnation = gone.cause == "left", gone.incarnation
    left = [link for link in roster.links if site not in link.key]
    members = [other for other in roster.member_ids() if other != site]
    learners = [other for other in roster.learner_ids() if other != site]
    last_round = situation.first_round - 1 if negotiation.graceful else situation.done
    whole = connects(members, learners, left)
    counts = any(site in view.members for view in roster.views_in_force(situation.done))
    if not negotiation.graceful and (roster.settling or not whole or counts):
        # More than this site is cut off, or it was promoted since its loss was seen: no round may wait for it.
        negotiation.settle = True
    if negotiation.settle:
        views = roster.views
    else:
        if not whole:
            raise CannotPropose("its leaving would split the overlay", final=False, split=True)
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
        incarnation=negotiation.incarnation,
        last_round=last_round,
        cause="left" if negotiation.left else "failed",
        reason=negotiation.cause[:1024],
    )
    command = RemoveSite(departure=departure, settle=negotiation.settle, views=views)
    configuration = without_site(situation.configuration, site)
    if negotiation.graceful:  # goes on hearing what is agreed until it is released
        configuration = with_learner(configuration, site)
    return command, configuration


def release_site(situation: Situation, negotiation: ScaleIn) -> Proposal:
    if situation.roster.record(negotiation.site) is not None:
        raise CannotPropose("it has joined again", final=True)
    return SetVoters(), without_site(situation.configuration, negotiation.site)


def add_link(situation: Situation, negotiation: ConnectLink) -> Proposal:
    roster = situation.roster
    for site in (negotiation.one, negotiation.other):
        if roster.record(site) is None:
            raise CannotPropose(f"{short(site)} is no longer in the roster", final=True)
    link = LinkRecord(
        one=negotiation.one,
        other=negotiation.other,
        rate_bytes_per_s=negotiation.rate_bytes_per_s,
        rtt_s=negotiation.rtt_s,
    )
    others = [known for known in roster.links if known.key != link.key]
    views = changed_views(
        roster, situation.planner, first_round=situation.first_round, done=situation.done, links=(*others, link)
    )
    return AddLink(link=link, views=views), None


def remove_link(situation: Situation, negotiation: DisconnectLink) -> Proposal:
    roster = situation.roster
    one, other = negotiation.one, negotiation.other
    if roster.link(one, other) is None and not negotiation.settle:
        raise CannotPropose("there is no such link any more", final=True)
    left = [link for link in roster.links if link.key != (one, other)]
    whole = connects(roster.member_ids(), roster.learner_ids(), left)
    if not whole and negotiation.request is None:
        negotiation.settle = True  # the link is dead, whatever hangs on it
    if not negotiation.settle and not whole:
        raise CannotPropose(
            "removing this link would split the overlay; connect another link first (chaosd link add SITE)",
            final=True,
        )
    if negotiation.settle:
        views = roster.views
    else:
        views = changed_views(
            roster, situation.planner, first_round=situation.first_round, done=situation.done, links=left
        )
    reason = negotiation.cause[:1024]
    return RemoveLink(one=one, other=other, settle=negotiation.settle, views=views, reason=reason), None


def voters_wanted(members: int) -> int:
    """An odd number of voters, at most VOTERS_MAX. With two sites only the scheduler's votes: it may remove the other,
    the other can never remove it (protocols.md section 1)."""
    return max(1, min(VOTERS_MAX, members - 1 + members % 2))


def next_voters(roster: Roster, configuration: Configuration, scheduler: SiteId) -> Configuration | None:
    """One step towards the voters wanted, or None. Members of long standing are kept; the smallest ids come first."""
    members = [site for site in roster.member_ids() if site in {*configuration.voters, *configuration.learners}]
    unheard = [site for site in roster.site_ids() if site not in {*configuration.voters, *configuration.learners}]
    if unheard:
        return with_learner(configuration, unheard[0])
    wanted = voters_wanted(len(members))
    voters = list(configuration.voters)
    strangers = [site for site in voters if site not in members and site != scheduler]
    if strangers:
        return without_vote(configuration, strangers[0])
    if len(voters) > wanted:
        surplus = [site for site in voters if site != scheduler]
        return without_vote(configuration, surplus[-1]) if surplus else None
    candidates = [site for site in members if site not in voters]
    if len(voters) < wanted and candidates:
        return with_vote(configuration, candidates[0])
    return None


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
