"""How a site stands in the run: outside, learner, member, leaving; and what becomes of its worker's state.

It works by comparing the committed roster with what this site has: in the roster with our incarnation or not, a
transfer for us that we have not begun, a snapshot that others expect of us. What it wants of the scheduler it asks
again at every beat until the roster shows it. Driven by `SiteMachine`. Sources: protocols.md sections 3 and 5; Chaos
IV-B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos_protocols.commands import Command, RemoveLink
from chaos_protocols.effects import (
    AnswerRequest,
    CancelTransfer,
    CloseLink,
    FetchState,
    ReleaseState,
    ServeState,
    StopDaemon,
    ToWorker,
)
from chaos_protocols.messages import (
    Farewell,
    Heartbeat,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LevelReport,
    LinkAnswer,
    LinkRequest,
    StateRequest,
)
from chaos_protocols.names import SiteId, short
from chaos_protocols.plans import ReplicationPlan
from chaos_protocols.roster import ModelFacts, Roster
from chaos_protocols.rounds import RoundCompleted
from chaos_protocols.worker import (
    Dismissed,
    LeaveOrdered,
    LoadState,
    RunPaused,
    RunResumed,
    TakeSnapshot,
    WorkerRefused,
)

if TYPE_CHECKING:
    from chaos_protocols.site import SiteMachine

LINK_REQUEST_TRIES_MAX = 20
"""A link request is asked again at every retry; after so many without an answer the user is told so."""


@dataclass(slots=True)
class PendingLink:
    request: LinkRequest
    asked_s: float
    tries: int = 0


class Standing:
    """See the module. `begun`: the rounds of this site stand where the roster says; `transfer`: the plan by which its
    worker gets the state, from the start of fetching until it is promoted."""

    def __init__(self, machine: SiteMachine) -> None:
        self._machine = machine
        self.peers: dict[SiteId, str] = {}
        self.worker: ModelFacts | None = None
        self.worker_round = 0
        self.begun = False
        self.evicted_epoch: int | None = None
        self.scheduler_hint: SiteId | None = None
        self.leaving = False
        self.transfer: ReplicationPlan | None = None
        self.transfer_bytes = 0
        self.serving: ReplicationPlan | None = None
        self.refusal = ""
        self.paused = ""
        self._hint_epoch = -1
        self._leave_requests: list[str] = []
        self._leave_reason = ""
        self._leave_answer: LeaveAnswer | None = None
        self._released_s: float | None = None
        self._fetching_since_s = machine.now_s
        self._finished = False
        self._asked_s = float("-inf")
        self._reachable_s = machine.now_s
        self._linked_s = machine.now_s
        self._links: dict[str, PendingLink] = {}
        self._closing: dict[SiteId, int] = {}
        self._snapshot_due: ReplicationPlan | None = None
        self._adopted_epoch = machine.roster.adopted_epoch
        self._settled_epoch = machine.roster.settled_epoch

    # -- what holds

    @property
    def in_roster(self) -> bool:
        """This very incarnation is in the roster, as far as is known here."""
        record = self._machine.own_record
        return record is not None and record.incarnation == self._machine.incarnation and self.evicted_epoch is None

    @property
    def state(self) -> str:
        """For people: starting, joining, learner, member, leaving, removed."""
        record = self._machine.own_record
        if self._finished:
            return "removed"
        if self.leaving:
            return "leaving"
        if self.in_roster and record is not None:
            return record.state
        return "joining" if self.worker is not None else "starting"

    def _takes_part(self) -> bool:
        """In the roster, or a leaver that has rounds left."""
        machine = self._machine
        return self.in_roster or (
            self.evicted_epoch is None
            and self.begun
            and machine.roster.departure(machine.site, machine.incarnation) is not None
            and any(machine.site in view.members for view in machine.roster.views)
        )

    # -- the roster

    def roster_changed(self, old: Roster, command: Command | None) -> None:
        machine, roster = self._machine, self._machine.roster
        if self.evicted_epoch is not None and roster.epoch > self.evicted_epoch:
            self.evicted_epoch = None
        self._follow_links(old, roster, failed=isinstance(command, RemoveLink) and command.settle)
        if roster.adopted_epoch > self._adopted_epoch:
            self._adopted(roster)
        elif roster.settled_epoch > self._settled_epoch and self.begun and not roster.settling:
            machine.rounds.roster = roster
            machine.emit(machine.rounds.settled(roster.settled_round))
        self._adopted_epoch, self._settled_epoch = roster.adopted_epoch, roster.settled_epoch
        if self.in_roster:
            self._begin_if_new(roster)
        elif not self._takes_part():
            self._out_of_run()
        if self._takes_part():
            machine.emit(machine.rounds.install(roster))
            self._activate_if_ready()
        self._serve(roster)

    def _adopted(self, roster: Roster) -> None:
        """The run goes on from a worker's state: ours, or another's."""
        machine = self._machine
        self._cancel_transfer("the run goes on from another state")
        own = roster.adopted_from == (machine.site, machine.incarnation)
        self.begun = self.in_roster
        machine.rounds.roster = roster
        if own and self.worker is not None and self.worker_round == roster.settled_round:
            machine.emit(machine.rounds.adopt_worker(roster.settled_round))
        elif self.in_roster:
            machine.emit(machine.rounds.begin_at(roster.settled_round))

    def _begin_if_new(self, roster: Roster) -> None:
        machine = self._machine
        record = machine.own_record
        plan = roster.replication
        assert record is not None
        for_us = plan is not None and plan.joiner == machine.site
        if for_us and plan is not None and (self.transfer is None or self.transfer.transfer != plan.transfer):
            self._cancel_transfer("replaced by a newer plan")
            if record.state == "learner" or not self.begun:
                machine.emit(machine.rounds.begin_at(plan.round))
            else:
                machine.emit(machine.rounds.collect_from(plan.round))
            self.begun = True
            self._fetch(plan)
        elif not self.begun and record.state == "member" and not roster.settling:
            machine.emit(machine.rounds.begin_at(roster.settled_round))
            self.begun = True

    def _out_of_run(self) -> None:
        if not self.begun:
            return
        self.begun = False
        self._cancel_transfer("this site is not in the roster any more")
        self._machine.emit(self._machine.rounds.leave_run())
        if self.serving is not None:
            self._machine.emit([ReleaseState(transfer=self.serving.transfer)])
            self.serving = None

    def _follow_links(self, old: Roster, new: Roster, *, failed: bool) -> None:
        """Have the links that the roster says; let go of those that it no longer has. A configured link that `failed`
        is dialled on: when the cut has healed it is asked for again."""
        machine = self._machine
        if old.record(machine.site) is not None and new.record(machine.site) is None:
            return  # we left, or were removed: links stay until the last round is over, or the way back is found
        before, after = set(old.neighbours(machine.site)), set(new.neighbours(machine.site))
        for site in sorted(after - before):
            record = new.record(site)
            machine.emit(machine.links.want(site, record.address if record else "", now_s=machine.now_s))
            self._closing.pop(site, None)
        for site in sorted(before - after):
            if new.record(site) is None:  # it left, or failed: it will close, or is gone
                if site not in self.peers:
                    machine.links.forget(site)
                continue
            if site in self.peers and (failed or not machine.links.is_up(site)):
                continue
            self.peers.pop(site, None)  # on a user's word: it is not asked for again because it is configured
            # Who has done the first round without the link knows that the far end had the result before.
            self._closing[site] = new.views[-1].first_round if new.views and new.started else machine.rounds.done
        self._close_links()

    def _close_links(self) -> None:
        """A removed link goes when no round before the change can need it any more."""
        machine = self._machine
        for site, last_round in list(self._closing.items()):
            if machine.rounds.done >= last_round or not machine.links.is_up(site):
                del self._closing[site]
                machine.tell(site, Farewell(reason="this link was removed"))
                machine.emit(machine.links.unwant(site, "this link was removed"))

    # -- state: getting it, giving it

    def _fetch(self, plan: ReplicationPlan) -> None:
        self.transfer, self.transfer_bytes = plan, 0
        if self.worker is not None:
            self._machine.emit([FetchState(plan=plan)])

    def _cancel_transfer(self, reason: str) -> None:
        if self.transfer is not None:
            self._machine.emit([CancelTransfer(transfer=self.transfer.transfer, reason=reason)])
        self.transfer, self.transfer_bytes = None, 0

    def transfer_progressed(self, transfer: str, verified_bytes: int) -> None:
        if self.transfer is not None and self.transfer.transfer == transfer:
            self.transfer_bytes = verified_bytes

    def transfer_finished(self, transfer: str) -> None:
        if self.transfer is not None and self.transfer.transfer == transfer and self.worker is not None:
            self.transfer_bytes = self.transfer.state_bytes
            self._record_transfer(self.transfer)
            self.worker_round = 0  # half overwritten until it says that it has loaded
            self._machine.emit([ToWorker(message=LoadState(round=self.transfer.round))])

    def _record_transfer(self, plan: ReplicationPlan) -> None:
        machine = self._machine
        names = {record.site: record.name for record in machine.roster.sites}
        shares = "; ".join(
            f"{names.get(part.source, short(part.source))} {part.stop - part.start:,}" for part in plan.ranges
        )
        reason = f"{plan.state_bytes:,} bytes of round {plan.round}, verified; planned from {shares}"
        machine.record("transfer", machine.facts.name, "state replication", "done", None, reason)

    def transfer_failed(self, transfer: str, reason: str) -> None:
        if self.transfer is None or self.transfer.transfer != transfer:
            return
        machine = self._machine
        machine.record("scale-out", machine.facts.name, "state transfer", "failed", None, reason)
        self.transfer, self.transfer_bytes = None, 0
        self._asked_s = float("-inf")

    def worker_loaded(self, round_number: int) -> None:
        if self.transfer is None or self.transfer.round != round_number:
            return
        self.worker_round = round_number
        self._machine.emit(self._machine.rounds.worker_loaded(round_number))
        self._after_worker()

    def worker_applied(self, round_number: int) -> None:
        self.worker_round = round_number
        self._machine.emit(self._machine.rounds.worker_applied(round_number))
        self._after_worker()

    def _after_worker(self) -> None:
        self._report_level()
        self._activate_if_ready()
        self._finish_if_done()

    def _report_level(self) -> None:
        machine = self._machine
        if self.transfer is not None and machine.rounds.level and self.in_roster:
            machine.tell_scheduler(LevelReport(round=machine.rounds.done, transfer=self.transfer.transfer))

    def _activate_if_ready(self) -> None:
        """Promoted: the roster has us as member and no transfer for us any more, and our worker has the state."""
        machine, roster = self._machine, self._machine.roster
        record = machine.own_record
        pending = roster.replication is not None and roster.replication.joiner == machine.site
        if not self.in_roster or record is None or record.state != "member" or pending:
            return
        if self.transfer is not None and machine.rounds.worker_round is not None:
            self.transfer = None
            if not self.leaving:
                machine.emit(machine.rounds.activate())

    def _serve(self, roster: Roster) -> None:
        """Be a source where the plan says so; stop when the plan is gone."""
        machine, plan = self._machine, roster.replication
        if self.serving is not None and (plan is None or plan.transfer != self.serving.transfer):
            machine.emit([ReleaseState(transfer=self.serving.transfer)])
            self.serving = None
        if plan is None or (self._snapshot_due is not None and plan.transfer != self._snapshot_due.transfer):
            self._snapshot_due = None
        if plan is None or machine.site not in {part.source for part in plan.ranges}:
            return
        if self.serving is None and self._snapshot_due is None and machine.rounds.worker_round is not None:
            self._snapshot_due = plan
            machine.emit([ToWorker(message=TakeSnapshot(round=plan.round))])

    def snapshot_taken(self, round_number: int) -> None:
        plan = self._snapshot_due
        if plan is not None and plan.round == round_number:
            self._snapshot_due = None
            self.serving = plan
            self._machine.emit([ServeState(plan=plan)])

    def snapshot_missed(self, round_number: int, now: int) -> None:
        plan = self._snapshot_due
        if plan is not None and plan.round == round_number:
            machine = self._machine
            reason = f"the worker is at round {now} already"
            machine.record("scale-out", short(plan.joiner), "snapshot", "failed", None, reason)
            self._snapshot_due = None
            machine.emit([ReleaseState(transfer=plan.transfer)])  # whoever waits for it is told to look elsewhere

    # -- the worker

    def worker_ready(self, model: ModelFacts, round_number: int) -> None:
        machine = self._machine
        self.worker, self.worker_round = model, round_number
        self.refusal = ""
        self._asked_s = float("-inf")
        machine.record(
            "worker", machine.facts.name, "said hello", "", None, f"its state is that of round {round_number}"
        )
        self._ask()

    def worker_lost(self, reason: str) -> None:
        machine = self._machine
        if self.worker is None:
            return
        self.worker = None
        machine.record(
            "worker", machine.facts.name, reason, "", None, "this site is in standby until a worker comes back"
        )
        self._cancel_transfer("the worker is gone")
        due = self.serving or self._snapshot_due
        if due is not None:
            machine.emit([ReleaseState(transfer=due.transfer)])
        self.serving = self._snapshot_due = None
        machine.emit(machine.rounds.worker_lost())
        machine.tell_scheduler(machine.own_report())
        self._finish_if_done()

    def state_lost(self, reason: str) -> None:
        """The worker cannot get level by results alone."""
        machine = self._machine
        machine.record("scale-out", machine.facts.name, reason, "", None, "the state is fetched again")
        self._cancel_transfer(reason)
        self._asked_s = float("-inf")

    # -- leaving

    def leave_requested(self, request: str, reason: str, contributes: bool) -> None:
        machine = self._machine
        if request:
            self._leave_requests.append(request)
        if not contributes:
            machine.emit(machine.rounds.worker_leaves())
        if self.leaving:
            return
        self.leaving = True
        self._leave_reason = reason
        self._asked_s = float("-inf")
        if self.worker is not None:
            machine.emit([ToWorker(message=LeaveOrdered(reason=reason))])
        if not self._takes_part() or self._alone():
            self._leave_answer = LeaveAnswer(incarnation=machine.incarnation, last_round=0, finished=True)
        self._ask()
        self._finish_if_done()

    def _alone(self) -> bool:
        """Nobody else is in the run, and no leaver waits for us."""
        machine = self._machine
        known = {*machine.configuration.voters, *machine.configuration.learners, *machine.roster.site_ids()}
        return known <= {machine.site}

    def leave_answered(self, answer: LeaveAnswer) -> None:
        if self.leaving and answer.incarnation == self._machine.incarnation:
            self._leave_answer = answer
            self._finish_if_done()

    def _finish_if_done(self) -> None:
        """Go, when everybody has our last round and our worker has applied it."""
        machine, answer = self._machine, self._leave_answer
        if self._finished or answer is None or not answer.finished:
            return
        if self._released_s is None:
            self._released_s = machine.now_s
        if machine.now_s >= self._released_s + machine.settings.negotiation_timeout_s:
            self.stop("left the run; its last round was settled without it", graceful=True)
            return
        behind = machine.rounds.worker_round is not None and not machine.rounds.level
        if self.worker is not None and (machine.rounds.done < answer.last_round or behind) and self._takes_part():
            return
        self.stop("left the run", graceful=True)

    def stop(self, reason: str, *, graceful: bool) -> None:
        """The end of this daemon: the worker is dismissed, the neighbours are told."""
        if self._finished:
            return
        self._finished = True
        machine = self._machine
        last_round = machine.rounds.done
        if self.worker is not None:
            dismissed = Dismissed(last_round=last_round, graceful=graceful, reason=reason)
            machine.emit([ToWorker(message=dismissed)])
        for site in machine.links.up_sites():
            machine.tell(site, Farewell(reason=reason))
            machine.emit([CloseLink(site=site, reason=reason)])
        machine.emit([AnswerRequest(request=request, done=True, reason=reason) for request in self._leave_requests])
        machine.emit([StopDaemon(graceful=graceful, reason=reason)])

    # -- links, on a user's or the scheduler's word

    def link_change_requested(self, request: str, other: SiteId, add: bool) -> None:
        machine = self._machine
        message = LinkRequest(request=request, other=other, add=add, reason="asked for by a user")
        if not self.in_roster:
            machine.emit([AnswerRequest(request=request, done=False, reason="this site is not in the run (yet)")])
            return
        self._links[request] = PendingLink(message, machine.now_s, 1)
        machine.tell_scheduler(message)

    def link_answered(self, answer: LinkAnswer) -> None:
        if self._links.pop(answer.request, None) is not None and not answer.request.startswith("auto-"):
            self._machine.emit([AnswerRequest(request=answer.request, done=answer.done, reason=answer.reason)])

    def link_came_up(self, site: SiteId) -> None:
        if self.worker is not None and not self.in_roster:
            self._asked_s = float("-inf")

    def link_went_down(self, site: SiteId) -> None:
        self._closing.pop(site, None)

    # -- what is heard, and asked again

    def heartbeat(self, site: SiteId, beat: Heartbeat) -> None:
        """A neighbour tells how it sees the roster: who schedules, and whether we are in it."""
        machine = self._machine
        if beat.scheduler is not None and beat.epoch >= self._hint_epoch:
            news = self.scheduler_hint != beat.scheduler
            self.scheduler_hint, self._hint_epoch = beat.scheduler, beat.epoch
            if news and (self.leaving or not self.in_roster):
                self._ask()
        if self.leaving:
            return  # its removal is what it asked for: it goes when it is told to
        if self.in_roster and not beat.knows_you and beat.epoch > machine.roster.epoch:
            self.evicted_epoch = beat.epoch
            machine.record(
                "scale-in", machine.facts.name, "removed while cut off", "", None, "joins again as a newcomer"
            )
            self._out_of_run()

    def join_answered(self, answer: JoinAnswer) -> None:
        machine = self._machine
        if answer.incarnation != machine.incarnation or answer.accepted or answer.reason == self.refusal:
            return
        self.refusal = answer.reason
        outcome = "refused" if answer.final else ""
        machine.record("scale-out", machine.facts.name, "asked to join", outcome, None, answer.reason)
        if answer.final and self.worker is not None:
            self.worker = None
            refused = WorkerRefused(reason=f"the run refuses this site: {answer.reason}")
            machine.emit([ToWorker(message=refused)])

    def round_completed(self, notice: RoundCompleted) -> None:
        self._close_links()
        self._report_level()
        answer = self._leave_answer
        departing = self._machine.roster.departed
        if (answer is not None) or any(gone.last_round == notice.round for gone in departing):
            self._machine.tell_scheduler(self._machine.own_report())
        self._finish_if_done()

    def beat(self) -> None:
        """Everything that is still wanted is asked again; the user's worker hears why nothing moves."""
        machine = self._machine
        if self.leaving and self._alone():
            self.leave_answered(LeaveAnswer(incarnation=machine.incarnation, last_round=0, finished=True))
        if self._takes_part():
            machine.tell_scheduler(machine.own_report())
        self._report_level()
        if machine.now_s >= self._asked_s + machine.settings.retry_s:
            self._ask()
        self._ask_links()
        self._tell_pause()
        self._finish_if_done()
        self._give_up_the_answer()
        self._give_up_fetching()
        waits_outside = self.worker is not None and not self.in_roster
        if machine.links.up_sites() and not waits_outside:
            self._linked_s = machine.now_s
        elif machine.now_s - self._linked_s > 3 * machine.settings.failure_timeout_s:
            known = machine.roster if machine.roster.epoch > 1 else machine.last_known
            for record in known.sites[:8]:  # cut off, or no neighbour is in: any may be the way back
                if record.site != machine.site:
                    machine.emit(machine.links.want(record.site, record.address, now_s=machine.now_s))

    def _give_up_the_answer(self) -> None:
        """A leaver that reaches nobody goes by itself: who would answer has ended, or will find it gone."""
        machine = self._machine
        if not self.leaving or machine.links.up_sites():
            self._reachable_s = machine.now_s
        elif machine.now_s - self._reachable_s > machine.settings.negotiation_timeout_s:
            self.stop("left the run; no other site could be reached to confirm it", graceful=True)

    def _give_up_fetching(self) -> None:
        """Whoever holds a settled result is no neighbour: the others must not wait for this site's contribution."""
        machine = self._machine
        if machine.rounds.fetching is None:
            self._fetching_since_s = machine.now_s
        elif machine.now_s - self._fetching_since_s > machine.settings.election_timeout_s:
            machine.emit(machine.rounds.result_missed(machine.rounds.fetching))

    def _ask(self) -> None:
        machine = self._machine
        if self._finished or (self.worker is None and not self.leaving):
            return
        if machine.scheduler_site() is None:
            return  # nobody to ask yet: at the next beat, or as soon as a neighbour names the scheduler
        self._asked_s = machine.now_s
        if self.leaving:
            answered = self._leave_answer is not None and self._leave_answer.finished
            if not answered and machine.scheduler_site() != machine.site:
                machine.tell_scheduler(LeaveRequest(incarnation=machine.incarnation, reason=self._leave_reason))
            return
        assert self.worker is not None
        if not self.in_roster:
            machine.tell_scheduler(self._join_request(self.worker))
        elif machine.rounds.worker_round is None and self.transfer is None:
            reason = "" if self.begun else "its daemon was restarted"
            request = StateRequest(
                incarnation=machine.incarnation, worker_round=self.worker_round, model=self.worker, reason=reason
            )
            machine.tell_scheduler(request)

    def _join_request(self, model: ModelFacts) -> JoinRequest:
        facts = self._machine.facts
        return JoinRequest(
            name=facts.name,
            address=facts.address,
            public_key=facts.public_key,
            incarnation=facts.incarnation,
            neighbours=self._machine.links.up_sites(),
            model=model,
            worker_round=self.worker_round,
        )

    def _ask_links(self) -> None:
        """Users' requests again; and configured links that are up but not in the roster (a cut has healed)."""
        machine = self._machine
        for request, pending in list(self._links.items()):
            if machine.now_s < pending.asked_s + machine.settings.retry_s:
                continue
            pending.asked_s, pending.tries = machine.now_s, pending.tries + 1
            if pending.tries > LINK_REQUEST_TRIES_MAX:
                answer = LinkAnswer(request=request, done=False, reason="no scheduler answered; see chaosd status")
                self.link_answered(answer)
                self._links.pop(request, None)
            else:
                machine.tell_scheduler(pending.request)
        record = machine.own_record
        if not self.in_roster or record is None or record.state != "member" or machine.roster.settling:
            return
        for site in sorted(self.peers):
            request = f"auto-{short(machine.site)}-{short(site)}"
            known = machine.roster.record(site) is not None and machine.roster.link(machine.site, site) is None
            if known and machine.links.is_up(site) and request not in self._links:
                message = LinkRequest(request=request, other=site, add=True, reason="a configured link is back")
                self._links[request] = PendingLink(message, machine.now_s)
                machine.tell_scheduler(message)

    def _tell_pause(self) -> None:
        reason = self.pause_reason()
        if reason == self.paused:
            return
        machine = self._machine
        if self.worker is not None:
            machine.emit([ToWorker(message=RunPaused(reason=reason) if reason else RunResumed())])
        if bool(reason) != bool(self.paused):
            kind = "pause" if reason else "resume"
            machine.record(kind, machine.facts.name, reason or self.paused, "", None, "")
        self.paused = reason

    def pause_reason(self) -> str:
        """Why nothing moves; empty when rounds can go on."""
        machine, roster = self._machine, self._machine.roster
        if not self._takes_part():
            return self.refusal or (
                "asking to join" if self.worker is not None else "waiting for a worker to say hello"
            )
        if machine.raft.leader is None and machine.now_s - machine.leader_seen_s > machine.settings.failure_timeout_s:
            lacking = [short(site) for site in machine.raft.configuration.voters if site not in machine.reachable()]
            whom = f"cannot reach {', '.join(lacking)}" if lacking else "an election is under way"
            return f"no scheduler: {whom}; training waits for a majority of the voters"
        if roster.model is None:
            return "waiting for the founder's worker"
        if not roster.started:
            return f"waiting for {roster.min_sites} sites; {len(roster.member_ids())} are here"
        return ""
