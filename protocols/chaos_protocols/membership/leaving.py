"""How a site leaves: it asks until it is told that everybody has its last round, or gives up waiting; then it writes a
last checkpoint, and goes.

Whoever would answer may have ended, or find it gone, or may be somebody whose answer it must not believe. The rules of
giving up (`Leaving.give_up`) each name one such case; all are bounded in time. Driven by `Participation`. Source:
spec 14.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.causes import Cause
from chaos_protocols.effects import AnswerRequest, CloseLink, StopDaemon
from chaos_protocols.links.network import Network
from chaos_protocols.membership.joining import Joining
from chaos_protocols.membership.own import Membership, MembershipEvent
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.state.last_checkpoint import LastCheckpoint
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.control import Goodbye, LeaveAnswer, LeaveRequest
from chaos_protocols.wire.user_words import RunWarned
from chaos_protocols.wire.worker import Dismissed, LeaveOrdered

NAMED_MAX = 8
"""In a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRole:
    """This site's own part as scheduler, as far as leaving depends on it."""

    at_work: bool
    """It leads, and its roster is the newest: with an older one it may only seem to be the last member."""
    proposed_s: float | None
    """Since when a proposal of its own waits to be committed; None: none does."""


class Leaving:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        network: Network,
        membership: Membership,
        joining: Joining,
        rounds: RoundMachine,
        session: WorkerSession,
        last: LastCheckpoint,
    ) -> None:
        self.answer: LeaveAnswer | None = None
        """What the scheduler last said."""
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._membership = membership
        self._joining = joining
        self._rounds = rounds
        self._session = session
        self._last = last
        self._reason = ""
        self._for_script = False
        """Nobody but its script has asked."""
        self._requests: list[str] = []
        """Users' requests that wait for the end."""
        self._released_s: float | None = None
        """Since when, by `Outbox.awake_s` like the two below, it may go, as soon as its worker has the last round."""
        self._going = ""
        """It was let go, and goes as soon as its last checkpoint is written: the reason; empty: it was not yet."""
        self._free = False
        """Nobody had to be asked."""
        self._unknown_since_s: float | None = None
        """Since when neighbours with a newer roster say that it is out."""
        self._confirmable_s = outbox.awake_s
        """When somebody could last have confirmed that it may go."""

    # -- asking

    def requested(self, request: str, reason: str, *, contributes: bool, by_worker: bool) -> bool:
        """A user wants this site to leave; `contributes` false: its worker gives nothing more. Whether that is new."""
        self._for_script = by_worker and (self._for_script or not self._membership.leaving)
        if request:
            self._requests.append(request)
        if not contributes:
            self._outbox.emit(self._rounds.worker_leaves())
        if self._membership.leaving:
            return False
        self._membership.step(MembershipEvent.LEAVE_REQUESTED)
        self._reason = reason
        if self._session.present:
            self._session.tell(LeaveOrdered(reason=reason))
        if self._has_nobody_to_ask():
            self._is_free()
        return True

    def _has_nobody_to_ask(self) -> bool:
        # Who asked to join may be admitted by now, and who was in the run before its daemon was started, renewed.
        known = self._joining.asked or self._replica.roster.record(self._replica.site) is not None
        return self.is_alone or not (self._membership.takes_part or known)

    def request(self) -> LeaveRequest | None:
        """What it asks for; None: it has its answer."""
        if self.answer is not None and self.answer.finished:
            return None
        model = self._replica.roster.model
        keeps = None if model is None else self._last.kept(model.spec_digest)
        return LeaveRequest(incarnation=self._outbox.facts.incarnation, reason=self._reason, keeps=keeps)

    def answered(self, answer: LeaveAnswer) -> None:
        """The scheduler's word."""
        if self._membership.leaving and answer.incarnation == self._outbox.facts.incarnation:
            self.answer, self._free = answer, False
            self.finish_if_done()

    @property
    def is_alone(self) -> bool:
        """Nobody else is in the run, and no leaver waits for us. Who asked to join may be admitted."""
        replica = self._replica
        configuration = replica.configuration
        known = {*configuration.voters, *configuration.learners, *replica.roster.site_ids()}
        return known <= {replica.site} and (self._membership.in_roster or not self._joining.asked)

    def _is_free(self) -> None:
        """Nobody has to be asked."""
        self._free = True
        self.answer = LeaveAnswer(incarnation=self._outbox.facts.incarnation, last_round=0, finished=True)

    # -- going

    def finish_if_done(self) -> None:
        """Go, when everybody has our last round and our worker has applied it."""
        outbox, rounds, answer = self._outbox, self._rounds, self.answer
        if self._membership.ended or answer is None or not answer.finished:
            return
        if self._going:
            self._go_on()
            return
        if self._released_s is None:
            self._released_s = outbox.awake_s
        if outbox.awake_s >= self._released_s + outbox.settings.negotiation_timeout_s:
            self._let_go("left the run; its last round was resolved without it")
            return
        behind = rounds.worker_round is not None and not rounds.caught_up
        lacks_last = rounds.completed_round < answer.last_round or behind
        if self._session.present and lacks_last and self._membership.takes_part:
            return
        self._let_go("left the run")

    def _let_go(self, reason: str) -> None:
        self._going = reason
        self._go(reason)

    def _go(self, reason: str) -> None:
        """Nobody waits for this site any more: go, when what its worker has is on the disk."""
        if self._last.is_over():
            self.stop(reason, graceful=True)

    def _go_on(self) -> None:
        """It was let go before. That is for good, whatever those that are left do meanwhile; unless there was nobody to
        ask, and is by now: it has let somebody in, or was let in. Then it asks anew."""
        if self._free and not self._has_nobody_to_ask():
            self._going, self.answer = "", None
            self._last.begin_anew()
        else:
            self._go(self._going)

    def stop(self, reason: str, *, graceful: bool, cause: Cause | None = None) -> None:
        """The end of this daemon: the worker is dismissed, the neighbours are told."""
        if self._membership.ended:
            return
        self._membership.step(MembershipEvent.ENDED)
        outbox, network = self._outbox, self._network
        if graceful:
            self._tell_what_it_takes_along()
        if self._session.present:
            last_round = self._rounds.completed_round
            self._session.tell(Dismissed(last_round=last_round, graceful=graceful, reason=reason))
        for site in network.links.up_sites():
            network.tell(site, Goodbye(reason=reason))
            outbox.emit([CloseLink(site=site, reason=reason)])
        outbox.emit([AnswerRequest(request=request, done=True, reason=reason) for request in self._requests])
        for_script = graceful and self._for_script
        outbox.emit([StopDaemon(graceful=graceful, reason=reason, for_script=for_script, cause=cause)])

    def _tell_what_it_takes_along(self) -> None:
        """Others stay who have not the state: they stand, and this site's user is the one who can help them."""
        outbox, roster = self._outbox, self._replica.roster
        gone = roster.away(self._replica.site, outbox.facts.incarnation)
        if gone is None or not gone.lineage or not roster.member_ids():
            return
        others = ", ".join(roster.called(site) for site in roster.member_ids()[:NAMED_MAX])
        words = (
            f"no other site has the state of round {self._rounds.completed_round}: {others} will wait for it, until "
            "this site's script is started again, with more steps, or its newest checkpoint is imported there "
            "(`chaosd checkpoint import FILE`)"
        )
        outbox.record("scale-in", outbox.facts.name, self._reason, "", None, words)
        if self._session.present:
            self._session.tell(RunWarned(reason=words))

    # -- giving up

    def out_says_a_neighbour(self) -> None:
        """Its roster is newer, and has this site no more. That is what it asked for: it goes when it is told to."""
        self._unknown_since_s = self._unknown_since_s or self._outbox.awake_s

    def in_says_a_neighbour(self) -> None:
        """Its roster is newer, and has this site."""
        self._unknown_since_s = None

    def look(self) -> None:
        """At every beat: nobody may be left who would have to be asked."""
        if self._membership.leaving and self.is_alone:
            self._is_free()
            self.finish_if_done()

    def give_up(self, role: SchedulerRole) -> None:
        """At every beat: go without an answer, where one of the rules says that none will come."""
        replica, outbox = self._replica, self._outbox
        if replica.raft.leader is not None:
            self._unknown_since_s = None  # it will hear from the log, or from the scheduler
        confirmable = bool(self._network.links.up_sites()) and self._membership.takes_part and not self._is_last(role)
        if not self._membership.leaving or confirmable:
            self._confirmable_s = outbox.awake_s
        if not self._membership.leaving:
            return
        reasons = (
            self._was_removed(),
            self._is_the_last_member(role),
            self._reaches_nobody(),
            self._was_not_admitted(),
            self._nothing_is_agreed(role),
        )
        if reason := next(filter(None, reasons), ""):
            self._go(f"left the run; {reason}")
        elif not self._going:
            self._last.begin_anew()  # somebody may answer by now

    def _was_removed(self) -> str:
        """It has lost the scheduler, and those that it reaches tell it that it is out: the scheduler may be a site that
        its roster does not have, whose answer it must not believe."""
        since_s = self._unknown_since_s
        removed = since_s is not None and self._outbox.awake_s - since_s > self._patience_s
        return "it was removed while it was cut off" if removed else ""

    def _is_the_last_member(self, role: SchedulerRole) -> str:
        """It leads, no other member is left, and no state is on the way to a learner that could take its place."""
        return "it was the last member" if self._is_last(role) and self._is_unconfirmed else ""

    def _reaches_nobody(self) -> str:
        """Who would answer has ended, or will find it gone."""
        alone = not self._network.links.up_sites()
        return "no site in reach could confirm it" if alone and self._is_unconfirmed else ""

    def _was_not_admitted(self) -> str:
        """It is in no roster, and hears no word about it."""
        outside = not self._membership.takes_part
        return "no site in reach could confirm it" if outside and self._is_unconfirmed else ""

    def _nothing_is_agreed(self, role: SchedulerRole) -> str:
        """A majority is gone, and nobody knows whether it comes back."""
        now_s = self._outbox.now_s
        if self._replica.raft.leader is None:
            agreed_s = self._replica.leader_seen_s
        else:
            agreed_s = now_s if role.proposed_s is None else role.proposed_s
        waited = now_s - agreed_s > 2 * self._patience_s
        return "no majority could be reached to confirm it" if waited else ""

    def _is_last(self, role: SchedulerRole) -> bool:
        roster, rounds = self._replica.roster, self._rounds
        plan = roster.replication
        # Of a round that its worker, which gives nothing more, will not do, the state never comes.
        comes = plan is not None and (rounds.active or plan.round <= rounds.completed_round)
        return role.at_work and roster.member_ids() == (self._replica.site,) and not comes

    @property
    def _patience_s(self) -> float:
        return self._outbox.settings.negotiation_timeout_s

    @property
    def _is_unconfirmed(self) -> bool:
        return self._outbox.awake_s - self._confirmable_s > self._patience_s
