"""A worker group on a bench: the machine with scripted workers and a planner that gives every worker one layer."""

from __future__ import annotations

from typing import Any, TypeVar

from chaos_protocols.streams import Share
from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.machine import WorkerGroupMachine
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.settings import GroupSettings
from chaos_protocols.worker_group.tags import StepPhase, StepTag

TOKEN = "t" * 64
LAYERS = 2
Kind = TypeVar("Kind")


def report(name: str) -> msg.LayerReport:
    return msg.LayerReport(
        name=name,
        forward_s=0.001,
        backward_s=0.002,
        optimizer_step_s=0.0,
        parameter_bytes=100,
        optimizer_bytes=200,
        gradient_bytes=100,
        activation_bytes=10,
        output_bytes=10,
    )


def hello(worker: int, **changes: Any) -> msg.GroupHello:
    fields: dict[str, Any] = {
        "version": msg.VERSION,
        "token": TOKEN,
        "worker": worker,
        "torch": "2",
        "model": "ab",
        "layers": tuple(report(str(layer)) for layer in range(LAYERS)),
        "micro_batches": 2,
        "micro_batch_size": 4,
        "memory_bytes": 1 << 30,
    }
    return msg.GroupHello(**{**fields, **changes})


class GroupBench:
    """Workers 0 and 1 hold layers 0 and 1, workers 2 and 3 as well: two pipelines of two stages."""

    def __init__(
        self,
        *,
        workers: int = 4,
        spares: int = 0,
        restarts: int = 0,
        skip: bool = False,
        failure_timeout_s: float = 1.0,
    ) -> None:
        """`skip`: steps whose gradient is not finite are left out."""
        settings = GroupSettings(
            token=TOKEN,
            workers=workers,
            spares=spares,
            restarts=restarts,
            skip_not_finite=skip,
            failure_timeout_s=failure_timeout_s,
        )
        self.machine = WorkerGroupMachine(settings)
        self.now_s = 0.0
        self.effects: list[ev.Effect] = []
        self.asked: ev.AskPlanner | None = None
        """The question that was asked last."""
        self.feed(ev.Begin())

    def feed(self, event: ev.Event) -> list[ev.Effect]:
        found = self.machine.handle(event, now_s=self.now_s)
        self.effects += found
        self.asked = next((e for e in reversed(found) if isinstance(e, ev.AskPlanner)), self.asked)
        return found

    def say(self, worker: int, message: msg.WorkerMessage) -> list[ev.Effect]:
        return self.feed(ev.WorkerSaid(worker=worker, message=message))

    def lose(self, worker: int) -> list[ev.Effect]:
        return self.feed(ev.WorkerGone(worker=worker, reason="killed"))

    def taken(self, kind: type[Kind]) -> list[Kind]:
        """Effects of a kind since this was asked last."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def told(self, kind: type[Kind]) -> dict[int, Kind]:
        """Messages of a kind since this was asked last, by worker."""
        found = {
            e.worker: e.message for e in self.effects if isinstance(e, ev.TellWorker) and isinstance(e.message, kind)
        }
        self.effects = [e for e in self.effects if not (isinstance(e, ev.TellWorker) and isinstance(e.message, kind))]
        return found

    @property
    def phase(self) -> GroupPhase:
        return self.machine.phase

    # ---- further ahead at once

    def form(self) -> None:
        for effect in self.taken(ev.StartWorker):
            self.say(effect.worker, hello(effect.worker))

    def plan(self, holders: tuple[int, ...] | None = None) -> None:
        """Answer the planner's question: every other worker holds layer 0, the others layer 1."""
        asked = self.asked
        assert asked is not None
        here = sorted(self.machine.present)
        chosen = tuple(here[:4]) if holders is None else holders
        shares = {w: Share(first_layer=w % 2, last_layer=w % 2 + 1) if w in chosen else Share() for w in here}
        self.feed(ev.PlanMade(asked=asked.asked, plan=Plan(policy="test", reason="because", shares=shares)))

    def ready(self) -> None:
        for worker in sorted(self.machine.present):
            self.say(worker, msg.PlanReady(generation=self.machine.generation))

    def train(self) -> None:
        self.form()
        self.plan()
        self.ready()
        assert self.phase is GroupPhase.TRAINING

    def reduce(self, *workers: int) -> None:
        step = self.machine.step
        for worker in workers:
            message = msg.Reduced(
                generation=self.machine.generation,
                step=step,
                squares=((worker % 2, 4.0),),
                losses=((0, 1.0), (1, 3.0)) if worker % 2 else (),
            )
            self.say(worker, message)

    def stepped(self, *workers: int) -> None:
        for worker in workers:
            self.say(worker, msg.Stepped(generation=self.machine.generation, step=self.machine.step))

    def stopped(self, worker: int, step: int, phase: StepPhase = StepPhase.COMPUTE) -> None:
        generation = self.machine.generation
        tag = StepTag(generation=generation, step=step, phase=phase)
        self.say(worker, msg.Stopped(generation=generation, tag=tag))


def ended(bench: GroupBench) -> str:
    """It has ended, and with which word."""
    (end,) = bench.taken(ev.EndGroup)
    assert bench.phase is GroupPhase.ENDED
    return end.failed
