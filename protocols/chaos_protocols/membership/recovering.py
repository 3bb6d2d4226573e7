"""How an operator's word on the state that a run goes on from gets to the scheduler, and its answer back.

It is asked again until it is answered, or the run goes on. Driven by `Participation`. Source: spec 13.7.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.agreement.commands import Command, SetRestorePoint
from chaos_protocols.effects import AnswerRequest
from chaos_protocols.events import RecoverRequested
from chaos_protocols.links.network import Network
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest

RECOVER_VERSION = 4
"""Who speaks less does not know the message, and would close the link."""

RECOVER_TRIES_MAX = 40
"""Then the user hears that nobody answered."""

NOT_KNOWN = "whether it is carried out is not known here; see chaosd status"


@dataclass(slots=True)
class PendingRecovery:
    """A user waits for the answer."""

    message: RecoverRequest
    lineage: int
    known_round: int
    """The history that he spoke of, and how far it had come, as far as was known here."""
    asked_s: float = float("-inf")
    tries: int = 0


class Recovering:
    """See the module."""

    def __init__(
        self, outbox: Outbox, network: Network, membership: Membership, client: SchedulerClient, rounds: RoundMachine
    ) -> None:
        self._outbox = outbox
        self._network = network
        self._membership = membership
        self._client = client
        self._rounds = rounds
        self._pending: dict[str, PendingRecovery] = {}

    def requested(self, event: RecoverRequested) -> None:
        """An operator has decided."""
        message = RecoverRequest(request=event.request, origin=event.origin, round=event.round)
        if not self._membership.in_roster:
            self._answer(
                event.request, False, "this site is not in the run (yet): ask at one that is, see chaosd status"
            )
            return
        lineage = self._membership.roster.restore_epoch
        self._pending[event.request] = PendingRecovery(message, lineage, self._rounds.known_round)
        self.ask()

    def ask(self) -> None:
        """At every beat."""
        outbox, client = self._outbox, self._client
        for request, pending in list(self._pending.items()):
            if over := self._why_over(pending):
                self._end(request, over)
                continue
            if outbox.now_s < pending.asked_s + outbox.settings.retry_s:
                continue
            pending.asked_s, pending.tries = outbox.now_s, pending.tries + 1
            scheduler = client.scheduler
            if pending.tries > RECOVER_TRIES_MAX:
                self._end(request, f"no scheduler has answered: {NOT_KNOWN}")
            elif scheduler is None:
                continue
            elif self._network.versions.of(scheduler).newest < RECOVER_VERSION:
                self._end(
                    request,
                    "the scheduler's site has an older chaos-train, which knows no such word; install this one there",
                )
            else:
                client.tell(pending.message)

    def _why_over(self, pending: PendingRecovery) -> str:
        """It is about a run that stands: carried out after that has gone on, it would undo what was done since. The
        scheduler may not have heard of it until then."""
        roster, known_round = self._membership.roster, self._rounds.known_round
        if not self._membership.in_roster:
            return f"this site is in the run no more: {NOT_KNOWN}"
        if roster.restore_epoch != pending.lineage and roster.restored_by != pending.message.request:
            return f"the run has gone on from another state since: {NOT_KNOWN}"
        if known_round > pending.known_round:
            return f"round {known_round} of the run was done since: {NOT_KNOWN}"
        return ""

    def answered(self, answer: RecoverAnswer) -> None:
        """The scheduler's word."""
        if self._pending.pop(answer.request, None) is not None:
            self._answer(answer.request, answer.done, answer.reason)

    def agreed(self, command: Command | None) -> None:
        """An entry carries one out: that is its answer. The scheduler's may be lost, and by the time that it is asked
        for again the roster may name a later word; it would be taken for a new one, over what was decided since."""
        if isinstance(command, SetRestorePoint) and self._pending.pop(command.operator, None) is not None:
            name = self._membership.roster.called(command.record.site)
            reason = f"the run goes on from the state of round {command.round} of {name}"
            self._answer(command.operator, True, reason)

    def _end(self, request: str, reason: str) -> None:
        """It is asked for no more."""
        del self._pending[request]
        self._answer(request, False, reason)

    def _answer(self, request: str, done: bool, reason: str) -> None:
        self._outbox.emit([AnswerRequest(request=request, done=done, reason=reason)])
