"""From what workers say of their steps to the planner, and to the history.

New facts make the answers to losses worthless that were worked out ahead. Working them out again takes the processor
from the workers and, in this process, from the loop that commits their steps: so it is done for a small part of the
time, however unsteady the steps are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from chaos_protocols.worker_group.events import SpeedsMeasured
from chaos_protocols.worker_group.machine import WorkerGroupMachine
from chaos_protocols.worker_group.messages import Stepped, WorkerMessage
from chaos_protocols.worker_group.phases import GroupPhase
from chaosd.worker_group.facts import StepFacts
from chaosd.worker_group.history import ToRecord
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.timed_steps import TimedSteps

PREPARING_SHARE = 0.01
"""Of the time, at most, goes by while answers are worked out because facts are new. Where others use the machine, too,
facts may be new with every step: four small workers lost a fifth of their throughput to 40 ms of planning every second
one."""

SPEEDS_EVERY_S = 1.0
"""Between two looks at whether workers are equally fast."""


class Feedback:
    """Of one worker group. `clock`: seconds."""

    def __init__(
        self, planner: SitePlanner, timed: TimedSteps | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._planner, self._timed, self._facts, self._clock = planner, timed, StepFacts(), clock
        self._preparing, self._learnt, self._learns_from_s = 0, False, 0.0
        self._were_uneven, self._looked_s = False, float("-inf")

    def begin(self, machine: WorkerGroupMachine) -> None:
        """A plan has come into force."""
        assert machine.hello is not None and machine.plan is not None
        self._facts.begin(machine.hello, machine.plan.shares)
        planned = self._planner.in_force
        if self._timed is not None and planned is not None:
            self._timed.begin(machine.generation, machine.plan, planned, machine.hello)

    async def prepare(self, machine: WorkerGroupMachine) -> None:
        """While training runs, work out what follows the next loss, on a thread of its own."""
        hello, places = machine.hello, machine.places
        assert hello is not None
        learnt, self._learnt = self._learnt, False  # the first answers of a plan have to be, whatever they take
        self._preparing += 1
        began_s = self._clock()
        try:
            await asyncio.to_thread(self._planner.prepare, hello, machine.present, places.free, places.without)
        finally:
            self._preparing -= 1
            if learnt:
                ended_s = self._clock()
                self._learns_from_s = ended_s + (ended_s - began_s) / PREPARING_SHARE

    def take(self, worker: int, message: WorkerMessage, machine: WorkerGroupMachine) -> ToRecord | None:
        """Take what a worker says; an entry of the history if the planner has learnt from it: `prepare` is to
        follow."""
        if not isinstance(message, Stepped) or message.generation != machine.generation or machine.hello is None:
            return None
        learns = machine.phase is GroupPhase.TRAINING and not self._preparing and self._clock() >= self._learns_from_s
        factors = self._facts.take(worker, message.seconds, judge=learns)
        if factors is None:
            return None
        self._learnt = True
        step_s = self._planner.learn(factors, machine.hello, machine.present)
        ratios = (*factors.forward, *factors.backward)
        slow = "".join(f"; worker {each} runs at {speed:.2f}" for each, speed in sorted(factors.speeds.items()))
        reason = (
            f"layers take {min(ratios):.2f} to {max(ratios):.2f} of what they took in the first micro-batch{slow}; a "
            f"step of this plan is expected to take {step_s:.4g} s"
        )
        return ToRecord("measured", reason, {"generation": message.generation, "step": message.step, "step_s": step_s})

    def speeds(self, machine: WorkerGroupMachine) -> SpeedsMeasured | None:
        """Speeds of workers that are not like the others; None: not enough steps of the plan in force are done, or it
        was looked a moment ago, or there never were any."""
        if machine.phase is not GroupPhase.TRAINING or self._clock() < self._looked_s + SPEEDS_EVERY_S:
            return None
        self._looked_s = self._clock()
        settled = self._facts.settled()
        if settled is None:
            return None
        self._were_uneven = self._were_uneven or bool(settled.speeds)
        return SpeedsMeasured(speeds=settled.speeds, before=settled.before) if self._were_uneven else None

    def learn_settled(self, machine: WorkerGroupMachine, anew: frozenset[int] = frozenset()) -> None:
        """Facts as they are now, whenever the planner learnt last: a plan is to be made by them. `anew`: workers that
        count as fast from now on, until they are measured. `prepare` is to follow."""
        self._facts.forget(anew)
        facts = self._facts.settled() or self._facts.told
        if facts is not None and machine.hello is not None:
            self._facts.told, self._learnt = facts, True
            self._planner.learn(facts, machine.hello, machine.present)
