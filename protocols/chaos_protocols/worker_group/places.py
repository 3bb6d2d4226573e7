"""Who may have a place in a plan: who came, whom an operator took out, who is slow; and why another plan is wanted.

A worker is drained where its operator wants its device for something else: from a step boundary on it holds nothing,
and its process waits. It is there until then, so its layers move from it like those of any other, and nothing is lost,
also where nobody else had them. Nobody stops for a plan that is not worked out. An order never ends a training: where
no plan is to be had without those that were drained, they are taken back. Owned by the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group.crew import Crew
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.port import Group
from chaos_protocols.worker_group.uneven import UnevenWorkers


class PlacedGroup(Group, Protocol):
    """The worker group's machine."""

    phase: GroupPhase

    @property
    def training(self) -> frozenset[int]:
        """Workers with layers under the plan that was ordered last."""


class Places:
    """`most`: workers that a plan has at most."""

    def __init__(self, group: PlacedGroup, crew: Crew, most: int) -> None:
        self._group, self._crew, self._most = group, crew, most
        self._begun = False
        self._offered: frozenset[int] = frozenset()
        """Those that were here when the planner was asked last."""
        self.wanted = ""
        """Why another plan is wanted from the next step boundary on; empty: none is."""
        self.drained: set[int] = set()
        """Hold nothing on their operator's word; gone or not."""
        self.leaving: dict[int, None] = {}
        """Are to be drained, and may still have layers; in the order of the orders."""
        self._planned: frozenset[int] = frozenset()
        """Of those, the ones that the plan which was worked out last does without."""
        self._speeds, self._uneven = UnevenWorkers(), ""
        """Why a faster plan is worked out; empty: none is."""

    @property
    def free(self) -> frozenset[int]:
        """Who is here, has no layers, and may get some."""
        return frozenset(self._crew.present - self._group.training - self.drained - self.leaving.keys())

    @property
    def speeds(self) -> Mapping[int, float]:
        """Of workers that were not like the others when a faster plan was last looked for."""
        return self._speeds.seen

    @property
    def without(self) -> frozenset[int]:
        """Who is not to have layers under the next plan."""
        return frozenset(self._crew.present & (self.drained | self.leaving.keys()))

    # ---- what the machine tells

    def ask(self, held: frozenset[int], *, whole: bool) -> tuple[frozenset[int], frozenset[int]]:
        """The planner is asked: who is here beside those that the plan in force holds, and who gets no layers. `whole`:
        all layers have holders here, or come from elsewhere; otherwise nobody goes whose layers others lack."""
        out = self.drained | (self.leaving.keys() & self._planned if whole else set())
        self._offered, self.wanted = frozenset(self._crew.present), ""
        return self._offered - held - out, self._offered & out

    def begins(self) -> None:
        """A plan is in force."""
        self._begun, self._uneven = True, ""
        self._speeds.begins()
        for worker in sorted(self.leaving.keys() - self._group.training):
            self._is_out(worker)
        self.look()

    def look(self) -> None:
        """Another plan from the next step boundary on, if one is here that this one could do with, or is to go; it is
        worked out before anybody stops for it."""
        if self._group.phase is GroupPhase.TRAINING and self._is_due:
            self._uneven = ""  # that plan is made by what was measured, too
            self._group.do(ev.PreparePlan(idle=self.free, drained=self.without))

    def _measured(self, speeds: Mapping[int, float], now_s: float) -> None:
        """What workers' steps take now. Where one has become slow, or fast again, a plan for that is worked out, unless
        another one is anyway."""
        training = self._group.phase is GroupPhase.TRAINING
        if not training or self._is_due or self.wanted or self._uneven:
            return
        self._uneven = self._speeds.look(speeds, self._group.training, now_s)
        if self._uneven:
            self._group.do(ev.PreparePlan(idle=self.free, drained=self.without, faster=True))

    def handle(
        self, event: ev.PlanPrepared | ev.NoPlanPrepared | ev.WorkerOrdered | ev.SpeedsMeasured, now_s: float
    ) -> None:
        """What the planner has worked out, or an operator orders, or steps have shown."""
        if isinstance(event, ev.WorkerOrdered):
            self._ordered(event)
        elif isinstance(event, ev.SpeedsMeasured):
            self._measured(event.speeds, now_s)
        else:
            self._prepared(event)

    def _prepared(self, said: ev.PlanPrepared | ev.NoPlanPrepared) -> None:
        """The planner's answer to that: of the workers that are here by now, or of others."""
        asked_now = (said.idle, said.drained) == (self.free, self.without)
        if self._group.phase is not GroupPhase.TRAINING:
            return
        if not self._is_due:
            self._faster(said, asked_now=asked_now)
            return
        if isinstance(said, ev.NoPlanPrepared):
            newest = [worker for worker in self.leaving if worker in said.drained][-1:]
            self._refuse(newest, said.reason)
            if newest or not asked_now:
                self.look()
            return
        if asked_now and self.leaving:
            self._planned = frozenset(self.leaving)
            self.wanted = f"worker {min(self.leaving)} is drained"
        elif asked_now:
            self.wanted = f"worker {min(self._came())} is here"
        elif not self.wanted:
            self.look()

    def _faster(self, said: ev.PlanPrepared | ev.NoPlanPrepared, *, asked_now: bool) -> None:
        """The answer to whether there is a faster plan, if that was the question."""
        uneven, self._uneven = self._uneven, ""
        if not uneven:
            return
        if isinstance(said, ev.NoPlanPrepared):
            self._group.note("plan-kept", f"{uneven}; {said.reason}", step=self._group.step)
        elif asked_now:
            self.wanted = uneven

    def give_back(self, reason: str) -> bool:
        """There is no plan. Whether one may be had with those that were to do without layers."""
        if planned := [worker for worker in self.leaving if worker in self._planned]:
            self._refuse(planned, reason)
            return True
        back = self.drained & self._crew.present
        for worker in sorted(back):
            self.drained.discard(worker)
            self._group.note("worker-undrained", f"no plan can do without it: {reason}", worker=worker)
        return bool(back)

    def went(self, worker: int) -> bool:
        """It is gone. Whether another process may be started for it: not for one that was drained."""
        if worker in self.leaving:
            self.leaving.pop(worker, None)
            self._answer(worker, drain=True, done=False, reason=f"worker {worker} has ended before it was drained")
        return worker not in self.drained

    # ---- what an operator orders

    def _ordered(self, order: ev.WorkerOrdered) -> None:
        """Take a worker out, or let it in again; answered by `OrderAnswered`."""
        worker = order.worker
        reason = self._refusal(worker, drain=order.drain)
        if reason:
            self._answer(worker, drain=order.drain, done=False, reason=reason)
        elif order.drain and worker in self.leaving:
            return  # the answer is for whoever has asked
        elif not order.drain:
            self._let_in(worker)
        elif self._group.phase is GroupPhase.TRAINING and worker not in self._group.training:
            self._is_out(worker)
        else:
            self.leaving[worker] = None
            self.look()

    def _refusal(self, worker: int, *, drain: bool) -> str:
        here = self._crew.present | self._crew.starting
        out = self.drained | self.leaving.keys()
        if not self._begun:
            return "the training has not begun: its first plan is not in force yet"
        if drain and worker in self.drained:
            return f"worker {worker} is drained already"
        if worker not in here | out:
            numbers = ", ".join(map(str, sorted(here)))
            return f"there is no worker {worker}; here are: {numbers or 'none'}"
        if not drain and worker not in out:
            return f"worker {worker} is not drained"
        if drain and not self._crew.present - out - {worker}:
            return (
                f"worker {worker} is the only one that may have layers: nobody could take its place. Let another in "
                "(chaosd workers undrain), or end the training"
            )
        return ""

    def _let_in(self, worker: int) -> None:
        if worker in self.leaving:
            self.leaving.pop(worker, None)
            self.wanted = ""
            self._answer(worker, drain=True, done=False, reason=f"worker {worker} was let in again before that")
            self._answer(worker, drain=False, done=True, reason=f"worker {worker} keeps its layers")
            self.look()
            return
        self.drained.discard(worker)
        text = f"worker {worker} may get layers again: when a step ends, if the planner has a place for it"
        if worker not in self._crew.present | self._crew.starting:
            new = self._crew.start()
            self._group.do(ev.StartWorker(worker=new))
            text = f"the process of worker {worker} is gone; worker {new} is started in its place"
        self._group.note("worker-undrained", "its operator lets it in again", worker=worker)
        self._answer(worker, drain=False, done=True, reason=text)
        self._offered -= {worker}
        self.look()

    # ---- inside

    @property
    def _is_due(self) -> bool:
        """Somebody came for whom there is room, or is to go."""
        return bool(self.leaving) or (bool(self._came()) and len(self._group.training) < self._most)

    def _came(self) -> frozenset[int]:
        """Who came since the planner was asked. Whom it had and gave no place it has no use for: to ask again after
        every step would cost each of them a stop."""
        return frozenset(self._crew.present - self._offered - self.drained - self.leaving.keys())

    def _is_out(self, worker: int) -> None:
        self.leaving.pop(worker, None)
        self.drained.add(worker)
        text = "it holds no layers, and gets none until it is let in again"
        self._group.note("worker-drained", text, worker=worker, step=self._group.step)
        self._answer(worker, drain=True, done=True, reason=f"worker {worker} is drained: {text}")

    def _refuse(self, workers: Sequence[int], reason: str) -> None:
        for worker in workers:
            self.leaving.pop(worker, None)
            text = f"no plan can do without worker {worker}: {reason}"
            self._group.note("drain-refused", text, worker=worker, step=self._group.step)
            self._answer(worker, drain=True, done=False, reason=text)

    def _answer(self, worker: int, *, drain: bool, done: bool, reason: str) -> None:
        self._group.do(ev.OrderAnswered(worker=worker, drain=drain, done=done, reason=reason))
