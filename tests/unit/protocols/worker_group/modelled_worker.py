"""A worker of `group_world`: it holds no tensors but the number of updates that each of its layers has."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chaos_protocols.worker_group import messages as msg
from chaos_protocols.worker_group.tags import StepPhase


@dataclass
class Worker:
    """`updates`: of each layer that it holds."""

    number: int
    updates: dict[int, int]
    alive: bool = True
    hanging: bool = False
    starved: bool = False
    """It hangs for a while only."""
    over_s: float = 0.0
    """For how long it has been hanging when it was suspected last."""
    greeted: bool = False
    order: msg.PlanOrder | None = None
    going: bool = False
    stopped: int = -1
    contributed: bool = False
    joined: bool = False
    holds: bool = False
    whole: bool = True
    """Whether its layers have a state at all (in a run: before one was taken they may not)."""
    part: bool = False
    """Some layers of the plan that it executes have none."""
    vain: int = 0
    """How often the steps of a round have led to none, as far as it was told."""
    phase: StepPhase = StepPhase.COMPUTE
    done: bool = False
    incoming: deque[msg.ControllerMessage] = field(default_factory=deque)
    outgoing: deque[msg.WorkerMessage] = field(default_factory=deque)

    @property
    def generation(self) -> int:
        return -1 if self.order is None else self.order.generation

    @property
    def step(self) -> int:
        """That of its state; all of its layers have the same."""
        (step,) = set(self.updates.values()) or {0}
        return step

    @property
    def trains(self) -> bool:
        order = self.order
        return self.going and order is not None and order.share.last_layer > 0 and self.stopped < order.generation
