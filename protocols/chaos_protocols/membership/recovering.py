"""How an operator's word on the state that a run goes on from gets to the scheduler, and its answer back.

It is asked again until it is answered. Driven by `Participation`. Source: spec 13.7.
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
from chaos_protocols.wire.recovery import RecoverAnswer, RecoverRequest

RECOVER_VERSION = 4
"""Who speaks less does not know the message, and would close the link."""

RECOVER_TRIES_MAX = 40
"""Then the user hears that nobody answered."""


@dataclass(slots=True)
class PendingRecovery:
    """A user waits for the answer."""

    message: RecoverRequest
    asked_s: float
    tries: int = 0


class Recovering:
    """See the module."""

    def __init__(self, outbox: Outbox, network: Network, membership: Membership, client: SchedulerClient) -> None:
        self._outbox = outbox
        self._network = network
        self._membership = membership
        self._client = client
        self._pending: dict[str, PendingRecovery] = {}

    def requested(self, event: RecoverRequested) -> None:
        """An operator has decided."""
        message = RecoverRequest(request=event.request, origin=event.origin, round=event.round)
        if not self._membership.in_roster:
            self._answer(
                event.request, False, "this site is not in the run (yet): ask at one that is, see chaosd status"
            )
            return
        self._pending[event.request] = PendingRecovery(message, float("-inf"))
        self.ask()

    def ask(self) -> None:
        """At every beat."""
        outbox, client = self._outbox, self._client
        for request, pending in list(self._pending.items()):
            if outbox.now_s < pending.asked_s + outbox.settings.retry_s:
                continue
            pending.asked_s, pending.tries = outbox.now_s, pending.tries + 1
            scheduler = client.scheduler
            if pending.tries > RECOVER_TRIES_MAX:
                del self._pending[request]
                reason = "no scheduler has answered: whether it is carried out is not known here; see chaosd status"
                self._answer(request, False, reason)
            elif scheduler is None:
                continue
            elif self._network.versions.of(scheduler).newest < RECOVER_VERSION:
                del self._pending[request]
                reason = (
                    "the scheduler's site has an older chaos-train, which knows no such word; install this one there"
                )
                self._answer(request, False, reason)
            else:
                client.tell(pending.message)

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

    def _answer(self, request: str, done: bool, reason: str) -> None:
        self._outbox.emit([AnswerRequest(request=request, done=done, reason=reason)])
