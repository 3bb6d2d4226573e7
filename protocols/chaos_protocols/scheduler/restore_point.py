"""From which state a run goes on when no live member has it: which workers and which checkpoints could bring it, and
which of them does (decisions 0006 and 0011).

The newest state that there is. As long as a site is away that may have a newer one it is waited for, and everybody is
told for whom; an older one is taken on an operator's word only. Also how a run begins: with the state of the founder's
worker.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.commands import SetRestorePoint
from chaos_protocols.agreement.roster import ModelFacts, View
from chaos_protocols.agreement.views import connects, make_view
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reached import ANEW_ROUNDS_MAX
from chaos_protocols.scheduler.decisions import Decision, Note, SiteFailed
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.negotiation import Tell
from chaos_protocols.scheduler.proposals import Proposal, with_learner
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.scheduler.restore_awaited import AwaitedSites, WitnessedRemovals
from chaos_protocols.scheduler.restore_offers import Candidate, RestoreOffers, is_given_up
from chaos_protocols.scheduler.restore_words import RestoreWords
from chaos_protocols.wire.control import StateRequest
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest, RunWaits

CHECKPOINT_RATE_MIN_BYTES_PER_S = 50e6
"""A site is given so long to read its checkpoint, and `transfer_stall_s` besides, before another one is chosen."""

OPERATOR_VERSION = 4
"""Who speaks less does not know that an operator can decide."""


class RestorePoint:
    """Of one term of the scheduler."""

    def __init__(self, facts: Facts, reports: Reports, removals: WitnessedRemovals, *, led_since_s: float) -> None:
        self.offers = RestoreOffers(facts)
        self._words = RestoreWords(facts, self.offers)
        self.waiting = ""
        """Which state the run waits for, and for whom; empty: it does not stand for want of one."""
        self._facts, self._reports = facts, reports
        self._awaited = AwaitedSites(facts, reports, self.offers, removals)
        self._led_since_s = led_since_s
        self._inactive_since_s: float | None = None
        """Since when no member has trained."""
        self._loading: tuple[SiteId, float] | None = None
        """The site that was chosen, and until when it may read its checkpoint, if it has to."""
        self._looked = False
        """Whether the scheduler before had chosen one was looked for."""
        self._proposed: Candidate | None = None
        """Whose state the last decision was to go on from."""
        self._order: tuple[SiteId, RecoverRequest] | None = None
        """An operator's word, not carried out yet, and the site where it was given. It is about a run that stands: when
        that goes on it is over, or it would be carried out the next time, over whatever was done since."""
        self._told_s = float("-inf")
        """When everybody was last told what is waited for."""
        self._carried = ""
        """The operator's request that the last entry of this term carries out."""

    # -- the decision

    def step(self, now_s: float) -> Decision | None:
        """No live member has the state: the run begins with the founder's worker, or goes on from the newest state that
        there is. An older one than somebody may have is never taken silently."""
        facts, roster = self._facts, self._facts.roster
        trains = (roster.model is not None and facts.active) or self._reports.anybody_active()
        self._forget_who_trains()
        if roster.resolving or trains or self._reports.anybody_rests():
            self._inactive_since_s, self.waiting, self._order = None, "", None
            return None
        if self._inactive_since_s is None:
            self._inactive_since_s = now_s
        if roster.model is not None and not self._nobody_trains(now_s):
            return None
        chosen = self._ordered_candidate() or self._choose(now_s)
        if chosen is None:
            return self._tell_what_is_awaited(now_s) if self.waiting else None
        view = self._view_with(chosen)
        if view is None:
            return None
        learners = [one.site for one in roster.sites if one.state == "learner" and one.site != chosen.record.site]
        if learners:  # one goes at a time, each with the next event: this takes no step of its own
            reason = "its transfer's sources are gone"
            return Decision(reason=reason, failed=(SiteFailed(site=learners[0], reason=reason),))
        self._proposed = chosen
        return self._restore_decision(chosen, view)

    def asked(self, site: SiteId, request: StateRequest) -> None:
        """A site of the roster asks for the state, and says what it has. Not who was chosen, and has not heard of that
        yet: it asks again if it has to."""
        loading = self._who_loads()
        if loading is None or site != loading[0] or self._knows_its_choice(site):
            self.offers.inside(site, request)

    def _knows_its_choice(self, site: SiteId) -> bool:
        facts, record = self._facts, self._facts.roster.record(site)
        if site == facts.site or record is None:
            return True
        report = self._reports.of(record)
        return report is not None and report.epoch >= facts.roster.restore_epoch

    def _forget_who_trains(self) -> None:
        """What such a site offered comes late, or is of before it got its state; and who was chosen is waited for no
        more."""
        if self.offers.state_requests or self._loading is not None:
            for site in self._reports.active_sites():
                self.offers.is_void(site)
                if self._loading is not None and site == self._loading[0]:
                    self._loading = None

    def proposed(self, now_s: float) -> None:
        """What was decided last is in the log: the run goes on from there. The site has the time that its disk may take
        before anything else is chosen: if its worker has died since, it goes back to its checkpoint, and then it trains
        with no entry in the log."""
        assert self._proposed is not None
        chosen, site = self._proposed, self._proposed.record.site
        self.offers.is_void(site)
        self._carried = self._order[1].request if self._order is not None else ""
        self._order, self.waiting = None, ""
        self._looked, self._loading = True, (site, now_s + self._reading_s(chosen.model))

    def _nobody_trains(self, now_s: float) -> bool:
        """Whether that is certain, and not only unheard."""
        facts, reports = self._facts, self._reports
        if not all(reports.spoke_lately(record, now_s) for record in facts.roster.sites if record.state == "member"):
            return False
        if now_s < self._led_since_s + facts.settings.failure_timeout_s:
            return False  # others may still report that their workers live
        in_memory = any(report.memory_checkpoint for report in reports.of_members().values())
        # No entry says that a worker trains that its own daemon gave the state.
        return not in_memory or self._stood_s(now_s) >= facts.settings.transfer_stall_s

    def _stood_s(self, now_s: float) -> float:
        """For how long no member has trained."""
        return 0.0 if self._inactive_since_s is None else now_s - self._inactive_since_s

    def _view_with(self, chosen: Candidate) -> View | None:
        """All members, and the chosen site; None where the overlay does not connect them."""
        facts, roster = self._facts, self._facts.roster
        members = {*roster.member_ids(), chosen.record.site}
        links = (*roster.links, *chosen.links)
        if not connects(members, (), links):
            return None
        version = (
            min(roster.version(), chosen.record.versions.newest) if roster.sites else chosen.record.versions.newest
        )
        return make_view(
            facts.planner,
            first_round=chosen.round + 1,
            members=members,
            listeners=(),
            links=links,
            version=version,
            rules=roster.rules,
        )

    def _restore_decision(self, chosen: Candidate, view: View) -> Decision:
        configuration, site = self._facts.configuration, chosen.record.site
        member = msgspec.structs.replace(chosen.record, state="member")
        operator = self._word_for(chosen)
        command = SetRestorePoint(
            record=member,
            links=chosen.links,
            round=chosen.round,
            model=chosen.model,
            views=(view,),
            operator=operator,
            lineage=chosen.lineage_told(self._facts.roster) if operator else 0,
        )
        known_here = site in configuration.voters or site in configuration.learners
        proposal = Proposal(command=command, configuration=None if known_here else with_learner(configuration, site))
        reason = self._what_follows(chosen)
        note = Note(
            kind="restore-point",
            subject=self._words.called(chosen.record),
            cause="an operator decided it" if self._order is not None else "no member has the training state",
            outcome="done",
            reason=reason,
        )
        return Decision(reason=reason, proposal=proposal, note=note)

    def _word_for(self, chosen: Candidate) -> str:
        """The operator's request on which it rests; empty: none. One is heeded still where nothing is left of it."""
        roster, before = self._facts.roster, not chosen.round or chosen.lineage < self._facts.roster.restore_epoch
        return self._order[1].request if self._order is not None else roster.restored_by if before else ""

    def _what_follows(self, chosen: Candidate) -> str:
        """Which rounds are done again, and why."""
        newest, first = self._reports.reached_round(), chosen.round + 1
        # Whoever has them may have left, or be away; an operator's word needs no other cause.
        why = "" if self._order is not None else ": no site that is here has the result"
        repeated = ""
        if chosen.round == newest - 1:
            repeated = f"; round {newest} is done again{why}"
        elif chosen.round < newest:
            repeated = f"; rounds {first} to {newest} are done again{why and why + 's'}"
        if not chosen.round and newest and self._order is None:
            return f"the run begins anew with its {chosen.source}, at round 0, for nobody has a state of it{repeated}"
        return f"the run goes on from its {chosen.source}, at round {chosen.round}{repeated}"

    # -- the choice

    def _choose(self, now_s: float) -> Candidate | None:
        """The candidate from which the run goes on; None: nobody has a state, or somebody who is away may have a newer
        one (`waiting`)."""
        self.waiting = ""
        if self._reads_its_checkpoint(now_s):
            return None
        roster, offered = self._facts.roster, self._offered()
        candidates = [one for one in offered if self._is_taken_unasked(one)]
        reached = self._reports.reached_round()
        best = min((one for one in candidates if one.round or not reached), key=lambda one: one.rank, default=None)
        if roster.model is None or (best is not None and self._has_the_newest(best)):
            return best
        here = {one.record.site for one in offered}
        stood_s = self._stood_s(now_s)
        awaited = self._awaited.than(best.age if best else None, here=here, now_s=now_s, stood_s=stood_s)
        if best is None and not awaited and (reached <= ANEW_ROUNDS_MAX or self._is_unsaved()):
            best = min(candidates, key=lambda one: one.rank, default=None)  # fresh workers, all of them
        if best is None or awaited:
            others = [one for one in offered if one not in candidates]
            self.waiting = self._words.why_it_waits(best, awaited, reached, stood_s) + self._words.offered_by(others)
            return None
        return best

    def _offered(self) -> list[Candidate]:
        """Not by whom most members want out since it has asked: a state is no way in."""
        banned = {*self._facts.roster.banned, *self._reports.banned()}
        return [one for one in self.offers.candidates() if one.record.site not in banned]

    def _is_unsaved(self) -> bool:
        """Nobody has, or had, a checkpoint of the present history."""
        return self._reports.members_are_unsaved() and self.offers.nobody_left_with_a_checkpoint()

    def _is_taken_unasked(self, one: Candidate) -> bool:
        return self._is_of_the_run(one) and not is_given_up(self._facts.roster, one.age)

    def _is_of_the_run(self, one: Candidate) -> bool:
        """Whether rounds of this run can be in it: they are in no state of a site that never was in it. Nor is such a
        site's fresh worker what the run begins with. An operator may know better (spec 13.10)."""
        return self._facts.roster.knows(one.record.site)

    def _has_the_newest(self, best: Candidate) -> bool:
        """A live worker, and as far as members know that were there nobody can have more than one round more: what only
        a site has that is away is done again, as after any failure (spec 10.5)."""
        if best.checkpoint is not None or not best.round:
            return False
        newest = self._reports.newest_round()
        trained = best.trained and best.round + 1 >= newest  # else more was done since that was said
        return trained or (self._reports.lived_through() and best.round >= newest)

    def _reads_its_checkpoint(self, now_s: float) -> bool:
        """A site was chosen, and has not asked again: it will train with no entry in the log, and no other one is
        chosen."""
        loading = self._who_loads()
        if loading is None:
            return False
        site, until_s = loading
        if self._facts.roster.record(site) is not None and not self.offers.asks(site) and now_s < until_s:
            return True
        self._loading = None
        return False

    def _who_loads(self) -> tuple[SiteId, float] | None:
        if not self._looked:
            self._looked, self._loading = True, self._chosen_before()
        return self._loading

    def _chosen_before(self) -> tuple[SiteId, float] | None:
        """By the scheduler before, as the roster says, if no round was done since: it may be reading its checkpoint
        still. That scheduler may have gone, and what the others have may be newer: an operator may have decided."""
        roster = self._facts.roster
        site, incarnation = roster.restored_from or (self._facts.site, -1)
        record, done_since = roster.record(site), self._reports.reached_round() > roster.resolved_round
        if record is None or record.incarnation != incarnation or roster.model is None or done_since:
            return None
        return (site, self._led_since_s + self._reading_s(roster.model))

    def _reading_s(self, model: ModelFacts) -> float:
        return self._facts.settings.transfer_stall_s + model.state_bytes / CHECKPOINT_RATE_MIN_BYTES_PER_S

    def _tell_what_is_awaited(self, now_s: float) -> Decision | None:
        """To every site of the roster, again and again."""
        settings = self._facts.settings
        if now_s < self._told_s + settings.retry_s or self._stood_s(now_s) < settings.stateless_s:
            return None
        self._told_s = now_s
        told = RunWaits(reason=self.waiting)
        tells = tuple(Tell(site=site, message=told) for site in self._facts.roster.site_ids())
        return Decision(reason=self.waiting, tells=tells)

    # -- an operator's word

    def ordered(self, site: SiteId, request: RecoverRequest) -> RecoverAnswer | None:
        """An operator at `site` decides. None: it is under way, and asked for again."""
        roster = self._facts.roster

        def answer(done: bool, reason: str) -> RecoverAnswer:
            return RecoverAnswer(request=request.request, done=done, reason=reason)

        if roster.restored_by == request.request:
            whose = roster.record(roster.restored_from[0]) if roster.restored_from is not None else None
            name = self._words.called(whose) if whose is not None else "a site"
            return answer(True, f"the run goes on from the state of round {request.round} of {name}")
        if request.request == self._carried:
            return None  # asked again before the entry is agreed on: what it takes is offered no more
        if roster.model is None:
            return answer(
                False, "the run has not begun yet: it begins with the first worker of the site that founds it"
            )
        if self._facts.active or self._reports.anybody_active():
            return answer(False, f"members train (round {self._facts.done_round} is done): there is nothing to recover")
        if self._reports.anybody_rests():
            return answer(False, "a script that has the state pauses, or is late; end it first if it hangs")
        if roster.version() < OPERATOR_VERSION:
            return answer(
                False, "a site of the run has an older chaos-train, which knows no such word; install this one"
            )
        if roster.resolving:
            return None
        self._order = (site, request)
        if self._ordered_candidate() is None:
            return answer(False, self._words.what_there_is(request, self._offered()))
        return None

    def _ordered_candidate(self) -> Candidate | None:
        """What an operator has chosen, if it is still there."""
        if self._order is None:
            return None
        site, request = self._order
        offered = self._offered()
        if request.origin:
            meant = self._words.meant(request.origin)
            found = [one for one in offered if {one.record.site} == meant and 0 < one.round == request.round]
        else:
            found = [one for one in offered if one.round == 0]
        best = min(
            found, key=lambda one: (one.record.site != site, one.rank) if not request.origin else one.rank, default=None
        )
        if best is None:
            self._order = None
        return best
