"""Which part of a site takes which message: whose word counts, and whom it concerns.

Driven by `SiteMachine`. Every message has its line here, and the unlisted do not pass the type checker.
"""

from __future__ import annotations

from chaos_protocols import events
from chaos_protocols.agreement.commands import of_another_run, readable
from chaos_protocols.agreement.raft import Effect as RaftEffect
from chaos_protocols.agreement.raft.messages import AppendRequest, LeaderProof, SnapshotRequest, TimeoutNow
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.links.keys import LinkKeys
from chaos_protocols.links.network import Network
from chaos_protocols.links.orders import LinkOrders
from chaos_protocols.membership.participation import Participation
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.scheduler.machine import SchedulerMachine
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.recovery import RecoverAnswer, RunWaits
from chaos_protocols.wire.versions import PROOFS_SINCE

FOR_INSIDERS = frozenset(
    (
        messages.RaftEnvelope,
        messages.JoinAnswer,
        messages.LeaveAnswer,
        messages.LinkAnswer,
        messages.ConnectOrder,
        messages.RoundStatusQuery,
        messages.RoundWaits,
        RunWaits,
        RecoverAnswer,
        messages.OlderStartRefused,
        messages.KeysTold,
    )
)
"""Taken only from sites of the run: a site that may connect, or be relayed, is not yet one that may decide."""

FOR_LEADERS = (AppendRequest, SnapshotRequest, TimeoutNow, LeaderProof)
"""Said by the leader alone: of whom no voter says that it leads, once it has shown its votes."""

ANSWERS = frozenset((messages.JoinAnswer, messages.LeaveAnswer, messages.LinkAnswer, RecoverAnswer))
"""What the scheduler answers: taken from whom this site takes for it (spec 7.2)."""

OF_THE_LINK = frozenset((messages.Heartbeat, messages.Goodbye, messages.OlderStartRefused, messages.KeysTold))
"""Taken only over the link that they are about: an old one that a third site brings would call a dead link up, or
warn of what is over."""


class Inbound:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        network: Network,
        participation: Participation,
        orders: LinkOrders,
        scheduler: SchedulerMachine,
        keys: LinkKeys,
    ) -> None:
        self.rejected = 0
        """Messages that were not taken: from somebody who may not say such a thing, or unreadable."""
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._participation = participation
        self._orders = orders
        self._scheduler = scheduler
        self._keys = keys

    def received(self, event: events.EnvelopeReceived) -> list[RaftEffect]:
        """An envelope from a neighbour: heard of, passed on, or taken."""
        outbox, network, neighbour = self._outbox, self._network, event.neighbour
        network.links.heard(neighbour, now_s=outbox.now_s)
        if self._is_of_another_start(event):
            self.rejected += 1
            return []
        for_here = event.envelope.destination in (self._replica.site, messages.EVERYBODY)
        if for_here and not self._keys.lets_speak(neighbour, event.envelope):
            self.rejected += 1
            return []
        ours, effects = network.router.receive(
            neighbour, event.envelope, roster=self._replica.roster, own_up=network.links.up_sites()
        )
        if effects:
            outbox.emit(effects)
        if ours is None or isinstance(ours.message, messages.Unreadable):
            return []
        if ours.source != neighbour and type(ours.message) in OF_THE_LINK:
            self.rejected += 1
            return []
        network.naming.heard_from(ours.source, ours.run)
        if ours.run and not network.naming.named and self._participation.client.is_of_run(ours.source):
            network.naming.saw_named(ours.run)
            network.name_runs(self._participation.client.is_of_run)
        if ours.event_id:
            outbox.caused_by(ours.event_id)
        if self._participation.client.is_trusted(ours.source) and network.naming.takes(neighbour, ours):
            network.versions.said(ours.source, ours.incarnation, ours.version)  # its own word: it made the envelope
            network.saw_incarnation(ours.source, ours.incarnation, self._keys.said_with(neighbour, ours))
        return self.deliver(ours.source, ours.message)

    def _is_of_another_start(self, event: events.EnvelopeReceived) -> bool:
        """A neighbour speaks for itself, and for another start of its daemon than the one that has proven itself when
        this link came up: the word is an old one, or not its own. Or, whoever brings it, that of an older start than
        the roster has: what it promises, another daemon with its key does not keep."""
        links, neighbour, envelope = self._network.links, event.neighbour, event.envelope
        source, start = envelope.source, envelope.incarnation
        if source == neighbour and links.is_up(neighbour) and not links.is_up(neighbour, start):
            return True
        key = self._keys.key_of(neighbour) if source == neighbour else envelope.public_key
        return self._keys.is_older_start(source, start, key)

    def deliver(self, source: SiteId, message: messages.Message) -> list[RaftEffect]:
        """One message for this site into the part that it concerns; what the agreement asks for then. Bounds and types
        were checked by the decoder, who sent it by the transport; whether it still matters is checked by the part."""
        if not self._may_say(source, message):
            self.rejected += 1
            return []
        participation = self._participation
        match message:
            case messages.RaftEnvelope(message=inner):
                vouched = not isinstance(inner, FOR_LEADERS) or participation.client.may_lead(source)
                return self._replica.raft.receive(source, inner, now_s=self._outbox.now_s, vouched=vouched)
            case messages.Heartbeat():
                of_run = participation.client.is_of_run(source)
                if self._network.heard_beat(source, message, of_run=of_run):
                    self._network.name_runs(participation.client.is_of_run)
                    if of_run:
                        self._outbox.emit(self._replica.heard_log(source, message.log_index, message.log_head))
                    participation.heard(source, message)
                    if participation.client.has_resigned(source, message):
                        return self._replica.raft.leader_lost(now_s=self._outbox.now_s)
            case messages.LinkStateAdvertisement():
                if participation.client.is_trusted(source):
                    self._network.told_of(message)
                participation.links.told_of(source, message)
                self._network.overlay_changed()
            case messages.Goodbye(reason=reason):
                self._network.links.goodbye_received(source, reason)
            case messages.JoinAnswer():
                participation.session_end.join_answered(message)
            case messages.LeaveAnswer():
                participation.leaving.answered(message)
            case messages.LinkAnswer():
                participation.links.answered(message)
            case messages.ConnectOrder():
                self._orders.ordered(source, message)
            case messages.RoundStatusQuery(epoch=epoch):
                participation.reporting.asked_how_far(source, epoch)
            case messages.RoundWaits():
                participation.waits.heard(source, message)
            case RunWaits(reason=reason):
                participation.pause.heard(source, reason)
            case RecoverAnswer():
                participation.recovering.answered(message)
            case messages.OlderStartRefused():
                participation.warnings.heard(source, message)
            case messages.KeysTold():
                self._keys.heard(source, message)
            case _:
                if self._scheduler.at_work(now_s=self._outbox.now_s):
                    self._scheduler.receive(source, message, now_s=self._outbox.now_s)
        return []

    def _may_say(self, source: SiteId, message: messages.Message) -> bool:
        """Only insiders say what binds this site; what cannot be read is not stored: it would stop this daemon at every
        start; and a roster of another run is none (spec 2.13)."""
        if type(message) in FOR_INSIDERS and not self._participation.client.is_trusted(source):
            return False
        if type(message) in ANSWERS and not self._participation.client.may_answer(source):
            return False
        if not isinstance(message, messages.RaftEnvelope):
            return True
        if isinstance(message.message, FOR_LEADERS) and not self._may_lead_or_show(source):
            return False
        return readable(message.message) and not of_another_run(message.message, self._replica.roster.run_id)

    def _may_lead_or_show(self, source: SiteId) -> bool:
        """It may be the leader, as those say who vote, or can be asked to show who elected it: a release that knows no
        such question would close the link."""
        vouched = self._participation.client.may_lead(source)
        return vouched or self._network.versions.speaks(source, PROOFS_SINCE)
