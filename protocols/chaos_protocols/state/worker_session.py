"""This site's worker as its machine sees it: whether one is there, since when, with which model and state.

A session begins with a hello and ends with a loss. It says nothing of processes: whoever brings the facts may have one
to look after or several, of which one speaks.
"""

from __future__ import annotations

from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.effects import ToWorker
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.state.worker_region import WorkerRegion
from chaos_protocols.wire.worker import DaemonMessage, LoadState, TakeSnapshot


class WorkerSession:
    """See the module."""

    def __init__(self, outbox: Outbox) -> None:
        self.model: ModelFacts | None = None
        """What the worker trains; None: no worker is there."""
        self.round = 0
        """Whose end its state belongs to; 0: it is fresh, or its state is half overwritten, or not whole."""
        self.in_part = False
        """It has lost a part of its state, and has not loaded a whole one since."""
        self.since_s = outbox.now_s
        """When the last session began."""
        self.region = WorkerRegion()
        """Of its arena, the one in which states lie."""
        self._outbox = outbox
        self._stopped: tuple[float, str] | None = None
        """Since when it stands still, by `Outbox.awake_s`, and what was seen; None: it runs."""

    @property
    def present(self) -> bool:
        """A worker is there."""
        return self.model is not None

    @property
    def spec_digest(self) -> str:
        """Of the arrays of its state; empty: no worker is there."""
        return self.model.spec_digest if self.model is not None else ""

    def tell(self, message: DaemonMessage) -> None:
        """Something for the worker, which is there."""
        self._outbox.emit([ToWorker(message=message)])

    def began(self, model: ModelFacts, round_number: int, *, in_part: bool = False) -> None:
        """A worker said hello."""
        self.model, self.round, self.in_part = model, round_number, in_part
        self.since_s = self._outbox.now_s
        self._stopped = None
        self.region.began()

    def ended(self) -> None:
        """It is gone, or was sent away."""
        self.model = self._stopped = None

    def stopped(self, reason: str) -> None:
        """It stands still; `reason`: what was seen."""
        if self.present and self._stopped is None:
            self._stopped = (self._outbox.awake_s, reason)

    def continued(self) -> None:
        """It goes on."""
        self._stopped = None

    def why_gone(self) -> str:
        """What was seen of a worker that has stood still for so long that it counts as gone; empty: it does not."""
        if self._stopped is None:
            return ""
        since_s, reason = self._stopped
        return reason if self._outbox.awake_s - since_s >= self._outbox.settings.worker_stopped_s else ""

    def load(self, round_number: int) -> None:
        """A state lies ready for it. What it has is half overwritten until it says that it has loaded."""
        self.round = 0
        self.region.to_load(round_number)
        self.tell(LoadState(round=round_number))

    def copy(self, round_number: int, *, alone: bool = False) -> None:
        """It is to copy its state of the end of that round into the region; `alone`: and none that it was asked for
        before."""
        self.region.to_copy(round_number, alone=alone)
        self.tell(TakeSnapshot(round=round_number, alone=alone))

    def gives_region(self) -> bool:
        """Whether the region is the daemon's to write into. If not, it will be when the worker has answered, which it
        is asked for here where it may have no reason to."""
        question = self.region.question()
        if question is not None:
            self.copy(question.round, alone=question.alone)
        return self.region.free

    def has(self, round_number: int) -> None:
        """Its state is that of the end of this round, and whole."""
        self.round, self.in_part = round_number, False


def is_unsure(rounds: RoundMachine, session: WorkerSession) -> bool:
    """Which state the worker has is known when it has answered: it was given a result, or told to load a state."""
    return rounds.delivery.unanswered or session.region.loads
