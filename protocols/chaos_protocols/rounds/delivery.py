"""What this site's worker is told: the results, each once and in order, and when to train.

Results that come while the worker loads its state wait here; those that a checkpoint in the daemon's memory needs are
remembered in the log. Driven by `RoundMachine`.
"""

from __future__ import annotations

from collections import deque

from chaos_protocols.effects import DeliverResult, Effect, ToWorker
from chaos_protocols.state.result_log import RESULTS_QUEUED_MAX, Result, ResultLog, results_max
from chaos_protocols.wire.worker import TrainFrom


class ResultDelivery:
    """See the module."""

    def __init__(self) -> None:
        self.worker_round: int | None = None
        """The last round that the worker has applied; None: it has not the state (yet)."""
        self.active = False
        """The worker has the state and contributes."""
        self.updating = False
        """The worker applies a result."""
        self.collecting = False
        """Results are kept for a worker that has, or will get, the state."""
        self.results_max = RESULTS_QUEUED_MAX
        """So many may wait: as many as fit into memory."""
        self.round_bytes = 0
        """Of one result; 0: no worker has said it yet."""
        self.log = ResultLog()
        self._training = False
        self._queue: deque[Result] = deque()
        self._delivering: int | None = None
        self.unanswered = False
        """The worker was told to apply a result, and has not said that it has: its state is that of either round."""

    # -- the worker

    def bound(self, contribution_bytes: int) -> None:
        """A worker came: of this size is a result. It was told nothing yet."""
        self.unanswered = False
        self.round_bytes = contribution_bytes
        self.results_max = results_max(contribution_bytes)

    def forget_worker(self) -> None:
        """It is gone, or its state must be replaced."""
        self.worker_round = None
        self.active = self._training = self.updating = False
        self._delivering = None

    def collect(self) -> None:
        """From now on, for a worker whose state is on its way."""
        self._queue.clear()
        self.collecting = True
        self.forget_worker()

    def stop_collecting(self) -> None:
        """Nothing is kept for a worker."""
        self._queue.clear()
        self.collecting = False

    def begin(self, done: int) -> None:
        """The worker's own state counts as that of the end of `done`."""
        self.worker_round = done
        self.collecting = self.active = True
        self._queue.clear()
        self._training = False

    def replay_after(self, round_number: int, completed: int) -> bool:
        """A worker is about to load the state of `round_number` from memory; false: later results are not all here."""
        later = self.log.since(round_number, completed)
        if later is None:
            return False
        self._queue, self.collecting = later, True
        self.forget_worker()
        return True

    def activate(self) -> None:
        """It contributes from now on."""
        self.active = True

    def deactivate(self) -> None:
        """It applies results, but contributes nothing: not before it is told to train again."""
        self.active = self._training = False

    def update_started(self) -> None:
        """The worker applies a result."""
        self.updating = True

    def loaded(self, round_number: int) -> None:
        """The worker has the state of the end of `round_number`."""
        self.worker_round = round_number

    def trains(self) -> bool:
        """It was told to, and has not been told otherwise since."""
        return self._training

    def applied(self, round_number: int, completed: int) -> int | None:
        """The first round whose result is still needed; None: it was not told to apply this one."""
        self.updating = self.unanswered = False
        if self._delivering != round_number:
            return None
        self._delivering = None
        self.worker_round = round_number
        first_needed = self._queue[0][0] if self._queue else completed
        return self.log.first_kept(min(completed, first_needed))

    # -- results

    def add(self, result: Result) -> str:
        """A round is complete. Why the worker cannot get its result; empty: it can, or is not there."""
        self.log.add(result)
        if not self.collecting:
            return ""
        self._queue.append(result)
        return (
            f"more than {self.results_max} results wait for the worker" if len(self._queue) > self.results_max else ""
        )

    @property
    def nothing_waits(self) -> bool:
        return not self._queue and self._delivering is None

    def caught_up(self, completed: int) -> bool:
        """The worker has applied every result that is here."""
        return self.worker_round is not None and self.worker_round == completed

    def next(self, completed: int, digest: tuple[int, int] | None = None) -> tuple[list[Effect], str]:
        """The next result for the worker; or why there is none that it could apply (its state must be replaced).
        `digest`: what it is to say of its state when it has applied the newest one."""
        if self.worker_round is None or self._delivering is not None:
            return [], ""
        while self._queue and self._queue[0][0] <= self.worker_round:
            self._queue.popleft()
        if self._queue:
            round_number, sites, weight = self._queue[0]
            if round_number != self.worker_round + 1:
                return [], f"the worker is at round {self.worker_round}, the next result here is {round_number}"
            self._queue.popleft()
            self._delivering, self.unanswered = round_number, True
            asked = digest if round_number == completed else None
            return [DeliverResult(round=round_number, sites=sites, weight=weight, digest=asked)], ""
        if self.worker_round < completed:  # a state that was loaded twice: the results between were delivered before
            return [], f"the worker is at round {self.worker_round}, and the results since are delivered"
        return [], ""

    def may_train(self, completed: int) -> bool:
        """It has all results, and has not been told to train in the next round yet."""
        return self.active and not self._training and self._delivering is None and self.caught_up(completed)

    def ask_again(self) -> None:
        """What it gave to the round is of no use: it is told to train once more, in the same round."""
        self._training = False

    def train(self, round_number: int) -> list[Effect]:
        """From this round on."""
        self._training = True
        return [ToWorker(message=TrainFrom(round=round_number))]
