"""How a site stands in the run: outside, learner, member, leaving; and what becomes of its worker's state.

It works by comparing the committed roster with what this site has: in the roster with our incarnation or not, a
transfer for us that we have not begun, a snapshot that others expect of us. What it wants of the scheduler it asks
again at every beat until the roster shows it. Driven by `SiteMachine`. Sources: protocols.md sections 3 and 5; Chaos
IV-B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos_protocols import asking
from chaos_protocols.commands import Command, RemoveLink
from chaos_protocols.effects import (
    AnswerRequest,
    CancelTransfer,
    CloseLink,
    FetchState,
    StopDaemon,
    ToWorker,
)
from chaos_protocols.keeping import Keeping
from chaos_protocols.leveling import Leveling
from chaos_protocols.messages import Farewell, JoinAnswer, LeaveAnswer
from chaos_protocols.names import SiteId
from chaos_protocols.plans import ReplicationPlan
from chaos_protocols.roster import ModelFacts, Roster
from chaos_protocols.rounds import RoundCompleted
from chaos_protocols.serving import Serving
from chaos_protocols.wanted_links import WantedLinks
from chaos_protocols.worker import (
    Dismissed,
    LeaveOrdered,
    LoadState,
    WorkerRefused,
)

if TYPE_CHECKING:
    from chaos_protocols.site import SiteMachine


class Standing:
    """See the module. `begun`: the rounds of this site stand where the roster says; `transfer`: the plan by which its
    worker gets the state, from the start of fetching until it is promoted."""

    def __init__(self, machine: SiteMachine) -> None:
        self.machine = machine
        self.links = WantedLinks(machine)
        self.serving = Serving(machine)
        self.keeping = Keeping(self)
        self.leveling = Leveling(self)
        self.region_filled = False
        self.worker: ModelFacts | None = None
        self.worker_round = 0
        self._loading: int | None = None
        self.worker_since_s = machine.now_s
        self.begun = False
        self.evicted_epoch: int | None = None
        self.scheduler_hint: SiteId | None = None
        self.leaving = self.join_asked = False
        self.transfer: ReplicationPlan | None = None
        self.transfer_bytes = 0
        self._tried = ""
        self.refusal = ""
        self.paused = ""
        self.hint_epoch = -1
        self._leave_requests: list[str] = []
        self.leave_reason = ""
        self.leave_answer: LeaveAnswer | None = None
        self._released_s: float | None = None
        self.fetching_since_s = machine.now_s
        self.finished = False
        self.asked_s = float("-inf")
        self.reachable_s = machine.now_s
        self.unknown_since_s: float | None = None
        self.linked_s = machine.now_s
        self._adopted_epoch = machine.roster.adopted_epoch
        self._settled_epoch = machine.roster.settled_epoch

    # -- what holds

    @property
    def in_roster(self) -> bool:
        """This very incarnation is in the roster, as far as is known here."""
        record = self.machine.roster.record(self.machine.site)
        return record is not None and record.incarnation == self.machine.incarnation and self.evicted_epoch is None

    @property
    def state(self) -> str:
        """For people: starting, joining, learner, member, leaving, removed."""
        record = self.machine.own_record
        if self.finished:
            return "removed"
        if self.leaving:
            return "leaving"
        if self.in_roster and record is not None:
            return record.state
        return "joining" if self.worker is not None else "starting"

    def takes_part(self) -> bool:
        """In the roster, or a leaver that has rounds left."""
        machine = self.machine
        return self.in_roster or (
            self.evicted_epoch is None
            and self.begun
            and machine.roster.departure(machine.site, machine.incarnation) is not None
            and any(machine.site in view.members for view in machine.roster.views)
        )

    # -- the roster

    def roster_changed(self, old: Roster, command: Command | None) -> None:
        machine, roster = self.machine, self.machine.roster
        if self.evicted_epoch is not None and roster.epoch > self.evicted_epoch:
            self.evicted_epoch = None
        self.links.follow(old, roster, failed=isinstance(command, RemoveLink) and command.settle)
        if roster.adopted_epoch > self._adopted_epoch:
            self._adopted(roster)
        elif roster.settled_epoch > self._settled_epoch and self.begun and not roster.settling:
            machine.rounds.roster = roster
            machine.emit(machine.rounds.settled(roster.settled_round))
        self._adopted_epoch, self._settled_epoch = roster.adopted_epoch, roster.settled_epoch
        self.leveling.promoted(command)
        if self.in_roster:
            self._begin_if_new(roster)
        elif not self.takes_part():
            self.out_of_run()
        if self.takes_part():
            self._activate_if_ready()  # first: a site that is level gives its part to its first round as a member
            machine.emit(machine.rounds.install(roster))
        self.serving.follow(roster)

    def _adopted(self, roster: Roster) -> None:
        """The run goes on from a worker's state: ours, or another's."""
        machine = self.machine
        self._cancel_transfer("the run goes on from another state")
        self.keeping.abandon()
        own = roster.adopted_from == (machine.site, machine.incarnation)
        self.begun = self.in_roster
        machine.rounds.roster = roster
        if own and self.worker is not None and self.worker_round == roster.settled_round:
            machine.emit(machine.rounds.adopt_worker(roster.settled_round))
        elif self.in_roster:
            machine.emit(machine.rounds.begin_at(roster.settled_round))
            if own:
                self.keeping.restore_checkpoint(roster.settled_round)

    def _begin_if_new(self, roster: Roster) -> None:
        machine = self.machine
        record = machine.own_record
        plan = roster.replication
        assert record is not None
        for_us = plan is not None and plan.joiner == machine.site
        if for_us and plan is not None and plan.transfer != self._tried:
            self._cancel_transfer("replaced by a newer plan")
            if record.state == "learner" or not self.begun:
                machine.emit(machine.rounds.begin_at(plan.round))
            else:
                machine.emit(machine.rounds.collect_from(plan.round))
            self.begun = True
            self.keeping.abandon()
            self._fetch(plan)
        elif self.transfer is not None and self.transfer_bytes < self.transfer.state_bytes and not for_us:
            self._cancel_transfer("its transfer is no longer agreed")  # its sources may not even know of it: ask anew
            self.asked_s = float("-inf")
        elif not self.begun and record.state == "member" and not roster.settling:
            machine.emit(machine.rounds.begin_at(roster.settled_round))
            self.begun = True

    def out_of_run(self) -> None:
        if not self.begun:
            return
        self.begun = False
        self._cancel_transfer("this site is not in the roster any more")
        self.keeping.abandon()
        self.machine.emit(self.machine.rounds.leave_run())
        self.serving.release()

    # -- state: getting it, giving it

    def _fetch(self, plan: ReplicationPlan) -> None:
        self.transfer, self.transfer_bytes, self._tried = plan, 0, plan.transfer
        self.links.reach({part.source for part in plan.ranges})
        self.fetch_now()

    def fetch_now(self) -> None:
        """Begin, unless a thread still writes into the place where the state belongs: then when it has ended."""
        if self.worker is not None and self.transfer is not None and not self.keeping.region_is_written:
            self._loading = None
            self.machine.emit([FetchState(plan=self.transfer, have=self.region_filled)])
            self.region_filled = True
            self.leveling.fetching()

    def _cancel_transfer(self, reason: str) -> None:
        if self.transfer is not None:
            self.machine.emit([CancelTransfer(transfer=self.transfer.transfer, reason=reason)])
            self.links.reach(set())
        self.transfer, self.transfer_bytes = None, 0

    def transfer_progressed(self, transfer: str, verified_bytes: int) -> None:
        if self.transfer is not None and self.transfer.transfer == transfer:
            self.transfer_bytes = verified_bytes

    def transfer_finished(self, transfer: str) -> None:
        if self.transfer is not None and self.transfer.transfer == transfer and self.worker is not None:
            self.transfer_bytes = self.transfer.state_bytes
            asking.tell_transfer(self, self.transfer)
            self.worker_round = 0  # half overwritten until it says that it has loaded
            self._loading = self.transfer.round
            self.machine.emit([ToWorker(message=LoadState(round=self.transfer.round))])

    def transfer_failed(self, transfer: str, reason: str) -> None:
        if self.transfer is None or self.transfer.transfer != transfer:
            return
        machine = self.machine
        machine.record("scale-out", machine.facts.name, "state transfer", "failed", None, reason)
        self.transfer, self.transfer_bytes = None, 0
        self.asked_s = float("-inf")

    def worker_loaded(self, round_number: int) -> None:
        transferred = self.transfer is not None and self.transfer.round == round_number
        loading, self._loading = self._loading, None
        if not transferred and not self.keeping.loaded(round_number):
            if self.transfer is None and self.keeping.restoring is None and loading == round_number:
                self.worker_round = round_number  # given up meanwhile, but whole: it may be the newest state there is
            return
        self.worker_round = round_number
        self.leveling.loaded(round_number)
        self.machine.emit(self.machine.rounds.worker_loaded(round_number))
        self._after_worker()

    def worker_applied(self, round_number: int) -> None:
        self.worker_round = round_number
        self.keeping.applied(round_number)
        self.machine.emit(self.machine.rounds.worker_applied(round_number))
        self.leveling.applied(round_number)
        self._after_worker()

    def _after_worker(self) -> None:
        self.report_level()
        self._activate_if_ready()
        self.finish_if_done()

    def report_level(self) -> None:
        self.leveling.report()

    def _activate_if_ready(self) -> None:
        """Promoted: the roster has us as member and no transfer for us any more, and our worker has the state."""
        machine, roster = self.machine, self.machine.roster
        record = machine.own_record
        pending = roster.replication is not None and roster.replication.joiner == machine.site
        if not self.in_roster or record is None or record.state != "member" or pending:
            return
        transferred = self.transfer is not None and machine.rounds.worker_round is not None
        if transferred or self.keeping.level():
            self.transfer = None
            self.links.reach(set())
            if not self.leaving:
                machine.emit(machine.rounds.activate())

    # -- the worker

    def worker_ready(self, model: ModelFacts, round_number: int) -> None:
        machine = self.machine
        self.worker, self.worker_round, self._loading = model, round_number, None
        self.leveling.new_worker()
        self.worker_since_s = machine.now_s
        self.refusal = ""
        self.asked_s = float("-inf")
        machine.record(
            "worker", machine.facts.name, "said hello", "", None, f"its state is that of round {round_number}"
        )
        if self.transfer is not None:
            self.fetch_now()  # agreed while there was no worker
        elif not self.keeping.restore_mirror():
            asking.ask(self)

    def worker_lost(self, reason: str) -> None:
        machine = self.machine
        if self.worker is None:
            return
        self.worker = None
        machine.record(
            "worker", machine.facts.name, reason, "", None, "this site is in standby until a worker comes back"
        )
        self._cancel_transfer("the worker is gone")
        self.keeping.worker_lost(reason)
        self.serving.release()
        machine.emit(machine.rounds.worker_lost())
        machine.tell_scheduler(machine.own_report())
        self.finish_if_done()

    def state_lost(self, reason: str) -> None:
        """The worker cannot get level by results alone."""
        machine = self.machine
        machine.record("scale-out", machine.facts.name, reason, "", None, "the state is fetched again")
        self._cancel_transfer(reason)
        self.keeping.abandon()
        self.asked_s = float("-inf")

    # -- leaving

    def leave_requested(self, request: str, reason: str, contributes: bool) -> None:
        machine = self.machine
        if request:
            self._leave_requests.append(request)
        if not contributes:
            machine.emit(machine.rounds.worker_leaves())
        if self.leaving:
            return
        self.leaving = True
        self.leave_reason = reason
        self.asked_s = float("-inf")
        if self.worker is not None:
            machine.emit([ToWorker(message=LeaveOrdered(reason=reason))])
        if self.alone() or not (self.takes_part() or self.join_asked):  # who asked to join may be admitted by now
            self.leave_answer = LeaveAnswer(incarnation=machine.incarnation, last_round=0, finished=True)
        asking.ask(self)
        self.finish_if_done()

    def alone(self) -> bool:
        """Nobody else is in the run, and no leaver waits for us. Who asked to join may be admitted."""
        machine = self.machine
        known = {*machine.configuration.voters, *machine.configuration.learners, *machine.roster.site_ids()}
        return known <= {machine.site} and (self.in_roster or not self.join_asked)

    def leave_answered(self, answer: LeaveAnswer) -> None:
        if self.leaving and answer.incarnation == self.machine.incarnation:
            self.leave_answer = answer
            self.finish_if_done()

    def finish_if_done(self) -> None:
        """Go, when everybody has our last round and our worker has applied it."""
        machine, answer = self.machine, self.leave_answer
        if self.finished or answer is None or not answer.finished:
            return
        if self._released_s is None:
            self._released_s = machine.now_s
        if machine.now_s >= self._released_s + machine.settings.negotiation_timeout_s:
            self.stop("left the run; its last round was settled without it", graceful=True)
            return
        behind = machine.rounds.worker_round is not None and not machine.rounds.level
        if self.worker is not None and (machine.rounds.done < answer.last_round or behind) and self.takes_part():
            return
        self.stop("left the run", graceful=True)

    def stop(self, reason: str, *, graceful: bool) -> None:
        """The end of this daemon: the worker is dismissed, the neighbours are told."""
        if self.finished:
            return
        self.finished = True
        machine = self.machine
        last_round = machine.rounds.done
        if self.worker is not None:
            dismissed = Dismissed(last_round=last_round, graceful=graceful, reason=reason)
            machine.emit([ToWorker(message=dismissed)])
        for site in machine.links.up_sites():
            machine.tell(site, Farewell(reason=reason))
            machine.emit([CloseLink(site=site, reason=reason)])
        machine.emit([AnswerRequest(request=request, done=True, reason=reason) for request in self._leave_requests])
        machine.emit([StopDaemon(graceful=graceful, reason=reason)])

    def link_came_up(self, site: SiteId) -> None:
        if self.worker is not None and not self.in_roster:
            self.asked_s = float("-inf")

    # -- what is heard, and asked again

    def join_answered(self, answer: JoinAnswer) -> None:
        machine = self.machine
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
        self.links.close_removed()
        self.keeping.round_completed()
        self.report_level()
        answer = self.leave_answer
        departing = self.machine.roster.departed
        if (answer is not None) or any(gone.last_round == notice.round for gone in departing):
            self.machine.tell_scheduler(self.machine.own_report())
        self.finish_if_done()

    def beat(self) -> None:
        """Ask again for what is still wanted."""
        asking.beat(self)

    def pause_reason(self) -> str:
        """Why nothing moves; empty when rounds can go on."""
        return asking.pause_reason(self)
