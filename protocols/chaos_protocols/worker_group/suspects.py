"""What becomes of a worker that stands still: it is killed, or waited for where the state would be lost with it.

Suspicion is no proof. A worker that the system starves looks like one that hangs, and on a machine that is loaded many
times over all of them do at once. Who is killed wrongly costs a recovery, as long as others have its layers; with the
last one that has a layer the training's state would be gone for good, and standing for a while is cheaper than that.
Owned by the machine.
"""

from __future__ import annotations

from collections.abc import Set

from chaos_protocols.worker_group.events import KillWorker
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.port import Group
from chaos_protocols.worker_group.settings import LAST_HOLDER_S


class Suspects:
    """Those that were told to be killed, and those that are waited for."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.killed: set[int] = set()
        """Not gone yet. No plan comes into force with them, though they were ready: they would be taken for holders of
        its layers, and others would let go of theirs."""
        self._awaited: set[int] = set()

    def judge(self, worker: int, reason: str, over_s: float, holding: Plan | None, here: Set[int]) -> None:
        """It stands still, `over_s` seconds longer than it may. `holding`: the plan whose workers alone have the state,
        of whom these are `here`; None: nothing would be lost with any worker."""
        if worker in self.killed:
            return
        if over_s > LAST_HOLDER_S or holding is None or not self._is_last(worker, holding, here):
            self.killed.add(worker)
            self._group.note("worker-suspected", reason, worker=worker)
            self._group.do(KillWorker(worker=worker, reason=reason))
        elif worker not in self._awaited:
            self._awaited.add(worker)
            text = f"{reason}; it alone has the state of some layers, so it has {LAST_HOLDER_S:g} s more"
            self._group.note("worker-awaited", text, worker=worker)

    def spoke(self, worker: int) -> None:
        """It has said something."""
        if worker in self._awaited:
            self._awaited.discard(worker)
            self._group.note("worker-goes-on", "it has spoken again", worker=worker)

    def went(self, worker: int) -> None:
        """It is gone."""
        self.killed.discard(worker)
        self._awaited.discard(worker)

    def _is_last(self, worker: int, holding: Plan, here: Set[int]) -> bool:
        """Of those that stay; who was told to be killed does not."""
        return not holding.layers_of({worker}) <= holding.layers_of(here - self.killed - {worker})
