"""From what workers say of their steps to the planner, and to the history."""

from __future__ import annotations

from chaos_protocols.worker_group.machine import WorkerGroupMachine
from chaos_protocols.worker_group.messages import Stepped, WorkerMessage
from chaos_protocols.worker_group.phases import GroupPhase
from chaosd.worker_group.facts import StepFacts
from chaosd.worker_group.history import ToRecord
from chaosd.worker_group.planning import SitePlanner
from chaosd.worker_group.timed_steps import TimedSteps


class Feedback:
    """Of one worker group."""

    def __init__(self, planner: SitePlanner, timed: TimedSteps | None = None) -> None:
        self._planner, self._timed, self._facts = planner, timed, StepFacts()

    def begin(self, machine: WorkerGroupMachine) -> None:
        """A plan has come into force."""
        assert machine.hello is not None and machine.plan is not None
        self._facts.begin(machine.hello, machine.plan.shares)
        planned = self._planner.in_force
        if self._timed is not None and planned is not None:
            self._timed.begin(machine.generation, machine.plan, planned, machine.hello)

    def take(self, worker: int, message: WorkerMessage, machine: WorkerGroupMachine) -> ToRecord | None:
        """Take what a worker says; an entry of the history if the planner has learnt from it."""
        if not isinstance(message, Stepped) or message.generation != machine.generation or machine.hello is None:
            return None
        factors = self._facts.take(worker, message.seconds)
        if factors is None or machine.phase is not GroupPhase.TRAINING:
            return None
        step_s = self._planner.learn(factors, machine.hello, machine.present)
        ratios = (*factors.forward, *factors.backward)
        slow = "".join(f"; worker {each} runs at {speed:.2f}" for each, speed in sorted(factors.speeds.items()))
        reason = (
            f"layers take {min(ratios):.2f} to {max(ratios):.2f} of what they took in the first micro-batch{slow}; a "
            f"step of this plan is expected to take {step_s:.4g} s"
        )
        return ToRecord("measured", reason, {"generation": message.generation, "step": message.step, "step_s": step_s})
