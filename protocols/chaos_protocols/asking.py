"""What a site asks again until it has it: to join, for the state, to leave; what it tells its user meanwhile.

Functions on a `Standing`, at every beat. Asking again is what makes a lost message, or a lost scheduler, harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos_protocols.effects import ToWorker
from chaos_protocols.messages import Heartbeat, JoinRequest, LeaveAnswer, LeaveRequest, StateRequest
from chaos_protocols.names import SiteId, short
from chaos_protocols.plans import ReplicationPlan
from chaos_protocols.roster import ModelFacts
from chaos_protocols.worker import RunPaused, RunResumed

if TYPE_CHECKING:
    from chaos_protocols.standing import Standing


def beat(standing: Standing) -> None:
    """Everything that is still wanted is asked again; the user's worker hears why nothing moves."""
    machine = standing.machine
    if standing.leaving and standing.alone():
        standing.leave_answered(LeaveAnswer(incarnation=machine.incarnation, last_round=0, finished=True))
    if standing.takes_part():
        machine.tell_scheduler(machine.own_report())
    standing.report_level()
    standing.leveling.beat()
    if machine.now_s >= standing.asked_s + machine.settings.retry_s:
        ask(standing)
    standing.links.ask()
    tell_pause(standing)
    standing.finish_if_done()
    give_up_the_answer(standing)
    give_up_fetching(standing)
    give_up_listening(standing)
    waits_outside = standing.worker is not None and not standing.in_roster
    leaderless = standing.in_roster and machine.raft.leader is None  # its neighbours may all be outside by now
    if machine.links.up_sites() and not waits_outside and not leaderless:
        standing.linked_s = machine.now_s
    elif machine.now_s - standing.linked_s > 3 * machine.settings.failure_timeout_s:
        known = machine.roster if machine.roster.epoch > 1 else machine.last_known
        for record in known.sites[:8]:  # cut off, or no neighbour is in: any may be the way back
            if record.site != machine.site:
                machine.emit(machine.links.want(record.site, record.address, now_s=machine.now_s))


def give_up_the_answer(standing: Standing) -> None:
    """A leaver that reaches nobody goes by itself: who would answer has ended, or will find it gone. So does one that
    was not admitted, and hears no word about it; and one that has lost the scheduler, while those it reaches tell it
    that it is out: the scheduler may be a site that its roster does not have, whose answer it must not believe; and the
    last member, when no state is on the way to a learner that could take its place; and one for which nothing
    was agreed for long: a majority is gone, and nobody knows whether it comes back."""
    machine = standing.machine
    if machine.raft.leader is not None:
        standing.unknown_since_s = None  # it will hear from the log, or from the scheduler
    since_s = standing.unknown_since_s
    if standing.leaving and since_s is not None and machine.now_s - since_s > machine.settings.negotiation_timeout_s:
        standing.stop("left the run; it was removed while it was cut off", graceful=True)
    roster, leads = machine.roster, machine.scheduler.taken_over  # with an old roster it may only seem to be the last
    last = leads and roster.member_ids() == (machine.site,) and roster.replication is None
    if not standing.leaving or (machine.links.up_sites() and standing.takes_part() and not last):
        standing.reachable_s = machine.now_s
    elif machine.now_s - standing.reachable_s > machine.settings.negotiation_timeout_s:
        why = "it was the last member" if last else "no site in reach could confirm it"
        standing.stop(f"left the run; {why}", graceful=True)
    flight = machine.scheduler.in_flight
    agreed_s = machine.leader_seen_s if machine.raft.leader is None else flight.started_s if flight else machine.now_s
    if standing.leaving and machine.now_s - agreed_s > 2 * machine.settings.negotiation_timeout_s:
        standing.stop("left the run; no majority could be reached to confirm it", graceful=True)


def give_up_fetching(standing: Standing) -> None:
    """Whoever holds a settled result is no neighbour: the others must not wait for this site's contribution."""
    machine = standing.machine
    if machine.rounds.fetching is None:
        standing.fetching_since_s = machine.now_s
    elif machine.now_s - standing.fetching_since_s > machine.settings.election_timeout_s:
        machine.emit(machine.rounds.give_up_fetching())


def give_up_listening(standing: Standing) -> None:
    """Members that leave wait for the other members' rounds, not for those who only listen: the site that a listener
    has its results from may be gone, and what it kept is gone with it."""
    machine, rounds = standing.machine, standing.machine.rounds
    view = machine.roster.view_of(rounds.running.round) if rounds.running is not None else None
    if rounds.running is None or view is None or machine.site in view.members:
        return
    for site in {parent for tree in view.plan.trees for child, parent in tree.parent if child == machine.site}:
        left = (one for one in machine.roster.departed if one.site == site and one.last_round >= rounds.running.round)
        gone = next(left, None)
        if gone is not None and not machine.links.is_up(site, gone.incarnation):
            machine.emit(rounds.result_missed(rounds.running))
            return


def ask(standing: Standing) -> None:
    machine = standing.machine
    if standing.finished or (standing.worker is None and not standing.leaving):
        return
    if machine.scheduler_site() is None:
        return  # nobody to ask yet: at the next beat, or as soon as a neighbour names the scheduler
    standing.asked_s = machine.now_s
    if standing.leaving:
        answered = standing.leave_answer is not None and standing.leave_answer.finished
        if not answered and machine.scheduler_site() != machine.site:
            machine.tell_scheduler(LeaveRequest(incarnation=machine.incarnation, reason=standing.leave_reason))
        return
    assert standing.worker is not None
    if not standing.in_roster:
        standing.join_asked = True
        machine.tell_scheduler(join_request(standing, standing.worker))
    elif machine.rounds.worker_round is None and standing.transfer is None and standing.keeping.restoring is None:
        reason = "" if standing.begun else "its daemon was restarted"
        request = StateRequest(
            incarnation=machine.incarnation,
            worker_round=standing.worker_round,
            model=standing.worker,
            reason=reason,
            checkpoint=standing.keeping.offer(),
        )
        machine.tell_scheduler(request)


def join_request(standing: Standing, model: ModelFacts) -> JoinRequest:
    facts = standing.machine.facts
    return JoinRequest(
        name=facts.name,
        address=facts.address,
        public_key=facts.public_key,
        incarnation=facts.incarnation,
        neighbours=standing.machine.links.up_sites(),
        model=model,
        worker_round=standing.worker_round,
        checkpoint=standing.keeping.offer(),
        versions=facts.versions,
    )


def tell_pause(standing: Standing) -> None:
    reason = pause_reason(standing)
    if reason == standing.paused:
        return
    machine = standing.machine
    if standing.worker is not None:
        machine.emit([ToWorker(message=RunPaused(reason=reason) if reason else RunResumed())])
    if bool(reason) != bool(standing.paused):
        kind = "pause" if reason else "resume"
        machine.record(kind, machine.facts.name, reason or standing.paused, "", None, "")
    standing.paused = reason


def pause_reason(standing: Standing) -> str:
    """Why nothing moves; empty when rounds can go on."""
    machine, roster = standing.machine, standing.machine.roster
    if not standing.takes_part():
        return standing.refusal or (
            "asking to join" if standing.worker is not None else "waiting for a worker to say hello"
        )
    if machine.raft.leader is None and machine.now_s - machine.leader_seen_s > machine.settings.failure_timeout_s:
        lacking = [short(site) for site in machine.raft.configuration.voters if site not in machine.reachable()]
        whom = f"cannot reach {', '.join(lacking)}" if lacking else "an election is under way"
        return f"no scheduler: {whom}; training waits for a majority of the voters"
    if roster.model is None:
        return "waiting for the founder's worker"
    if not roster.started:
        return f"waiting for {roster.min_sites} sites; {len(roster.member_ids())} are here"
    waits_s = machine.now_s - standing.worker_since_s
    comes = standing.transfer is not None or standing.keeping.restoring is not None
    stateless = standing.worker is not None and machine.rounds.worker_round is None and not comes
    if stateless and waits_s > 2 * machine.settings.failure_timeout_s:
        if any(machine.heard_steps.get(site, (0, "standby"))[1] != "standby" for site in machine.links.up_sites()):
            return f"waiting for the state of round {machine.rounds.done}: it is fetched again from a site that trains"
        anew = "choose another run, or empty the folders of checkpoints; " if standing.keeping.writes else ""
        return (
            f"no member that trains has the state of round {machine.rounds.done}; waiting for a worker that has it "
            f"(to begin anew instead: {anew}stop all daemons, then start them)"
        )
    return ""


def heard(standing: Standing, site: SiteId, beat: Heartbeat) -> None:
    """A neighbour tells how it sees the roster: who schedules, and whether we are in it."""
    machine = standing.machine
    if beat.scheduler is not None and beat.epoch >= standing.hint_epoch:
        news = standing.scheduler_hint != beat.scheduler
        standing.scheduler_hint, standing.hint_epoch = beat.scheduler, beat.epoch
        if news and (standing.leaving or not standing.in_roster):
            ask(standing)
    heeded = machine.believes(site) or machine.raft.leader is None  # who has a scheduler asks no stranger
    newer = heeded and beat.epoch > machine.roster.epoch
    if not newer or beat.knows_you:
        standing.unknown_since_s = None if newer else standing.unknown_since_s
    elif standing.leaving:  # its removal is what it asked for: it goes when it is told to
        standing.unknown_since_s = standing.unknown_since_s or machine.now_s
    elif standing.in_roster:
        standing.evicted_epoch = beat.epoch
        machine.record("scale-in", machine.facts.name, "removed while cut off", "", None, "joins again as a newcomer")
        standing.out_of_run()


def tell_transfer(standing: Standing, plan: ReplicationPlan) -> None:
    machine = standing.machine
    names = {record.site: record.name for record in machine.roster.sites}
    shares = "; ".join(
        f"{names.get(part.source, short(part.source))} {part.stop - part.start:,}" for part in plan.ranges
    )
    reason = f"{plan.state_bytes:,} bytes of round {plan.round}, verified; planned from {shares}"
    machine.record("transfer", machine.facts.name, "state replication", "done", None, reason)
