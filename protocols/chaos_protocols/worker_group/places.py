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
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.port import Group
from chaos_protocols.worker_group.uneven import FASTER_BY, Look, UnevenWorkers

ORDERED = "its operator asks for the best plan by the speeds of now"

ORDERED_BY = 0.02
"""Share of a step that a plan has to save that an operator asks for: who asks thinks that it is worth a stop."""

NOT_BEGUN = "the training has not begun: its first plan is not in force yet"


class PlacedGroup(Group, Protocol):
    """The worker group's machine."""

    phase: GroupPhase
    plan: Plan | None

    @property
    def training(self) -> frozenset[int]:
        """Workers with layers under the plan that was ordered last."""


class Places:
    """`most`: workers that a plan has at most."""

    def __init__(self, group: PlacedGroup, crew: Crew, most: int) -> None:
        self._group, self._crew, self._most = group, crew, most
        self._now_s, self._begun = 0.0, False
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
        self._speeds, self._looking = UnevenWorkers(), ""
        """Why a faster plan is worked out; empty: none is."""
        self._ordered = self._serving = False
        """An operator wants that, and was not answered; the plan that is asked for is what he wants."""

    @property
    def free(self) -> frozenset[int]:
        """Who is here, has no layers, and may get some."""
        return frozenset(self._crew.present - self._group.training - self.drained - self.leaving.keys())

    @property
    def speeds(self) -> Mapping[int, float]:
        """Of workers that were not like the others when a faster plan was last looked for."""
        return self._speeds.seen

    @property
    def tried_s(self) -> Mapping[int, float]:
        """When those of them that do not show what they are now are tried again."""
        able = self._able
        return {worker: due_s for worker, due_s in self._speeds.tried_s.items() if worker in able}

    @property
    def without(self) -> frozenset[int]:
        """Who is not to have layers under the next plan."""
        return frozenset(self._crew.present & (self.drained | self.leaving.keys()))

    # ---- what the machine tells

    def ask(self, held: frozenset[int], *, whole: bool) -> tuple[frozenset[int], frozenset[int]]:
        """The planner is asked: who is here beside those that the plan in force holds, and who gets no layers. `whole`:
        all layers have holders here, or come from elsewhere; otherwise nobody goes whose layers others lack."""
        out = self.drained | (self.leaving.keys() & self._planned if whole else set())
        self._serving = self.wanted == ORDERED and held <= self._crew.present
        self._offered, self.wanted = frozenset(self._crew.present), ""
        return self._offered - held - out, self._offered & out

    def begins(self, now_s: float) -> None:
        """A plan is in force."""
        self._now_s, self._begun, self._looking = now_s, True, ""
        self._speeds.begins(now_s)
        for worker in sorted(self.leaving.keys() - self._group.training):
            self._is_out(worker)
        if self._serving and self._group.plan is not None:
            self._replanned(done=True, reason=self._group.plan.reason)
        self.look()

    def look(self) -> None:
        """Another plan from the next step boundary on, if one is here that this one could do with, or is to go; it is
        worked out before anybody stops for it."""
        if self._group.phase is not GroupPhase.TRAINING or self._crew.done:
            return  # or the last step is done
        if self._is_due:
            self._looking = ""  # that plan is made by what was measured, too
            self._group.do(ev.PreparePlan(idle=self.free, drained=self.without))
        elif self._ordered and not self.wanted and not self._looking:
            anew = self._speeds.try_all(self._group.training, self._able, self._now_s)
            self._look_for(Look(ORDERED, anew), ORDERED_BY)

    def _measured(self, said: ev.SpeedsMeasured) -> None:
        """What workers' steps take now. Where one has become slow, or fast again, a plan for that is worked out, unless
        another one is anyway."""
        if self._group.phase is not GroupPhase.TRAINING:
            return
        self._speeds.take(said, self._now_s)
        if self._is_due or self.wanted or self._looking:
            return
        look = self._speeds.look(said, self._group.training, self._able, self._now_s)
        if look is not None:
            self._look_for(look, FASTER_BY)

    def _look_for(self, look: Look, faster_by: float) -> None:
        self._looking = look.reason
        wanted = ev.PreparePlan(idle=self.free, drained=self.without, faster_by=faster_by, anew=look.anew)
        self._group.do(wanted)

    def handle(self, event: ev.PlacesEvent, now_s: float) -> None:
        """What the planner has worked out, or an operator orders, or steps have shown."""
        self._now_s = now_s
        match event:
            case ev.WorkerOrdered():
                self._order(event)
            case ev.ReplanOrdered():
                self._ordered = True
                self.look() if self._begun else self._replanned(done=False, reason=NOT_BEGUN)
            case ev.SpeedsMeasured():
                self._measured(event)
            case ev.PlanPrepared() | ev.NoPlanPrepared():
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
            self._offered |= said.idle
            newest = [worker for worker in self.leaving if worker in said.drained][-1:]
            self._refuse(newest, said.reason)
            if newest or not asked_now or not self._is_due:
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
        why, self._looking = self._looking, ""
        if not why:
            return
        if isinstance(said, ev.NoPlanPrepared):
            self._group.note("plan-kept", f"{why}; {said.reason}", step=self._group.step)
            if why == ORDERED and asked_now:
                self._replanned(done=False, reason=said.reason)
        elif asked_now:
            self.wanted = why
        self.look()

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
        if self._ordered and worker not in self._group.training:
            self.look()
        return worker not in self.drained

    # ---- what an operator orders

    def _order(self, order: ev.WorkerOrdered) -> None:
        """Take a worker out, or let it in again; answered by `OrderAnswered`."""
        worker = order.worker
        if order.drain and worker in self.leaving:
            return  # it is under way, and its answer is for whoever has asked
        reason = self._refusal(worker, drain=order.drain)
        if reason:
            self._answer(worker, drain=order.drain, done=False, reason=reason)
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
            return NOT_BEGUN
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

    def _replanned(self, *, done: bool, reason: str) -> None:
        self._ordered = self._serving = False
        self._group.do(ev.ReplanAnswered(done=done, reason=reason))

    # ---- inside

    @property
    def _able(self) -> frozenset[int]:
        """Who may have layers."""
        return frozenset(self._crew.present - self.without)

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
