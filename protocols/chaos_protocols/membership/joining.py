"""How a site outside the run asks to be let in, and what it makes of the answer."""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.causes import Cause, Why, by_code
from chaos_protocols.membership.own import Membership
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.state.worker_session import WorkerSession
from chaos_protocols.wire.control import JoinAnswer, JoinRequest
from chaos_protocols.wire.plans import CheckpointFacts

UNPROVEN_FIRST_S = 30.0
"""So long a site does not ask whom it could not follow if it were let in: twice as long each time."""
UNPROVEN_MAX_S = 3600.0


class Joining:
    """See the module. Driven by `Participation`."""

    def __init__(self, outbox: Outbox, replica: RosterReplica, membership: Membership, session: WorkerSession) -> None:
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
        self._asked_for_worker = False
        """It has asked with the model of the worker that is there."""
        self._asked_s, self._unheard_s = float("-inf"), float("inf")
        """When it asked last, and since when it is without an answer, though it asks again and again."""
        self._unproven: tuple[SiteId, float, float] | None = None
        """Who lets it in and cannot show who elected it; until when it is not asked, and for how long."""
        self._outbox = outbox
        self._replica = replica
        self._membership = membership
        self._session = session

    def new_worker(self) -> None:
        """What was said about the one before does not count."""
        self.answer = self.refusal = None
        self._refusal, self._asked_for_worker = "", False

    def request(
        self, neighbours: tuple[SiteId, ...], checkpoint: CheckpointFacts | None, lineage: int, unsaved_in: int
    ) -> JoinRequest:
        """What it says of itself; `checkpoint`: the newest that its worker could load from its disk; `lineage`: of the
        state that its worker has; `unsaved_in`: see `JoinRequest`."""
        facts, model = self._outbox.facts, self._session.model
        assert model is not None
        if self._outbox.now_s > self._asked_s + self._outbox.settings.waits_stale_s:
            self._unheard_s = self._outbox.now_s
        self._asked_s = self._outbox.now_s
        self.asked = self._asked_for_worker = True
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

    @property
    def is_unheard(self) -> bool:
        """It asks, and has had no answer for long: whoever gave the last one, or was named to be asked, is gone."""
        outbox = self._outbox
        return self._asked_s >= self._unheard_s and outbox.now_s - self._unheard_s > outbox.settings.waits_stale_s

    def unproven(self, leader: SiteId) -> None:
        """It has shown votes that elect nobody, as far as this site's journal knows who votes."""
        now_s = self._outbox.now_s
        before, until_s, wait_s = self._unproven or (leader, now_s, 0.0)
        if before != leader or now_s >= until_s:
            wait_s = min(2 * wait_s, UNPROVEN_MAX_S) if before == leader and wait_s else UNPROVEN_FIRST_S
            self._unproven = (leader, now_s + wait_s, wait_s)

    def is_in_vain(self, scheduler: SiteId | None) -> bool:
        """To be let in by it is: this site would follow nothing that it says, and be removed again."""
        if self._unproven is None or self._replica.raft.leader == scheduler:
            return False
        leader, until_s, _ = self._unproven
        return leader == scheduler and self._outbox.now_s < until_s

    def answered(self, answer: JoinAnswer) -> str:
        """A refusal is told once. Why the worker that is there has to be sent away, for good; empty: it need not."""
        outbox = self._outbox
        if answer.incarnation != outbox.facts.incarnation or self._is_about_a_former_worker(answer):
            return ""
        self._answered_in = answer.term or self._answered_in
        self._unheard_s = self._outbox.now_s
        self.answer = Cause.ADMISSION.told() if answer.accepted else Why(by_code(answer.cause), answer.reason)
        if answer.accepted or answer.reason == self._refusal:
            return ""
        self._refusal = answer.reason
        self.refusal = self.answer if answer.final else None
        outcome = "refused" if answer.final else ""
        outbox.record("scale-out", outbox.facts.name, "asked to join", outcome, None, answer.reason)
        sent_away = answer.final and self._session.present
        return f"the run refuses this site: {answer.reason}" if sent_away else ""

    def _is_about_a_former_worker(self, answer: JoinAnswer) -> bool:
        """It refuses a model, and that is not the present worker's: which has the run's own, as far as that is known
        here, or has not been asked for yet."""
        if by_code(answer.cause) is not Cause.OTHER_MODEL or not self._session.present:
            return False
        model = self._replica.roster.model
        if model is not None:
            return self._session.model == model
        return not (self._asked_for_worker or self._membership.in_roster)
