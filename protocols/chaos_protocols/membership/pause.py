"""What a site's user is told when nothing moves: why, and when it goes on."""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.links.network import Network
from chaos_protocols.membership.join_hold import JoinHold
from chaos_protocols.membership.joining import Joining
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.waits import Waits
from chaos_protocols.names import short
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.rounds.phases import RoundPhase
from chaos_protocols.state.machine import WorkerState
from chaos_protocols.wire.worker import RunPaused, RunResumed

HEARD_LASTS = 4
"""So many times as long as it takes until the scheduler says it again, what it said holds."""


class Pause:
    """See the module. Driven by `Participation`, at every beat."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        network: Network,
        membership: Membership,
        joining: Joining,
        hold: JoinHold,
        rounds: RoundMachine,
        state: WorkerState,
        waits: Waits,
    ) -> None:
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._membership = membership
        self._joining = joining
        self._hold = hold
        self._rounds = rounds
        self._state = state
        self._waits = waits
        self._told = ""
        """The reason that was told last; empty: it goes on."""
        self._heard = ("", float("-inf"))
        """What the scheduler last said that the run waits for, and when."""

    def heard(self, reason: str) -> None:
        """The scheduler says which state the run waits for, and for whom; it says so again as long as that lasts."""
        self._heard = (reason, self._outbox.now_s)

    def tell(self) -> None:
        """The worker hears of every new reason, the event history of the beginning and of the end."""
        reason, outbox = self.reason(), self._outbox
        if reason == self._told:
            return
        if self._state.session.present:
            self._state.session.tell(RunPaused(reason=reason) if reason else RunResumed())
        if bool(reason) != bool(self._told):
            outbox.record("pause" if reason else "resume", outbox.facts.name, reason or self._told, "", None, "")
        self._told = reason

    def reason(self) -> str:
        """Why nothing moves; empty when rounds can go on."""
        roster = self._replica.roster
        if not self._membership.takes_part:
            asking = "asking to join" if self._state.session.present else "waiting for a worker to say hello"
            return self._joining.refusal or asking
        if self._is_without_scheduler():
            return self._why_no_scheduler()
        if roster.model is None:
            return "waiting for the founder's worker"
        if not roster.started:
            return f"waiting for {roster.min_sites} sites; {len(roster.member_ids())} are here"
        if waits := self._what_the_run_waits_for() or self._hold.reason():
            return waits
        return self._why_no_state() if self._is_without_state() else self._waits.reason()

    def _what_the_run_waits_for(self) -> str:
        outbox, (reason, heard_s) = self._outbox, self._heard
        over = self._rounds.active or self._state.is_coming or self._replica.roster.resolving
        return "" if over or outbox.now_s > heard_s + HEARD_LASTS * outbox.settings.retry_s else reason

    def _is_without_scheduler(self) -> bool:
        outbox, replica = self._outbox, self._replica
        silent_s = outbox.now_s - replica.leader_seen_s
        return replica.raft.leader is None and silent_s > outbox.settings.failure_timeout_s

    def _why_no_scheduler(self) -> str:
        reachable = self._network.reachable()
        lacking = [short(site) for site in self._replica.configuration.voters if site not in reachable]
        whom = f"cannot reach {', '.join(lacking)}" if lacking else "an election is under way"
        return f"no scheduler: {whom}; training waits for a majority of the voters"

    def _is_without_state(self) -> bool:
        """For longer than it takes to be asked for, and nothing is on its way."""
        outbox, session = self._outbox, self._state.session
        if not session.present or self._rounds.worker_round is not None or self._state.is_coming:
            return False
        return outbox.now_s - session.since_s > outbox.settings.stateless_s

    def _why_no_state(self) -> str:
        network, completed = self._network, self._rounds.completed_round
        standby = RoundPhase.STANDBY.value
        heard = (network.steps.of(site) for site in network.links.up_sites())
        if any(step is not None and step.phase != standby for step in heard):
            return f"waiting for the state of round {completed}: it is fetched again from a site that trains"
        return f"no member that trains has the state of round {completed}; waiting for a worker that has it"
