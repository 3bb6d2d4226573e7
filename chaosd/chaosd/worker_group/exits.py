"""How the processes of workers ended, and what of it the last word of a training says beside why it could not go on.

A process that ends with exit code 0 looks well to everybody but the training: nobody has printed anything.
"""

from __future__ import annotations

from chaos_protocols.worker_group.messages import Done, EndsItself, GroupHello, Stepped, WorkerMessage
from chaosd.worker_group.processes import ENDED_WELL

NO_STEP = (
    "The script has made no step: it has to make its model with coordinator.parallelize(...) or replicate(...), and a "
    "step for each batch of coordinator.loader(...) (docs/site.md); a script of one process is started without "
    "`chaosd run`"
)

FAILED = "What its script has printed says why"

LEFT = (
    "the script, or a library of it, has ended the process in the middle of the training (os._exit): a script makes "
    "all steps of its loader, and an error that it raises is told here"
)


class Exits:
    """Of all workers of a training."""

    def __init__(self) -> None:
        self._how: dict[int, str] = {}
        """In the order in which they ended."""
        self._greeted: set[int] = set()
        self._through: set[int] = set()
        """Whose scripts wanted no further step."""
        self._lost: set[int] = set()
        """While the others went on."""
        self._itself: dict[int, str] = {}
        """Who has ended its process by itself, and what could not be mended there."""
        self._last = -1
        """Who was lost since a step has ended."""

    def heard(self, worker: int, message: WorkerMessage) -> None:
        """It was alive, and said this."""
        if isinstance(message, GroupHello):
            self._greeted.add(worker)
        elif isinstance(message, Done):
            self._through.add(worker)
        elif isinstance(message, EndsItself):
            self._itself[worker] = message.text
        elif isinstance(message, Stepped):
            self._last = -1

    def lost(self, worker: int) -> None:
        """The others, who train, hear that it is gone."""
        if worker not in self._lost:
            self._last = worker
        self._lost.add(worker)

    def ended(self, worker: int, how: str) -> None:
        """Its process has."""
        self._how[worker] = how

    def how(self, worker: int) -> str:
        """Empty: it has not, as far as is known."""
        return self._how.get(worker, "")

    def explained(self, failed: str) -> str:
        """Why the training could not go on, with what is to be known of a process that ended by itself."""
        worker, how = next(iter(self._how.items()), (-1, ""))
        if worker in self._lost - self._greeted and "exit code" in how:
            return f"{failed}. {NO_STEP if how.endswith(ENDED_WELL) else FAILED}"
        if text := self._itself.get(self._last):
            return f"{failed}. Worker {self._last} was lost last: {text}"
        for worker, how in self._how.items():
            if worker in self._lost & self._greeted - self._through and how.endswith(ENDED_WELL):
                return f"{failed}. Worker {worker}: {how}; {LEFT}"
        return failed
