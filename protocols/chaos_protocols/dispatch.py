"""Which part of a site handles what: every event and every message has its line here, and the unlisted do not pass the
type checker."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from chaos_protocols import asking, events, messages, requests
from chaos_protocols.commands import readable
from chaos_protocols.effects import ProbeLink
from chaos_protocols.kept import results_max
from chaos_protocols.liveness import Neighbour
from chaos_protocols.names import SiteId

if TYPE_CHECKING:
    from chaos_protocols.site import SiteMachine


FOR_INSIDERS = frozenset(
    (
        messages.RaftEnvelope,
        messages.JoinAnswer,
        messages.LeaveAnswer,
        messages.LinkAnswer,
        messages.ConnectOrder,
        messages.SettleQuestion,
    )
)
"""Taken only from sites of the run: a site that may connect, or be relayed, is not yet one that may decide."""

OF_THE_LINK = frozenset((messages.Heartbeat, messages.Farewell))
"""Taken only over the link that they are about: an old one that a third site brings would call a dead link up."""


def dispatch(machine: SiteMachine, event: events.Event) -> None:
    """One event into the part that it concerns."""
    match event:
        case events.TimerFired():
            machine.timer_fired()
        case events.EnvelopeReceived(neighbour=neighbour, envelope=envelope):
            _received(machine, neighbour, envelope)
        case (
            events.Started()
            | events.LinkUp()
            | events.LinkLost()
            | events.DialFailed()
            | events.LinkProgressed()
            | events.LinkProbed()
        ):
            _link_event(machine, event)
        case (
            events.WorkerReady()
            | events.WorkerLost()
            | events.WorkerContributed()
            | events.WorkerUpdating()
            | events.WorkerApplied()
            | events.WorkerSnapshotTaken()
            | events.WorkerSnapshotMissed()
            | events.WorkerLoaded()
        ):
            _worker_event(machine, event)
        case events.ReduceFinished(tag=tag, digest=digest, weights=weights):
            machine.emit(machine.rounds.reduce_finished(tag, digest, weights))
        case events.ReduceStalled(tag=tag):
            machine.stalled = tag
            reason = "no site has a worker with the state; training waits for one"
            machine.record("pause", f"round {tag.round}", "every contribution has weight 0", "", None, reason)
        case events.ResultFetched(round=number, digest=digest):
            machine.emit(machine.rounds.result_fetched(number, digest))
        case events.ResultMissed(tag=tag):
            machine.emit(machine.rounds.result_missed(tag))
        case events.TransferProgressed(transfer=transfer, verified_bytes=verified_bytes):
            machine.standing.transfer_progressed(transfer, verified_bytes)
        case events.TransferFinished(transfer=transfer):
            machine.standing.transfer_finished(transfer)
        case events.TransferFailed(transfer=transfer, reason=reason):
            machine.standing.transfer_failed(transfer, reason)
        case (
            events.CopyKept()
            | events.StateRestored()
            | events.RestoreFailed()
            | events.CheckpointsFound()
            | events.CheckpointWritten()
        ):
            _keeping_event(machine, event)
        case events.LinkChangeRequested(request=request, other=other, add=add):
            machine.standing.links.change_requested(request, other, add)
        case events.LeaveRequested(request=request, reason=reason, contributes=contributes):
            machine.standing.leave_requested(request, reason, contributes)
        case _:
            assert_never(event)


def _link_event(
    machine: SiteMachine,
    event: events.Started
    | events.LinkUp
    | events.LinkLost
    | events.DialFailed
    | events.LinkProgressed
    | events.LinkProbed,
) -> None:
    links, now_s = machine.links, machine.now_s
    match event:
        case events.Started(peers=peers):
            for site, address in peers:
                machine.standing.links.peers[site] = address
                machine.emit(links.want(site, address, now_s=now_s))
            for site in machine.last_known.neighbours(machine.site):
                record = machine.last_known.record(site)
                machine.emit(links.want(site, record.address if record else "", now_s=now_s))
            machine.standing.roster_changed(machine.roster, None)
        case events.LinkUp(site=site, incarnation=incarnation, address=address, versions=versions):
            machine.versions.heard(site, incarnation, versions)
            machine.emit(links.link_up(site, incarnation, address, now_s=now_s))
        case events.LinkLost(site=site, incarnation=incarnation, reason=reason):
            machine.emit(links.link_lost(site, incarnation, reason, now_s=now_s))
        case events.DialFailed(site=site, reason=reason):
            machine.emit(links.dial_failed(site, reason, now_s=now_s))
            if machine.roster.link(machine.site, site) is not None and machine.courier.overlay.silent(site):
                machine.report_link(site, 0, up=False, reason=reason)  # nobody saw it go down: all were restarted
        case events.LinkProgressed(site=site):
            links.progressed(site, now_s=now_s)
        case events.LinkProbed(site=site, rate_bytes_per_s=rate, reason=reason):
            machine.orders.probed(site, rate, reason)
        case _:
            assert_never(event)


def _worker_event(
    machine: SiteMachine,
    event: events.WorkerReady
    | events.WorkerLost
    | events.WorkerContributed
    | events.WorkerUpdating
    | events.WorkerApplied
    | events.WorkerSnapshotTaken
    | events.WorkerSnapshotMissed
    | events.WorkerLoaded,
) -> None:
    match event:
        case events.WorkerReady(model=model, round=number, contribution_bytes=contribution_bytes):
            machine.rounds.results_max = results_max(contribution_bytes)
            machine.standing.worker_ready(model, number)
        case events.WorkerLost(reason=reason):
            machine.standing.worker_lost(reason)
        case events.WorkerContributed(round=number, weight=weight):
            machine.emit(machine.rounds.worker_contributed(number, weight))
        case events.WorkerUpdating():
            machine.rounds.worker_updating()
        case events.WorkerApplied(round=number):
            machine.standing.worker_applied(number)
        case events.WorkerSnapshotTaken(round=number):
            machine.standing.serving.snapshot_taken(number)
            machine.standing.keeping.snapshot_taken(number)
        case events.WorkerSnapshotMissed(round=number, now=now):
            machine.standing.serving.snapshot_missed(number, now)
            machine.standing.keeping.snapshot_missed(number)
        case events.WorkerLoaded(round=number):
            machine.standing.worker_loaded(number)
        case _:
            assert_never(event)


def _keeping_event(
    machine: SiteMachine,
    event: events.CopyKept
    | events.StateRestored
    | events.RestoreFailed
    | events.CheckpointsFound
    | events.CheckpointWritten,
) -> None:
    keeping = machine.standing.keeping
    match event:
        case events.CopyKept(round=number, reason=reason):
            keeping.copy_kept(number, reason)
        case events.StateRestored(attempt=attempt):
            keeping.state_restored(attempt)
        case events.RestoreFailed(attempt=attempt, reason=reason):
            keeping.restore_failed(attempt, reason)
        case events.CheckpointsFound(checkpoints=checkpoints):
            keeping.checkpoints_found(checkpoints)
        case events.CheckpointWritten():
            keeping.checkpoint_written(event)
        case _:
            assert_never(event)


def _received(machine: SiteMachine, neighbour: SiteId, envelope: messages.Envelope) -> None:
    links = machine.links
    links.heard(neighbour, now_s=machine.now_s)
    ours, effects = machine.courier.receive(neighbour, envelope, roster=machine.roster, own_up=links.up_sites())
    if effects:
        machine.emit(effects)
    if ours is None or isinstance(ours.message, messages.Unreadable):
        return
    if ours.source != neighbour and type(ours.message) in OF_THE_LINK:
        machine.disbelieved += 1
        return
    if ours.event_id:
        machine.event_id = ours.event_id
    deliver(machine, ours.source, ours.message)


def deliver(machine: SiteMachine, source: SiteId, message: messages.Message) -> None:
    """One message for this site into the part that it concerns. Bounds and types were checked by the decoder, who sent
    it by the transport; whether it still matters is checked by the part."""
    if type(message) in FOR_INSIDERS and not machine.believes(source):
        machine.disbelieved += 1
        return
    if isinstance(message, messages.RaftEnvelope) and not readable(message.message):
        machine.disbelieved += 1  # stored, it would stop this daemon at every start
        return
    match message:
        case messages.RaftEnvelope(message=inner):
            machine.raft_effects(machine.raft.receive(source, inner, now_s=machine.now_s))
        case messages.Heartbeat():
            machine.heard_steps[source] = (message.round, message.phase)
            machine.links.heartbeat_received(source, message, now_s=machine.now_s)
            asking.heard(machine.standing, source, message)
        case messages.LinkReport(neighbour=site, incarnation=incarnation, versions=versions):
            if machine.believes(source):
                machine.versions.heard(site, incarnation, versions)
                machine.saw_incarnation(site, incarnation)
            machine.overlay_changed()
        case messages.Farewell(reason=reason):
            machine.links.farewell_received(source, reason)
        case messages.JoinAnswer():
            machine.standing.join_answered(message)
        case messages.LeaveAnswer():
            machine.standing.leave_answered(message)
        case messages.LinkAnswer():
            machine.standing.links.answered(message)
        case messages.ConnectOrder():
            machine.orders.ordered(source, message)
        case messages.SettleQuestion(epoch=epoch):
            if epoch == machine.roster.epoch and machine.roster.settling:
                machine.tell(source, machine.settle_answer())
        case _:
            if machine.scheduler.at_work(now_s=machine.now_s):
                _for_scheduler(machine, source, message)


def _for_scheduler(
    machine: SiteMachine,
    source: SiteId,
    message: messages.JoinRequest
    | messages.StateRequest
    | messages.LevelReport
    | messages.LeaveRequest
    | messages.LinkRequest
    | messages.LinkReady
    | messages.Report
    | messages.SettleAnswer,
) -> None:
    scheduler, now_s = machine.scheduler, machine.now_s
    match message:
        case messages.Report(incarnation=incarnation):
            record = machine.roster.record(source)  # a leaver may be the root of its last round
            known = record or machine.roster.departure(source, incarnation)
            if known is not None and known.incarnation == incarnation:
                scheduler.take_report(source, message, now_s=now_s)
        case messages.JoinRequest():
            requests.join_requested(scheduler, source, message, now_s=now_s)
        case messages.StateRequest():
            requests.state_requested(scheduler, source, message, now_s=now_s)
        case messages.LevelReport(transfer=transfer, waits=waits):
            requests.level_reported(scheduler, source, transfer, waits=waits, now_s=now_s)
        case messages.LeaveRequest():
            requests.leave_requested(scheduler, source, message, now_s=now_s)
        case messages.LinkRequest():
            requests.link_requested(scheduler, source, message, now_s=now_s)
        case messages.LinkReady():
            requests.link_ready(scheduler, source, message, now_s=now_s)
        case messages.SettleAnswer():
            scheduler.settle_answered(source, message)
        case _:
            assert_never(message)


def beat(machine: SiteMachine) -> None:
    """A heartbeat over every live link, and whatever is asked again."""
    sequence = machine.links.next_beat(now_s=machine.now_s)
    scheduler = machine.scheduler_site()
    for site in machine.links.up_sites():
        neighbour: Neighbour = machine.links.neighbours[site]
        heartbeat = messages.Heartbeat(
            sequence=sequence,
            echo_sequence=neighbour.heard_sequence,
            echo_delay_s=max(0.0, machine.now_s - neighbour.heard_beat_s),
            round=machine.rounds.done,
            phase=machine.rounds.phase,
            epoch=machine.roster.epoch,
            scheduler=scheduler,
            knows_you=machine.roster.record(site) is not None,
        )
        machine.tell(site, heartbeat)
    machine.standing.beat()


class LinkOrders:
    """The scheduler's orders to have, and measure, a link: answered when the link is up and measured."""

    def __init__(self, machine: SiteMachine) -> None:
        self._machine = machine
        self._orders: dict[str, tuple[SiteId, messages.ConnectOrder]] = {}
        self._probing: set[SiteId] = set()

    def ordered(self, source: SiteId, order: messages.ConnectOrder) -> None:
        machine = self._machine
        known = machine.roster.record(source) is not None or source in (machine.site, machine.scheduler_site())
        if not known:
            return
        self._orders[order.negotiation] = (source, order)
        while len(self._orders) > 64:
            self._orders.pop(next(iter(self._orders)))
        machine.emit(machine.links.want(order.other, order.address, now_s=machine.now_s))
        self.look(order.other)

    def look(self, site: SiteId) -> None:
        """The link to `site` may be up now: measure, or answer."""
        machine = self._machine
        if not machine.links.is_up(site):
            return
        for order in [one for _, one in self._orders.values() if one.other == site]:
            if not order.probe:
                self._answer(order, 0.0, "connected")
            elif site not in self._probing:
                self._probing.add(site)
                machine.emit([ProbeLink(site=site)])

    def probed(self, site: SiteId, rate_bytes_per_s: float, reason: str) -> None:
        self._probing.discard(site)
        for order in [one for _, one in self._orders.values() if one.other == site]:
            self._answer(order, rate_bytes_per_s, reason)

    def _answer(self, order: messages.ConnectOrder, rate_bytes_per_s: float, reason: str) -> None:
        scheduler, _ = self._orders.pop(order.negotiation)
        machine = self._machine
        neighbour = machine.links.neighbours.get(order.other)
        ready = messages.LinkReady(
            negotiation=order.negotiation,
            other=order.other,
            ready=machine.links.is_up(order.other),
            rtt_s=(neighbour.rtt_s or 0.0) if neighbour else 0.0,
            rate_bytes_per_s=rate_bytes_per_s,
            reason=reason,
        )
        machine.tell(scheduler, ready)
