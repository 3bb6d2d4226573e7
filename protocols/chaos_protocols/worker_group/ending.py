"""When a worker group is over, and who hears it: scripts that want no further step, all of them or some alone.

The scripts of a group make the same steps. One that wants none any more while another begins the next would be waited
for in vain, as long as its process lives, and nobody has its part: no plan helps, since the new process would want no
more steps either. Owned by the machine.
"""

from __future__ import annotations

from typing import Protocol

from chaos_protocols.worker_group.crew import Crew
from chaos_protocols.worker_group.member import RunMember
from chaos_protocols.worker_group.messages import SAME_STEPS, ControllerMessage, Finish
from chaos_protocols.worker_group.steps import CountedSteps
from chaos_protocols.worker_group.tags import Step


class EndingGroup(Protocol):
    """The worker group's machine."""

    member: RunMember | None

    @property
    def step(self) -> Step: ...

    @property
    def training(self) -> frozenset[int]:
        """Workers with layers under the plan that was ordered last."""

    def end(self, failed: str) -> None:
        """The group is over."""

    def note(self, kind: str, reason: str, **fields: object) -> None: ...

    def _tell(self, worker: int, message: ControllerMessage) -> None: ...


class Ending:
    """See the module."""

    def __init__(self, group: EndingGroup, crew: Crew, steps: CountedSteps) -> None:
        self._group, self._crew, self._steps = group, crew, steps
        self._after: dict[int, Step] = {}
        """How many steps the scripts have made that want no further one."""
        self._finish = Finish()

    def through(self, worker: int, step: Step) -> None:
        """Its script asks for no step after this many."""
        self._crew.through(worker)
        self._after[worker] = step
        self.look()

    def look(self) -> None:
        """The group ends where all that train are through, or where others have begun a step that one does not want."""
        group, crew = self._group, self._crew
        if not crew.done:
            return
        if (group.training & crew.present) - crew.done:
            self.apart(frozenset() if self._steps.collector is None else self._steps.collector.reduced)
        elif group.member is None or not group.member.complete():
            group.end("")

    def refuse(self, worker: int, reason: str) -> None:
        """One that came cannot take part, and its process ends. Where it was started in the place of another, the
        others go on without it."""
        group, crew = self._group, self._crew
        group._tell(worker, Finish(failed=reason))  # it is none of those that `tell` tells
        if crew.begun and crew.present and worker in crew.starting:
            group.note("worker-refused", f"{reason}. The others go on without it", worker=worker)
        else:
            group.end(f"worker {worker} cannot take part: {reason}")

    def waited_for(self, worker: int) -> None:
        """Another one has waited for this one, which has ended, in vain: the group ends if some have updated by the
        last step that this one wants, and so have begun the next."""
        if worker in self._after and self._steps.collector is not None:
            self.apart(self._steps.collector.updated)

    def apart(self, begun: frozenset[int]) -> bool:
        """Whether the group has ended since these have begun the present step, and another one wants none."""
        others = begun - self._crew.done
        for worker in sorted(self._after.keys() & self._group.training) if others else ():
            if self._after[worker] <= self._group.step:
                self._group.end(
                    f"the script of worker {worker} has ended its training after step {self._after[worker]}, that of "
                    f"worker {min(others)} goes on; {SAME_STEPS}"
                )
                return True
        return False

    def tell(self, failed: str) -> None:
        """All that are here hear how it ended."""
        self._finish = Finish(failed=failed[:4096])
        for worker in sorted(self._crew.present):
            self.tell_late(worker)

    def tell_late(self, worker: int) -> None:
        """One that says hello when it is over would wait for its order for ever."""
        self._group._tell(worker, self._finish)
