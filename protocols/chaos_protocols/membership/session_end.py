"""The end of a worker's session at its site: it is gone, it stood still for too long, or it is sent away.

Whatever the cause, all that counted on its state hears of it here, and the site is in standby until a worker comes.
Driven by `Participation`.
"""

from __future__ import annotations

from chaos_protocols.effects import EndWorker
from chaos_protocols.events import WorkerLost
from chaos_protocols.membership.absence import WorkerAbsence
from chaos_protocols.membership.joining import Joining
from chaos_protocols.membership.leaving import Leaving
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.reporting import Reporting
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.membership.skips import Skips
from chaos_protocols.outbox import Outbox
from chaos_protocols.state.machine import WorkerState
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.control import JoinAnswer
from chaos_protocols.wire.worker import WorkerRefused


class SessionEnd:
    """See the module. It has no state of its own."""

    def __init__(
        self,
        outbox: Outbox,
        membership: Membership,
        client: SchedulerClient,
        session: WorkerSession,
        state: WorkerState,
        joining: Joining,
        leaving: Leaving,
        absence: WorkerAbsence,
        skips: Skips,
        reporting: Reporting,
    ) -> None:
        self._outbox, self._membership, self._client, self._session = outbox, membership, client, session
        self._state, self._joining, self._leaving = state, joining, leaving
        self._absence, self._skips, self._reporting = absence, skips, reporting

    def lost(self, event: WorkerLost) -> None:
        """It is gone."""
        if self._session.present:
            self.over(event.reason)

    def look(self) -> None:
        """At every beat. The others wait for its contribution: who stands still for long counts as gone."""
        reason = self._session.why_gone()
        if reason:
            self._outbox.emit([EndWorker(reason=reason)])
            self.over(reason)

    def join_answered(self, answer: JoinAnswer) -> None:
        """The scheduler lets this site in, or not (yet). A refusal for good sends the worker away, and nothing else
        says then that it is gone."""
        refusal = self._joining.answered(answer)
        if refusal:
            self._session.tell(WorkerRefused(reason=refusal))
            self.over(refusal)

    def over(self, reason: str) -> None:
        """There is no worker any more."""
        self._session.ended()
        self._membership.worker_went()
        self._skips.worker_went()
        self._absence.gone()
        standby = "this site is in standby until a worker comes back"
        self._outbox.record("worker", self._outbox.facts.name, reason, "", None, standby)
        self._state.worker_lost(reason)
        self._client.tell(self._reporting.status())
        self._leaving.finish_if_done()
