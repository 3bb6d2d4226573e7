"""How this site's operator goes on when a majority of the voters is gone for good: with a new run, made of what this
site has, or in the one that another site has made (spec 21, decision 0028).

Safe by name: the new run has another id, and a run's id stands in all that its sites sign, show and keep. So nothing
has to be known of the voters that are given up; if they live, their run goes on apart, and never mixes with this one.

What is decided here is one `StartOver`: the journal holds the former run or the new one, never a part of each. The
daemon then begins another life, to which everything is as after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
from blake3 import blake3

from chaos_protocols.agreement.commands import encode_roster
from chaos_protocols.agreement.raft import HardState, founded_after
from chaos_protocols.agreement.raft.config import majority
from chaos_protocols.agreement.raft.messages import HEAD_BYTES
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.views import Planner, make_view
from chaos_protocols.effects import AnswerRequest, StartOver, StopDaemon
from chaos_protocols.links.network import Network
from chaos_protocols.membership.facts import last_known_roster
from chaos_protocols.membership.participation import Participation
from chaos_protocols.membership.recovered_runs import named
from chaos_protocols.names import SITES_MAX, SiteId, short
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.rounds.phases import RoundPhase
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.recovered import WITHOUT_MAX, Origin, RunRecovered, make_statement, recovered_words
from chaos_protocols.wire.versions import RULED
from chaos_protocols.wishes import FollowWanted, RecoverWithout

QUIET_FACTOR = 10
"""Failure timeouts for which no scheduler was heard: after that many an election would have found one."""

RULES = RULED[-1]
"""Hold in a recovered run from its first entry on: there every word names its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What an operator has to know before he decides, as this site sees it. `missing`: voters that are not in reach,
    or came back without their journals, and so without their votes.
    `silent_s`: for how long no scheduler was heard; with `since_start`: since this daemon started. `round`: whose end
    this site's state is of. `ahead`: a site in reach that is further, and its round. `problem`: why nothing can be
    recovered here now; empty: it can. `outside`: this site is not in the run, and decides nothing for it."""

    voters: tuple[SiteId, ...]
    missing: tuple[SiteId, ...]
    in_reach: tuple[SiteId, ...]
    silent_s: float
    since_start: bool
    round: int
    ahead: tuple[SiteId, int] | None
    generation: int
    problem: str
    outside: bool


class StartingOver:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        network: Network,
        rounds: RoundMachine,
        participation: Participation,
        planner: Planner,
    ) -> None:
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._rounds = rounds
        self._participation = participation
        self._planner = planner

    # -- what an operator is shown

    def outlook(self) -> Outlook:
        """As of now."""
        replica, known = self._replica, self._whole_roster()
        voters = replica.configuration.voters
        near = self._in_reach(known).difference(self._network.without_journal(voters))
        origin = self._outbox.facts.origin
        seen = Outlook(
            voters=voters,
            missing=tuple(site for site in voters if site not in near and site != replica.site),
            in_reach=tuple(sorted(near - {replica.site})),
            silent_s=self._silent_s(),
            since_start=not replica.leader_was_seen,
            round=self._state_round(known),
            ahead=self._ahead(known, near),
            generation=origin.statement.generation + 1 if origin is not None else 2,
            problem="",
            outside=known.record(replica.site) is None,
        )
        return replace(seen, problem=self._problem(known, seen))

    def _problem(self, known: Roster, seen: Outlook) -> str:
        """Why this site makes no run of its own now, whoever is given up; empty: nothing is in the way."""
        replica, site = self._replica, self._replica.site
        record = known.record(site)
        if record is None:  # `outside`
            return "this site is not in the run, as its journal says: it has nothing to recover; see chaosd status"
        if not known.run_id:
            return (
                "this run was founded by a release that drew no run ids, so a recovered one could not be told from it: "
                "found a new run"
            )
        if known.model is None or not known.started:
            return "this run has not begun, so nothing of it can be lost: found a new one"
        if self._participation.membership.leaving:
            return "this site is leaving the run"
        if (leader := replica.raft.leader) is not None and not self._participation.client.is_lost:
            called = "this site" if leader == site else short(leader)
            return f"{called} schedules the run: it goes on, or resolves a failure; see chaosd status"
        if len(seen.voters) - len(seen.missing) >= majority(len(seen.voters)):
            return "a majority of the voters is in reach: they elect a scheduler by themselves within seconds"
        if seen.silent_s < self._quiet_s:
            what = "this daemon was started" if seen.since_start else "a scheduler was heard"
            return (
                f"{what} {seen.silent_s:.0f} s ago; ask again when none was heard for {self._quiet_s:g} s: the links "
                "may come back"
            )
        if record.state != "member":
            return "this site was still fetching the state when the run stopped: recover at a member"
        return self._problem_with_state(seen)

    def _problem_with_state(self, seen: Outlook) -> str:
        """Why the state that is here is not to go on from."""
        copied = self._participation.state.memory.round
        if copied is not None and copied > seen.round:
            return (
                f"this site's daemon holds the state of round {copied} in its memory, and no worker does: start its "
                "script first, which takes it over"
            )
        if seen.round == 0:
            return (
                "this site has no state of the run: start its script if it only waits for its daemon, or recover at a "
                "site that has one"
            )
        if seen.ahead is not None:
            site, number = seen.ahead
            return (
                f"{short(site)} is in reach and further (round {number}, this site has round {seen.round}): recover "
                "there, so that nothing is lost that is in reach. If it is not to be believed: `chaosd block` it first"
            )
        return ""

    @property
    def _quiet_s(self) -> float:
        return QUIET_FACTOR * self._outbox.settings.failure_timeout_s

    def _silent_s(self) -> float:
        replica, now_s = self._replica, self._outbox.now_s
        if replica.raft.leader is None:
            return max(0.0, now_s - replica.leader_seen_s)
        if replica.leads:  # which hears no majority, else nothing is asked
            return now_s - replica.raft.majority_heard_s(now_s)
        return replica.raft.leader_silence_s(now_s)

    def _whole_roster(self) -> Roster:
        """As the whole log has it: its end may have been agreed by those that are gone, and known to nobody here."""
        replica = self._replica
        return last_known_roster(replica.roster, replica.raft.uncommitted, replica.keys.signer)

    def _in_reach(self, known: Roster) -> frozenset[SiteId]:
        ours = {*known.site_ids(), *self._replica.configuration.voters}
        return frozenset(ours & {*self._network.reachable(), *self._network.links.up_sites()})

    def _state_round(self, known: Roster) -> int:
        """Of the newest state that this site can go on from: its worker's, or a checkpoint's."""
        state = self._participation.state
        digest = known.model.spec_digest if known.model is not None else ""
        stored = max((one.round for one in state.files.offers if one.spec_digest == digest), default=0)
        session = state.session.round if state.session.present else 0
        return max(self._rounds.worker_round or 0, session, stored)

    def _ahead(self, known: Roster, near: Iterable[SiteId]) -> tuple[SiteId, int] | None:
        """Who has a later state than this site, or the same one and more of the log: one order for all sites, so that
        they never all point at each other."""
        here, links = (self._state_round(known), known.epoch), self._network.links
        found = []
        for site in near:
            step = self._network.steps.of(site)
            if site == self._replica.site or step is None or step.phase == RoundPhase.STANDBY.value:
                continue
            beat = links.neighbours[site].beat if links.is_up(site) else None
            found.append(((step.round, beat.epoch if beat is not None else 0), site))
        (number, epoch), site = max(found, default=((0, 0), self._replica.site))
        return (site, number) if (number, epoch) > here else None

    # -- a new run

    def recover(self, event: RecoverWithout) -> None:
        """The operator gives these sites up."""
        seen = self.outlook()
        problem = seen.problem or self._problem_with_names(event.without, seen)
        if problem:
            self._answer(event.request, False, problem)
            return
        known, signer, site = self._whole_roster(), self._replica.keys.signer, self._replica.site
        without = tuple(sorted(set(event.without)))
        origin = self._outbox.facts.origin
        statement = make_statement(origin, known.run_id, site, without, event.number, signer)
        hard_state, snapshot = founded_after(
            site,
            encode_roster(self._recovered(known, statement)),
            index=self._replica.raft.last_index,
            term=self._replica.raft.term,
            chain=blake3(recovered_words(statement)).digest(length=HEAD_BYTES),
        )
        reached = msgspec.structs.replace(self._participation.reached.noted, rules=RULES)
        told = (
            f"this site is the run's only member and voter now, at round {seen.round}, without {named(without)}. The "
            f"others follow at their operators' word: `chaosd recover --follow {short(site)}`"
        )
        kept = Origin(statement=statement, sites=self._former_sites(known))
        self._begin(
            event.request, StartOver(hard_state=hard_state, snapshot=snapshot, reached=reached, origin=kept), told
        )

    def _problem_with_names(self, without: tuple[SiteId, ...], seen: Outlook) -> str:
        """The operator names whom he gives up: all voters that cannot be reached, and nobody who can."""
        known, given = self._whole_roster(), set(without)
        if unnamed := [site for site in seen.missing if site not in given]:
            more = " ".join(f"--without {short(site)}" for site in unnamed)
            return (
                f"{named(unnamed)} cannot be reached, or has lost its journal, and has a vote: say `{more}`, too, if "
                "it is gone for good"
            )
        if self._replica.site in given:
            return "this site cannot be given up here: name the sites that are gone"
        if there := [site for site in without if site in seen.in_reach]:
            return (
                f"{named(there)} is in reach, so it is not lost: `chaosd ban` puts a site out that must not take part, "
                "`chaosd leave` over there lets it go"
            )
        if strange := [site for site in without if known.record(site) is None and site not in seen.voters]:
            return f"{named(strange)} is no site of the run: it need not be given up"
        if len(given) > WITHOUT_MAX:
            return f"only {WITHOUT_MAX} sites can be named: name the voters that are gone; others need not be"
        return ""

    def _recovered(self, known: Roster, statement: RunRecovered) -> Roster:
        """The roster that the new run begins with: this site alone, with its votes, its bounds, bans and keys; what was
        in doubt, or on its way, is of the former one."""
        site, epoch = self._replica.site, self._replica.raft.last_index + 1
        record = known.record(site)
        assert record is not None
        view = make_view(
            self._planner,
            first_round=known.views[-1].first_round if known.views else known.resolved_round + 1,
            members=(site,),
            listeners=(),
            links=(),
            version=record.versions.newest,
            rules=RULES,
        )
        return msgspec.structs.replace(
            known,
            epoch=epoch,
            run_id=statement.run_id,
            resolving=False,
            resolved_digest="",
            sites=(record,),
            links=(),
            views=(msgspec.structs.replace(view, epoch=epoch),),
            replication=None,
            departed=(),
            rules=max(RULES, known.rules),
            needs=max(RULES, known.needs),
        )

    # -- another site's

    def follow(self, event: FollowWanted) -> None:
        """The operator gives this site's membership up for the run that another site has made."""
        heard = self._participation.recovered.heard.get(event.by)
        if self._participation.membership.leaving:
            self._answer(event.request, False, "this site is leaving the run")
            return
        if heard is None:
            known = named(self._participation.recovered.heard)
            self._answer(
                event.request,
                False,
                f"nothing was heard here of a run that {short(event.by)} has recovered (of others: {known}). It is "
                "heard when one of the two dials the other: start its daemon, name it in [[peers]], and look at "
                "chaosd status",
            )
            return
        one = heard.statement
        told = (
            f"this site has given up run {short(self._replica.roster.run_id)}, and joins {short(one.run_id)}, which "
            f"{short(one.by)} has recovered as generation {one.generation}"
        )
        kept = Origin(statement=one, sites=self._former_sites(self._whole_roster()))
        self._begin(
            event.request,
            StartOver(hard_state=HardState(0, None), snapshot=None, reached=Reached(), origin=kept),
            told,
        )

    # -- both

    def _former_sites(self, known: Roster) -> tuple[SiteId, ...]:
        """Who may connect to hear of it: nobody who may not connect now."""
        origin = self._outbox.facts.origin
        sites = {*known.site_ids(), *(origin.sites if origin is not None else ())}
        return tuple(sorted(sites - {*known.banned, self._replica.site}))[:SITES_MAX]

    def _begin(self, request: str, start: StartOver, told: str) -> None:
        outbox, generation = self._outbox, start.origin.statement.generation
        outbox.emit([start])
        outbox.record("recovered", outbox.facts.name, f"generation {generation}", "done", None, told)
        outbox.emit(
            [
                AnswerRequest(request=request, done=True, reason=told),
                StopDaemon(graceful=True, reason=told, again=True),
            ]
        )

    def _answer(self, request: str, done: bool, reason: str) -> None:
        self._outbox.emit([AnswerRequest(request=request, done=done, reason=reason)])
