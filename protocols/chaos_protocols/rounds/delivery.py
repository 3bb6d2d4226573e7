"""What this site's worker is told: the results, each once and in order, and when to train.

Results that come while the worker loads its state wait here; those that a checkpoint in the daemon's memory needs are
remembered in the log. Driven by `RoundMachine`.
"""

from __future__ import annotations

from collections import deque

from chaos_protocols.effects import DeliverResult, Effect, ToWorker
from chaos_protocols.state.result_log import RESULTS_QUEUED_MAX, Result, ResultLog, are_all, results_max
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
        self.damaged_round: int | None = None
        """The worker has a part of the state of this round, which counts for nothing but is brought forward by results
        (spec 11.18); None: it has none, or a whole one."""
        self._forward_to: int | None = None
        """As far as that; None: it is not known yet."""

    # -- the worker

    def bound(self, contribution_bytes: int) -> None:
        """A worker came: of this size is a result. It was told nothing yet."""
        self.unanswered = False
        self.round_bytes = contribution_bytes
        self.results_max = results_max(contribution_bytes)

    def came_damaged(self, round_number: int, completed: int) -> None:
        """A worker came that has a part of the state of `round_number`: keep what comes after it, if nothing is missing
        between."""
        later = deque(one for one in self.log.recent if round_number < one[0] <= completed)
        known = 0 < round_number <= completed and len(later) <= 1  # the newest result is always kept
        if known and are_all(later, round_number, completed) and not self.collecting:
            self.damaged_round, self.collecting, self._queue = round_number, True, later

    def forget_history(self) -> None:
        """The run goes on from elsewhere: what was kept belongs to another history."""
        self.log.forget()
        self.forget_part()

    @property
    def is_damaged(self) -> bool:
        """The worker brings a part of a state forward."""
        return self.damaged_round is not None

    @property
    def is_awaited(self) -> bool:
        """Results are: the worker has the state, or will get one that they follow."""
        return self.worker_round is not None or self.collecting

    def forget_part(self) -> None:
        """What the worker has in part is of no use, or has been."""
        self.damaged_round = self._forward_to = None

    def forget_worker(self) -> None:
        """It is gone, or its state must be replaced."""
        self.forget_part()
        self.worker_round = None
        self.active = self._training = self.updating = False
        self._delivering = None

    def collect(self, round_number: int) -> None:
        """From now on, for a worker whose state, of that round, is on its way; one that has a part of an earlier one
        gets what is between as well."""
        reached = self._delivering or self.damaged_round or 0
        follows = not self._queue or self._queue[0][0] == reached + 1
        if self.is_damaged and follows and reached <= round_number:
            self._forward_to = round_number
            return
        self._queue.clear()
        self.collecting = True
        self.forget_worker()

    def stop_collecting(self) -> None:
        """Nothing is kept for a worker."""
        self.forget_part()
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
        self.forget_part()
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
        if self.is_damaged:
            self.damaged_round = round_number
        else:
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

    @property
    def may_deliver(self) -> bool:
        """The worker applies nothing at the moment, and a result is here."""
        return self._delivering is None and bool(self._queue)

    def caught_up(self, completed: int) -> bool:
        """The worker has applied every result that is here."""
        return self.worker_round is not None and self.worker_round == completed

    def next(self, completed: int, digest: tuple[int, int] | None = None) -> tuple[list[Effect], str]:
        """The next result for the worker; or why there is none that it could apply (its state must be replaced).
        `digest`: what it is to say of its state when it has applied the newest one."""
        if self._delivering is not None:
            return [], ""
        if self.damaged_round is not None:
            return self._bring_forward(self.damaged_round, completed)
        if self.worker_round is None:
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

    def _bring_forward(self, part: int, completed: int) -> tuple[list[Effect], str]:
        """The next result for what the worker has in part, up to the round whose state is on its way."""
        following = part + 1
        if self._forward_to is None or following > self._forward_to or completed < following:
            return [], ""
        if not self._queue or self._queue[0][0] != following:
            return [], f"a part of the state is that of round {part}, and the result of {following} is not here"
        round_number, sites, weight = self._queue.popleft()
        self._delivering, self.unanswered = round_number, True
        return [DeliverResult(round=round_number, sites=sites, weight=weight)], ""

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
