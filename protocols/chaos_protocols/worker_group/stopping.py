"""The end of a generation: who has answered the stop, who commits a step again, and with which step all go on."""

from __future__ import annotations

from collections.abc import Set

from chaos_protocols.worker_group.steps import CountedSteps
from chaos_protocols.worker_group.tags import Generation, Resume, StepPhase, StepTag, resume


class Stopping:
    """Of one generation; `asked`: the workers that were told to stop, by `due_s`."""

    def __init__(self, generation: Generation, asked: Set[int], *, due_s: float = 0.0) -> None:
        self._generation, self.due_s = generation, due_s
        self._asked = set(asked)
        self._tags: dict[int, StepTag] = {}
        self._again: set[int] = set()

    @property
    def missing(self) -> frozenset[int]:
        """Who has not answered yet, or has not committed again."""
        return frozenset(self._asked - self._tags.keys() | self._again)

    @property
    def complete(self) -> bool:
        """Whether nobody is missing; asked with every answer, so it must not take longer with more workers."""
        return len(self._tags) == len(self._asked) and not self._again

    def answered(self, worker: int, tag: StepTag) -> bool:
        """It has stopped. Whether nobody is missing now."""
        if worker in self._asked:
            self._tags[worker] = tag
        return self.complete

    def went(self, worker: int) -> None:
        """It is gone: nobody waits for it."""
        self._asked.discard(worker)
        self._tags.pop(worker, None)
        self._again.discard(worker)

    def committed_again(self, worker: int) -> None:
        """It has followed the others."""
        self._again.discard(worker)

    def outcome(
        self,
        holders: Set[int] | None,
        steps: CountedSteps,
        *,
        torn: bool = False,
    ) -> Resume | None:
        """With the last answer, the step to go on with and who must commit again first; asked once more when these
        have, it names nobody. None while somebody is missing. `holders`: who has state (None: all, and so does every
        process that is started: nobody need be left). `torn`: a state was being taken over and is going to be, once
        more: steps say nothing.

        Raises `TornStep`, also where nobody with state is left.
        """
        if not self.complete:
            return None
        if torn or (holders is None and not self._tags):
            return Resume(step=steps.step, again=frozenset())
        tags = {w: tag for w, tag in self._tags.items() if holders is None or w in holders}
        found = resume(tags, steps.committed, after=steps.step, shared=steps.shared)
        for worker in found.again:
            self._again.add(worker)
            self._tags[worker] = StepTag(generation=self._generation, step=found.step, phase=StepPhase.COMPUTE)
        return found
