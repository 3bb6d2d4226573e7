"""The random world of a worker group, with a daemon: the group is one member of a run of institutions.

The daemon of the model does what one may do, in any order that it may choose: it lets train, brings a state or results,
asks for snapshots, goes on without this site while that has no state, and goes away and comes back. It checks what it
is told against what lies in the shared memory, which is modelled as how many updates each layer there has.
"""

from __future__ import annotations

import random

from tests.unit.protocols.worker_group.drawn_plan import LAYERS
from tests.unit.protocols.worker_group.group_bench import hello
from tests.unit.protocols.worker_group.group_world import Worker, World

from chaos_protocols.wire import worker as wire
from chaos_protocols.wire.state_spec import Item, contribution_spec, state_spec
from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.member_phases import Kept
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.tags import StepPhase

SPECS = msg.RunSpecs(
    state=state_spec([Item("layer", "float32", (4,))]), contribution=contribution_spec(0, 4), weight=16.0
)


class RunWorld(World):
    """`outages`: how often the daemon goes away. `others`: whether there are other sites, which have the state.
    `every`: local steps of a round; `steps` are rounds here. `empties`: how often nothing finite comes of what the site
    computes for one."""

    skips = True

    def __init__(
        self,
        seed: int,
        *,
        outages: int,
        others: bool,
        clipped: bool,
        steps: int,
        every: int = 0,
        empties: int = 0,
        **of_the_group: int,
    ) -> None:
        self.outages, self.others, self.clipped = outages, others, clipped
        self.empties, self.emptying = empties, random.Random(f"emptying/{seed}")
        self.empty: dict[int, bool] = {}
        """Of a step that gives to a round: whether it has nothing to give."""
        self.skipped: int | None = None
        """The round to which this site has given nothing."""
        self.every, self.rounds, self.last = every, RoundSteps(every), steps
        self.alone = 0
        """Local steps that were committed."""
        self.ended_early = 0
        """Phases that a result of the others has ended."""
        self.round = 0
        """Of the run: the last one that is decided."""
        self.active = False
        """The daemon waits for this site's part of the next round."""
        self.given: int | None = None
        self.has: int | None = None
        """The round of the state that the daemon believes its worker to have; None: none."""
        self.damaged: int | None = None
        """The round of what its worker has in part, as far as the daemon brings that forward; None: it does not."""
        self.loading: int | None = None
        self.applying: int | None = None
        self.asked_for: set[int] = set()
        self.connected = self.greeted = self.leaving = False
        self.knocks = 0
        self.shared = dict.fromkeys(range(LAYERS), -1)
        self.contribution = dict.fromkeys(range(LAYERS), -1)
        self.result = 0
        self.rescued = self.kept_last = 0
        self.came = False
        """The state lies where it was brought from; no result was applied to it since."""
        self.sound: dict[int, bool] = {}
        """Of a generation: whether a worker that comes into its plan gets a state from its peers."""
        self.lingering = random.Random(f"lingering/{seed}")
        self.late = False
        """Its part was waited for too long, and it has said nothing since: it is not asked to train."""
        self.overtaken, self.crossing = 0, False
        """How often; and whether what it says may have crossed that."""
        self.overtaking = random.Random(f"overtaking/{seed}")
        super().__init__(seed, steps=self.rounds.begin(steps), **of_the_group)

    def hello(self, number: int) -> msg.GroupHello:
        return hello(number, run=SPECS, clip_norm=1.0 if self.clipped else None, every=self.every)

    def feed(self, event: ev.Event) -> None:
        super().feed(event)
        self.rounds = self.machine.rounds
        self.steps = self.rounds.begin(self.last)

    def rounds_of(self, worker: Worker) -> RoundSteps:
        return RoundSteps(self.every, worker.vain)  # as it counts them

    def behind(self, step: int) -> float:
        return float(self.every) if self.rounds.gives(step) and not self.is_empty(step) else 0.0

    def square(self, step: int) -> float:
        return float("inf") if not self.every and self.is_empty(step) else 1.0

    def is_empty(self, step: int) -> bool:
        if self.empties and step not in self.empty:
            self.empty[step] = self.emptying.random() < 0.3
            self.empties -= self.empty[step]
        return self.empty.get(step, False)

    # ---- what the daemon may do

    def actions(self) -> list[tuple[str, int]]:
        found = super().actions()
        if self.knocks:
            found.append(("connect", 0))
        if not self.greeted:
            return found
        if self.leaving:
            waits = self.has in self.asked_for and self.lingering.random() < 0.95
            idle = self.applying is None and self.has is not None and self.has not in self.asked_for
            return found + [("dismiss", 0)] * (not waits) + [("ask_once_more", 0)] * (3 * idle)
        idle = self.loading is None and self.applying is None
        if idle and self.damaged is not None:
            found += [("bring_part", 0)] * (self.damaged < self.round) + [("copy_part", 0)] * (not self.asked_for)
            if self.others and self.round < self.last - 1:
                found.append(("go_on", 0))
        if idle and self.has is None and not self.asked_for:
            found.append(("load", 0))
        elif idle and self.has is not None and self.has < self.round:
            found.append(("bring", 0))
        elif idle and not self.active:
            found += [("train", 0), ("snapshot", 0)] * (not self.late)
            if self.others and self.round < self.last - 1:
                found.append(("go_on", 0))
        elif idle and self.skipped is not None:
            found += [("ask_again", 0), ("snapshot", 0)] + [("decide_without", 0)] * self.others
        elif idle and self.given is not None:
            found += [("decide", 0), ("snapshot", 0)]
        elif idle:
            found += [("snapshot", 0)] * (not self.asked_for)
            found += [("overtake", 0)] * (self.overtaking.random() < 0.02)
        if self.outages and self.draw.random() < 0.02:
            found.append(("vanish", 0))
        return found

    def connect(self, _: int) -> None:
        self.knocks, self.connected = 0, True
        self.feed(ev.RunFound())

    def say(self, message: wire.DaemonMessage) -> None:
        self.feed(ev.RunSaid(message=message))

    def load(self, _: int) -> None:
        self.loading, self.damaged, self.came = self.round, None, True
        self.shared = dict.fromkeys(range(LAYERS), self.round)
        self.asked_for.clear()
        self.say(wire.LoadState(round=self.round))

    def train(self, _: int) -> None:
        self.active = True
        self.say(wire.TrainFrom(round=self.round + 1))

    def go_on(self, _: int) -> None:
        """The others do a round without this site."""
        self.round += 1

    def overtake(self, _: int) -> None:
        """It was waited for too long: the others may do the round without it, or have gone."""
        self.active, self.late, self.crossing = False, True, True
        self.overtaken += 1
        self.say(wire.FallenBehind(round=self.round + 1))

    def decide(self, _: int) -> None:
        assert self.given == self.round + 1
        self.round, self.given = self.round + 1, None
        self.bring(0)

    def decide_without(self, _: int) -> None:
        self.round, self.skipped = self.round + 1, None
        self.bring(0)

    def ask_again(self, _: int) -> None:
        """Nobody has given anything, or a site that had is gone."""
        self.skipped = None
        self.say(wire.TrainFrom(round=self.round + 1))

    def bring(self, _: int) -> None:
        assert self.has is not None
        self.applying = self.result = self.has + 1
        void = self.draw.random() < 0.05
        self.say(wire.ApplyResult(round=self.applying, sites=1 + self.others, weight=32.0, void=void))

    def bring_part(self, _: int) -> None:
        """A result, for a worker that has a part of a state."""
        assert self.damaged is not None
        self.applying = self.result = self.damaged + 1
        self.say(wire.ApplyResult(round=self.applying, sites=1 + self.others, weight=32.0))

    def copy_part(self, _: int) -> None:
        assert self.damaged is not None
        self.asked_for.add(self.damaged)
        self.say(wire.TakeSnapshot(round=self.damaged))

    def snapshot(self, _: int) -> None:
        if self.asked_for or self.has is None:
            return
        wanted = self.has + self.draw.randrange(2)
        self.asked_for.add(wanted)
        self.say(wire.TakeSnapshot(round=wanted))

    def ask_once_more(self, _: int) -> None:
        """For its last checkpoint."""
        assert self.has is not None
        self.asked_for = {self.has}
        self.say(wire.TakeSnapshot(round=self.has, alone=True))

    def vanish(self, _: int) -> None:
        self.outages -= 1
        self.forget()
        self.feed(ev.RunLost(reason="gone"))

    def dismiss(self, _: int) -> None:
        self.greeted = False
        self.say(wire.Dismissed(last_round=self.round, graceful=True, reason="left the run"))

    def forget(self) -> None:
        self.connected = self.greeted = self.active = self.leaving = self.late = self.crossing = False
        self.given = self.skipped = self.has = self.damaged = self.loading = self.applying = None
        self.asked_for.clear()

    # ---- what the group tells it

    def of_the_run(self, effect: ev.Effect) -> None:
        match effect:
            case ev.JoinRun():
                self.forget()
                self.knocks = 1
            case ev.GreetRun(kept=Kept.PART, reached=reached):
                assert self.connected and not self.greeted and reached <= self.round
                self.greeted = True
                self.damaged = reached if self.draw.random() < 0.8 else None
            case ev.GreetRun(round=round):
                assert self.connected and not self.greeted
                self.greeted = True
                behind = self.round - round
                assert behind >= 0, "no state is newer than the run"
                known = round > 0 or (self.round == 0 and not self.rescued)
                self.has = round if known and (behind == 0 or self.draw.random() < 0.5) else None
            case ev.TellRun(message=message):
                assert self.greeted or self.ended is not None, message
                self.told(message)

    def told(self, message: wire.WorkerMessage) -> None:
        self.late = False
        match message:
            case wire.RoundContributed(round=round) if self.crossing and not self.active:
                assert round <= self.round + 1, "it is given once more when it is asked for, if that round is to come"
            case wire.RoundContributed(round=round, weight=weight):
                assert self.active and round == self.round + 1 and weight == 16.0
                step = self.rounds.begin(round) - 1
                assert set(self.contribution.values()) == {step}, "all layers' parts of this round lie there"
                self.given = round
            case wire.RoundSkipped(round=round):
                assert self.crossing or (self.active and round == self.round + 1)
                self.skipped = round if self.active else None
            case wire.UpdateStarted(round=round):
                assert round == self.applying
            case wire.ResultApplied(round=round):
                assert round == self.applying, "each result is applied once, in order"
                self.applying, self.came = None, False
                if self.damaged is None:
                    self.has = round
                else:
                    self.damaged = round
            case wire.SnapshotTaken(round=round):
                assert set(self.shared.values()) == {round}, "every layer was written, and by one that has this state"
                self.asked_for.discard(round)
                self.kept_last += self.leaving
            case wire.SnapshotMissed(round=round):
                self.asked_for.discard(round)
            case wire.StateLoaded(round=round):
                assert round == self.loading
                self.has, self.loading = round, None
                self.rescued += 1
            case wire.WorkerLeaveRequest():
                self.leaving = True
            case wire.WorkerResumed():
                self.crossing = False
            case _:
                raise AssertionError(message)

    # ---- workers

    @property
    def replaced(self) -> bool:
        member = self.machine.member
        return self.others or self.came or (member is not None and member.awaits_state)

    def through(self, worker: Worker) -> None:
        """It waits until the group is over, and copies its state once more; or it is killed meanwhile."""
        worker.done = True
        worker.outgoing.append(msg.Done(step=worker.step))
        if self.lingering.random() < 0.3:
            worker.going = False
            self.die(worker)

    def compute(self, number: int) -> None:
        worker = self.workers[number]
        assert worker.whole and not worker.part, "nobody computes with a state that is none"
        super().compute(number)
        gives = self.rounds.gives(worker.step)
        if worker.phase is StepPhase.REDUCED and worker.order is not None and gives:
            for layer in worker.order.lowest:
                self.contribution[layer] = worker.step

    def tell(self, number: int) -> None:
        worker = self.workers[number]
        message = worker.incoming[0]
        if worker.done and not isinstance(message, msg.WriteState):
            worker.incoming.popleft()
            if isinstance(message, msg.Finish):
                self.die(worker)
            return
        if isinstance(message, msg.PlanOrder):
            worker.vain = message.vain
        if isinstance(message, msg.Go):
            worker.joined = worker.joined and worker.whole and self.sound[worker.generation]
        if not isinstance(message, msg.CommitStep | msg.Compute | msg.WriteState | msg.TakeState | msg.MeasureResult):
            super().tell(number)
            if isinstance(message, msg.Go):
                worker.holds = message.hold
                worker.whole = worker.joined or self.sound[worker.generation]
                worker.part = worker.order is not None and worker.order.part
                worker.joined = True
            return
        worker.incoming.popleft()
        if worker.order is None or (worker.stopped >= worker.generation and not isinstance(message, msg.CommitStep)):
            return
        if isinstance(message, msg.TakeState) or message.step == worker.step:
            self.obey(worker, message)

    def ordered(self, generation: int) -> None:
        member = self.machine.member
        assert member is not None
        self.sound[generation] = not member.awaits_state or member.settles

    def obey(
        self,
        worker: Worker,
        message: msg.CommitStep | msg.Compute | msg.WriteState | msg.TakeState | msg.MeasureResult,
    ) -> None:
        generation, step, order = worker.generation, worker.step, worker.order
        assert order is not None
        match message:
            case msg.CommitStep(hold=hold, shared=False):
                if worker.phase is not StepPhase.REDUCED:
                    return
                assert worker.whole and not worker.part and message.after == step + 1
                assert message.vain == self.rounds.gives(step)
                self.alone += not message.vain
                worker.holds, worker.vain = hold, worker.vain + message.vain
                self.apply(worker)
            case msg.CommitStep(hold=hold):
                round = self.rounds_of(worker).round_of(step) + 1
                assert worker.whole and self.result == round, "the result of this round lies there"
                assert message.after == self.rounds_of(worker).begin(round)
                self.ended_early += not self.rounds.gives(step)
                worker.holds = hold
                self.apply(worker, message.after)
            case msg.Compute():
                worker.holds = False
            case msg.WriteState():
                assert worker.whole
                self.shared.update(dict.fromkeys(order.lowest, self.rounds_of(worker).round_of(step)))
                worker.outgoing.append(msg.StateWritten(generation=generation, step=step))
            case msg.TakeState(step=taken):
                assert {self.rounds_of(worker).begin(each) for each in self.shared.values()} == {taken}
                worker.updates = dict.fromkeys(worker.updates, taken)
                worker.part = False
                worker.whole, worker.holds, worker.phase, worker.contributed = True, True, StepPhase.COMPUTE, False
                worker.outgoing.append(msg.StateTaken(generation=generation, step=taken))
                if taken >= self.steps:
                    self.through(worker)
            case msg.MeasureResult():
                squares = tuple((layer, 1.0) for layer in order.lowest)
                worker.outgoing.append(msg.ResultMeasured(generation=generation, step=step, squares=squares))

    # ---- what always holds

    def check(self) -> None:
        member = self.machine.member
        if member is None or member.awaits_state or self.loading is not None:
            return
        if self.machine.phase is GroupPhase.TRAINING:
            steps = {w.step for w in self.workers.values() if w.alive and w.trains and w.whole and w.updates}
            assert len(steps) <= 2, "survivors differ by at most one update"
            assert self.every or not steps or max(steps) - min(steps) <= 1
