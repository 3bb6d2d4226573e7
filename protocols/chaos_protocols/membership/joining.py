"""How a site outside the run asks to be let in, and what it makes of the answer."""

from __future__ import annotations

from chaos_protocols.causes import Cause, Why, by_code
from chaos_protocols.membership.own import Membership
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.control import JoinAnswer, JoinRequest
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.worker import WorkerRefused


class Joining:
    """See the module. Driven by `Participation`."""

    def __init__(self, outbox: Outbox, membership: Membership, session: WorkerSession) -> None:
        self.asked = False
        """It did, once in this life: it may have been admitted without knowing."""
        self.answer: Why | None = None
        """Why it is not let in (yet), as it was last told."""
        self.refusal: Why | None = None
        """The answer that sent its worker away, for good."""
        self._refusal = ""
        """The last one that is in the history."""
        self._answered_in = 0
        """The scheduler's term of the last answer."""
        self._outbox = outbox
        self._membership = membership
        self._session = session

    def new_worker(self) -> None:
        """What was said about the one before does not count."""
        self.answer = self.refusal = None
        self._refusal = ""

    def request(
        self, neighbours: tuple[SiteId, ...], checkpoint: CheckpointFacts | None, lineage: int, unsaved_in: int
    ) -> JoinRequest:
        """What it says of itself; `checkpoint`: the newest that its worker could load from its disk; `lineage`: of the
        state that its worker has; `unsaved_in`: see `JoinRequest`."""
        facts, model = self._outbox.facts, self._session.model
        assert model is not None
        self.asked = True
        return JoinRequest(
            name=facts.name,
            address=facts.address,
            public_key=facts.public_key,
            incarnation=facts.incarnation,
            neighbours=neighbours,
            model=model,
            worker_round=self._session.round,
            checkpoint=checkpoint,
            versions=facts.versions,
            lineage=lineage,
            answered_in=self._answered_in,
            unsaved_in=unsaved_in,
        )

    def answered(self, answer: JoinAnswer) -> None:
        """A refusal is told once; one for good sends the worker away."""
        outbox, session = self._outbox, self._session
        if answer.incarnation != outbox.facts.incarnation:
            return
        self._answered_in = answer.term or self._answered_in
        self.answer = Cause.ADMISSION.told() if answer.accepted else Why(by_code(answer.cause), answer.reason)
        if answer.accepted or answer.reason == self._refusal:
            return
        self._refusal = answer.reason
        self.refusal = self.answer if answer.final else None
        outcome = "refused" if answer.final else ""
        outbox.record("scale-out", outbox.facts.name, "asked to join", outcome, None, answer.reason)
        if answer.final and session.present:
            session.ended()
            self._membership.worker_went()
            session.tell(WorkerRefused(reason=f"the run refuses this site: {answer.reason}"))
