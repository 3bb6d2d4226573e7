"""What a site tells the scheduler of itself: at every beat (spec 7.3), and how far it is when a failure has left a
round in doubt (spec 10). Driven by `Participation`, and by the scheduler's question.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.links.network import Network
from chaos_protocols.membership.absence import WorkerAbsence
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.own_keys import OwnKeys
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.rounds.reached import ReachedRound
from chaos_protocols.state.machine import WorkerState
from chaos_protocols.wire.bulk import STREAM_AVERAGING
from chaos_protocols.wire.control import RoundStatusReply, SiteStatus


class Reporting:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        network: Network,
        membership: Membership,
        client: SchedulerClient,
        rounds: RoundMachine,
        state: WorkerState,
        absence: WorkerAbsence,
        reached: ReachedRound,
        keys: OwnKeys,
    ) -> None:
        self._outbox, self._replica, self._network, self._membership = outbox, replica, network, membership
        self._client, self._rounds, self._state, self._absence, self._reached = client, rounds, state, absence, reached
        self._keys = keys

    def status(self) -> SiteStatus:
        """As of now."""
        rounds, state, roster, outbox = self._rounds, self._state, self._replica.roster, self._outbox
        model = roster.model
        deaf, deaf_s = self._network.links.unacknowledged(STREAM_AVERAGING, now_s=outbox.now_s)
        told = deaf if deaf_s >= outbox.settings.failure_timeout_s else None
        return SiteStatus(
            incarnation=outbox.facts.incarnation,
            epoch=roster.epoch,
            done_round=rounds.completed_round,
            active=rounds.active and self._membership.in_roster,
            transfer_bytes=state.fetch.verified_bytes,
            empty_round=rounds.empty_round,
            worker_round=rounds.worker_round or 0,
            known_round=rounds.known_round,
            memory_checkpoint=state.memory.round is not None,
            open=rounds.running,
            gave=rounds.own.given,
            rests=self._absence.rests,
            reached_round=self._reached.of(roster),
            checkpoint=None if rounds.active or model is None else state.files.offered(model.spec_digest),
            unacknowledged_by=told if told is not None else SiteId(""),
            unacknowledged_s=deaf_s if told else 0.0,
            rates=self._network.rates,
            send_limit=self._network.send_limit,
            bans=self._client.bans,
            bounds=self._client.bounds_wanted,
            keys=self._keys.news(),
            unsaved=0 < roster.restore_epoch == state.unsaved_in(),
        )

    def round_status(self) -> RoundStatusReply:
        """This site's answer; it may only be asked for once the resolving entry is applied here (it is a promise)."""
        rounds, epoch = self._rounds, self._replica.roster.epoch
        if not self._membership.begun:
            return RoundStatusReply(epoch=epoch, done_round=0, digest="")
        return RoundStatusReply(
            epoch=epoch,
            done_round=rounds.completed_round,
            digest=rounds.digest,
            has_state=rounds.active and rounds.caught_up,
            known_round=rounds.known_round,
        )

    def asked_how_far(self, source: SiteId, epoch: int) -> None:
        """The scheduler asks for this site's answer, in the resolving epoch `epoch`."""
        roster = self._replica.roster
        if epoch == roster.epoch and roster.resolving:
            self._network.tell(source, self.round_status())
