"""A worker group in a world without sockets: the real machine, modelled workers, everything that may be late is late.

What happens next is drawn from a seed: a message arrives (in order on each line), a worker computes on, the planner
answers, a timer fires, a worker dies or hangs, a restarted one says hello. The workers of the model hold no tensors but
the number of updates that each of their layers has, and check for themselves what they are told.
"""

from __future__ import annotations

import random
from collections import deque

from tests.unit.protocols.worker_group.drawn_plan import LAYERS, drawn_plan
from tests.unit.protocols.worker_group.early_deaths import EarlyDeaths
from tests.unit.protocols.worker_group.group_bench import TOKEN, hello
from tests.unit.protocols.worker_group.modelled_worker import Worker
from tests.unit.protocols.worker_group.operated_world import OperatedWorld

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.machine import WorkerGroupMachine
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.plan import Plan
from chaos_protocols.worker_group.settings import LAST_HOLDER_S, GroupSettings
from chaos_protocols.worker_group.tags import StepPhase, StepTag

ACTIONS_MAX = 20_000


class World(OperatedWorld):
    """`faults`: how many workers die or hang in all; `orders`: how often an operator drains one, lets one in, or has
    the plan made anew; `uneven`: how often speeds are measured that are not those of before;
    `loaded`: none dies by itself and none hangs for good, they only get no processor. `copies`: how many holders of a
    layer keep its optimizer's state; 0: all. `early`: how many die on their way or before the training began."""

    skips = False
    """A step whose gradient is not finite is left out."""

    def __init__(
        self,
        seed: int,
        *,
        workers: int,
        spares: int,
        restarts: int,
        faults: int,
        steps: int,
        copies: int = 0,
        orders: int = 0,
        uneven: int = 0,
        loaded: bool = False,
        early: int = 0,
    ) -> None:
        self.draw = random.Random(seed)
        self.copies, self.loaded = copies, loaded
        settings = GroupSettings(
            token=TOKEN, workers=workers, spares=spares, restarts=restarts, skip_not_finite=self.skips
        )
        self.machine = WorkerGroupMachine(settings)
        self.steps, self.faults, self.orders, self.uneven = steps, faults, orders, uneven
        self.now_s = 0.0
        self.looks = self.replanned = 0
        """For a faster plan; and how often all stopped for one."""
        self.tried_s: dict[int, float] = {}
        """When workers that were slow were tried again last."""
        self.tries = 0
        self.ordered_now: set[tuple[int, bool] | None] = set()
        """Orders that were not answered yet."""
        self.out: set[int] = set()
        """Whom the machine has called drained, and not called back."""
        self.outcomes = {(kind, done): 0 for kind in ("drain", "undrain", "replan") for done in (True, False)}
        self.workers: dict[int, Worker] = {}
        self.gone: deque[int] = deque()
        self.early = EarlyDeaths(seed, early, places=workers + spares, restarts=restarts)
        self.doomed: set[int] = set()
        self.sacrificed = 0
        """Workers that were killed though nobody else had their layers."""
        self.asked: deque[ev.AskPlanner] = deque()
        self.preparing: deque[ev.PreparePlan] = deque()
        self.plans: dict[int, frozenset[int]] = {}
        """Generation to the workers that have layers in it."""
        self.made: dict[int, Plan] = {}
        self.in_force: dict[int, frozenset[int]] = {}
        """The layers of each worker."""
        self.kept: dict[int, frozenset[int]] = {}
        """Those of which it has the whole state."""
        self.timers: set[ev.GroupTimer] = set()
        self.ended: str | None = None
        self.committed: set[int] = set()
        self.feed(ev.Begin())

    def run(self) -> None:
        """Until the group has ended. Fails where nothing can happen any more."""
        for _ in range(ACTIONS_MAX):
            if self.ended is not None:
                return
            actions = self.actions()
            assert actions or self.timers, f"nothing can happen: {self.machine.phase}, {self.workers}"
            if self.faults and self.draw.random() < 0.02:
                self.strike()
            elif self.early.comes(self.workers.values(), forming=self.forming):
                if struck := self.early.strike(forming=self.forming):
                    self.die(struck)
            elif self.orders and self.draw.random() < 0.03:
                self.order()
            elif self.uneven and self.draw.random() < 0.03:
                self.measure()
            elif actions:
                name, number = self.draw.choice(actions)
                getattr(self, name)(number)
                self.check()
            else:
                self.fire()
        raise AssertionError(f"no end after {ACTIONS_MAX} actions: {self.machine.phase}, {self.workers}")

    def actions(self) -> list[tuple[str, int]]:
        found = [("answer", 0)] * bool(self.asked) + [("bury", 0)] * bool(self.gone)
        found += [("prepare", 0)] * bool(self.preparing)
        for number, worker in self.workers.items():
            if worker.outgoing:
                found.append(("hear", number))  # what it said before it died arrives
            if worker.alive and not worker.hanging:
                if worker.incoming:
                    found.append(("tell", number))
                if not worker.greeted:
                    found.append(("greet", number))
                if worker.trains and not (worker.holds or worker.done) and worker.phase is StepPhase.COMPUTE:
                    found.append(("compute", number))
            if worker.hanging and worker.alive:
                found += [("suspect", number)] + [("stir", number)] * worker.starved
        return found

    @property
    def forming(self) -> bool:
        return self.machine.phase is GroupPhase.FORMING

    # ---- what may happen

    def strike(self) -> None:
        able = [w for w in self.workers.values() if w.alive and w.greeted and not w.hanging and not w.done]
        if not able or self.forming:
            return
        self.faults -= 1
        chosen = self.draw.choice(able)
        if self.loaded or self.draw.random() < 0.25:
            chosen.hanging, chosen.over_s = True, 0.0
            chosen.starved = self.loaded or self.draw.random() < 0.5
        else:
            for _ in range(self.draw.randrange(len(chosen.outgoing) + 1)):
                chosen.outgoing.pop()  # not written any more
            self.die(chosen)

    def die(self, worker: Worker) -> None:
        worker.alive = False
        self.gone.append(worker.number)

    def bury(self, _: int) -> None:
        number = self.gone.popleft()
        while self.workers[number].outgoing:  # what was written arrives before the end
            self.hear(number)
        for killed in self.early.tellings(self.workers[number]):
            self.feed(ev.WorkerGone(worker=number, reason="killed", killed=killed))
            self.check()

    def suspect(self, number: int) -> None:
        worker = self.workers[number]
        self.feed(ev.WorkerSuspected(worker=number, reason="it hangs", over_s=worker.over_s))
        if not worker.starved:
            worker.over_s += LAST_HOLDER_S / 3

    def stir(self, number: int) -> None:
        """It gets a processor again."""
        self.workers[number].hanging = False

    def greet(self, number: int) -> None:
        self.workers[number].greeted = True
        self.workers[number].outgoing.append(self.hello(number))

    def hello(self, number: int) -> msg.GroupHello:
        return hello(number)

    def hear(self, number: int) -> None:
        self.feed(ev.WorkerSaid(worker=number, message=self.workers[number].outgoing.popleft()))

    def fire(self) -> None:
        timer = self.draw.choice(sorted(self.timers, key=lambda t: t.value))
        self.timers.discard(timer)
        self.feed(ev.GroupTimerFired(timer=timer))

    def answer(self, _: int) -> None:
        """The planner: every layer on some live worker, and its state from one that has it."""
        asked = self.asked.popleft()
        here = sorted(self.machine.present)
        held = set(range(LAYERS)) if not self.in_force else set().union(*(self.kept.get(w, ()) for w in here))
        able = [worker for worker in here if worker not in asked.drained]
        if here and not able:
            self.feed(ev.NoPlanMade(asked=asked.asked, reason="nobody may have layers", hopeless=False))
            return
        if not here or (held != set(range(LAYERS)) and not (asked.part and held)):
            self.feed(ev.NoPlanMade(asked=asked.asked, reason="layers are lost", hopeless=bool(here)))
            return
        if self.early.refuses(more=asked.more):
            self.feed(ev.NoPlanMade(asked=asked.asked, reason="more are to come", hopeless=False))
            return
        plan = self.made[asked.asked] = drawn_plan(self.draw, here, able, copies=self.copies, part=asked.part)
        self.feed(ev.PlanMade(asked=asked.asked, plan=plan))

    def prepare(self, _: int) -> None:
        wanted = self.preparing.popleft()
        if self.draw.random() < 0.3:
            self.feed(ev.NoPlanPrepared(idle=wanted.idle, drained=wanted.drained, reason="it does not fit"))
        else:
            self.feed(ev.PlanPrepared(idle=wanted.idle, drained=wanted.drained))

    # ---- workers

    def tell(self, number: int) -> None:
        worker = self.workers[number]
        message = worker.incoming.popleft()
        match message:
            case msg.PlanOrder(generation=generation):
                worker.order, worker.going, worker.contributed = message, False, False
                if worker.stopped < generation:
                    worker.outgoing.append(msg.PlanReady(generation=generation))
            case msg.Go():
                assert worker.order is not None
                share = worker.order.share
                wanted = range(share.first_layer, share.last_layer)
                if worker.joined and worker.updates:
                    assert worker.step == worker.order.step, "who goes on from a state of its own has that step's"
                worker.updates = dict.fromkeys(wanted, worker.order.step)
                worker.going, worker.phase, worker.contributed = True, StepPhase.COMPUTE, False
                worker.joined = True
            case msg.CommitStep(step=step):
                if worker.phase is StepPhase.REDUCED and worker.step == step:
                    self.apply(worker)
            case msg.Stop(generation=generation):
                worker.stopped, worker.contributed = generation, False
                tag = StepTag(generation=generation, step=worker.step, phase=worker.phase)
                worker.outgoing.append(msg.Stopped(generation=generation, tag=tag))
            case msg.Finish():
                worker.done = True

    def apply(self, worker: Worker, after: int | None = None) -> None:
        worker.updates = {layer: updates + 1 if after is None else after for layer, updates in worker.updates.items()}
        worker.phase, worker.contributed = StepPhase.COMPUTE, False
        worker.outgoing.append(msg.Stepped(generation=worker.generation, step=worker.step))
        if worker.step >= self.steps:
            self.through(worker)

    def through(self, worker: Worker) -> None:
        """It has done all steps, and says so."""
        worker.done, worker.going = True, False
        worker.outgoing.append(msg.Done(step=worker.step))
        self.die(worker)

    def compute(self, number: int) -> None:
        """Sums are there only when every member of the plan has given its part of this step in this generation."""
        worker = self.workers[number]
        worker.contributed = True
        members = [w for w in self.workers.values() if w.number in self.members(worker.generation)]
        together = [w for w in members if w.contributed and w.generation == worker.generation and w.step == worker.step]
        if len(together) == len(self.members(worker.generation)):
            order = worker.order
            assert order is not None
            worker.phase = StepPhase.REDUCED
            squares = tuple((layer, self.square(worker.step)) for layer in order.lowest)
            losses = ((0, 1.0), (1, 1.0)) if LAYERS - 1 in worker.updates else ()
            number, step, behind = worker.generation, worker.step, self.behind(worker.step)
            said = msg.Reduced(generation=number, step=step, squares=squares, losses=losses, behind=behind)
            worker.outgoing.append(said)
        elif any(not w.alive for w in members) and self.draw.random() < 0.3:
            worker.outgoing.append(msg.PeerLost(generation=worker.generation, text="reset"))

    def square(self, step: int) -> float:
        return 1.0  # of a layer's gradient

    def behind(self, step: int) -> float:
        return 0.0  # local steps in what a worker gives with this step

    def members(self, generation: int) -> frozenset[int]:
        return self.plans[generation]

    # ---- effects

    def feed(self, event: ev.Event) -> None:
        for effect in self.machine.handle(event, now_s=self.now_s):
            match effect:
                case ev.StartWorker(worker=number):
                    self.early.starts(undrained=isinstance(event, ev.WorkerOrdered))
                    self.workers[number] = Worker(number, dict.fromkeys(range(LAYERS), 0))
                case ev.KillWorker(worker=number):
                    self.killed(number)
                    if self.workers[number].alive:
                        self.die(self.workers[number])
                case ev.TellWorker(worker=number, message=message):
                    if isinstance(message, msg.PlanOrder):
                        assert self.machine.plan is not None
                        self.plans[message.generation] = self.machine.plan.workers
                        self.ordered(message.generation)
                    if isinstance(message, msg.CommitStep):
                        self.committed.add(message.step)
                    self.workers[number].incoming.append(message)
                case ev.AskPlanner(lost=lost, idle=idle):
                    if effect.afresh:
                        self.in_force = self.kept = {}
                    holders = {worker for worker, layers in self.in_force.items() if layers}
                    here = self.machine.present
                    assert lost == holders - here, "every loss since the plan came into force is told"
                    assert idle == (here - holders - effect.drained if self.in_force else frozenset())
                    assert self.out & here <= effect.drained <= here, "who was drained is not offered"
                    self.asked.append(effect)
                case ev.PreparePlan(idle=idle):
                    assert idle or effect.drained - self.out or effect.faster_by, (
                        "for nobody there is nothing to prepare"
                    )
                    self.looks += bool(effect.faster_by)
                    self.tried(effect)
                    self.preparing.append(effect)
                case ev.OrderAnswered(worker=number, drain=drain, done=done):
                    self.answered("drain" if drain else "undrain", (number, drain), done=done)
                case ev.ReplanAnswered(done=done):
                    self.answered("replan", None, done=done)
                case ev.NoteEvent(kind="worker-drained", fields=fields):
                    self.out.add(int(str(fields["worker"])))
                case ev.NoteEvent(kind="stop", reason=reason):
                    self.replanned += "of the speed of the others" in reason or "computes at" in reason
                case ev.NoteEvent(kind="worker-undrained", fields=fields):
                    self.out.discard(int(str(fields["worker"])))
                case ev.PutPlanInForce(asked=asked):
                    self.early.begins()
                    plan = self.made[asked]
                    self.in_force = {w: frozenset(range(s.first_layer, s.last_layer)) for w, s in plan.shares.items()}
                    self.kept = {w: plan.layers_of(frozenset({w})) for w in plan.shares}
                    assert not any(self.in_force.get(w) for w in self.out), "who is drained holds nothing"
                case ev.SetGroupTimer(timer=timer, after_s=after_s):
                    self.timers.discard(timer) if after_s is None else self.timers.add(timer)
                case ev.EndGroup(failed=failed):
                    on_their_way = any(w.alive and not w.greeted for w in self.workers.values())
                    assert not (on_their_way and "No further worker is on its way" in failed)
                    self.early.ends(failed)
                    self.ended = failed
                case _:
                    self.of_the_run(effect)

    def answered(self, kind: str, order: tuple[int, bool] | None, *, done: bool) -> None:
        self.outcomes[kind, done] += 1
        assert order in self.ordered_now, "an order is answered once"
        self.ordered_now.discard(order)

    def killed(self, number: int) -> None:
        """Whom the machine has killed had been standing still for long, or others have its layers; of a death that is
        not told yet it cannot know."""
        self.doomed.add(number)
        stay = [w for w in self.kept if self.workers[w].done or w in self.machine.present - self.doomed]
        others = frozenset().union(*(self.kept[w] for w in stay))
        lost = self.kept.get(number, frozenset()) - others
        self.sacrificed += bool(lost)
        assert not lost or self.replaced or self.workers[number].over_s > LAST_HOLDER_S, "the last holder was killed"

    @property
    def replaced(self) -> bool:
        """What no worker has comes from elsewhere."""
        return False

    def ordered(self, generation: int) -> None:
        """A plan was ordered."""

    def of_the_run(self, effect: ev.Effect) -> None:
        """What concerns other institutions: nothing in this world."""

    # ---- what always holds

    def check(self) -> None:
        steps = {w.step for w in self.workers.values() if w.alive and w.trains}
        assert not steps or max(steps) - min(steps) <= 1, "survivors differ by at most one update"
        applied = [w.step for w in self.workers.values() if w.updates]
        assert all(step - 1 in self.committed or step == 0 for step in applied), "nobody updates without a commit"
