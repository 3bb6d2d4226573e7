"""Where a worker stands in its step, and from which step a worker group goes on after a stop.

A step is two-phase: everybody has the sums (`reduced`), the controller says `CommitStep`, everybody updates. So
survivors never differ by more than the update that they are just finishing, and at most one step is repeated.

Source: FlashRecovery III-E (step tags i, i, -1, then i + 1), without its assumption that a collective is a barrier for
all workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated

import msgspec

Step = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
"""Of a state: how many updates were applied to it. Of work: that state is its input."""

Generation = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class StepPhase(Enum):
    """How far a worker is in step i."""

    COMPUTE = "compute"
    """It holds state i and computes gradients; they can be dropped."""
    REDUCED = "reduced"
    """It holds state i and the sums of step i."""
    UPDATE = "update"
    """It was told to commit step i and finishes that, whatever happens: then it is in (i + 1, compute)."""


class StepTag(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker stands."""

    generation: Generation
    step: Step
    phase: StepPhase


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """`step`: the state with which all go on. `again`: who must be told to commit the step before it once more."""

    step: Step
    again: frozenset[int]


class TornStep(ValueError):
    """Survivors that no rule brings to one step: a defect of ours, or memory that lies."""


def resume(tags: Mapping[int, StepTag], committed: int, *, after: int | None = None, shared: bool = False) -> Resume:
    """From which step the survivors go on. `committed`: the last step whose commit was sent, -1 if none was; `after`:
    the step of the state after it (None: the next one). `shared`: what is committed lies in shared memory, so that
    whoever has the state of c can follow, with sums of its own or not.

    Let c be the highest step that a survivor updates or has updated, or whose commit was sent. Those who still have
    the sums of c commit it again (that changes nothing for who did), and all go on with c + 1. Without such a c nobody
    has updated: step i is done again from the beginning.
    """
    if not tags:
        raise TornStep(
            "no worker with state is left; start again from a checkpoint, with more pipelines to survive this"
        )
    goal = committed + 1 if after is None else after
    steps = {worker: _leads_to(tag, committed, goal) for worker, tag in tags.items()}
    target = max(goal, *steps.values())
    before = committed if target == goal else target - 1
    again = frozenset(worker for worker, step in steps.items() if step < target)
    for worker in sorted(again):
        tag = tags[worker]
        if (tag.phase is not StepPhase.REDUCED and not shared) or tag.step != before:
            raise TornStep(
                f"worker {worker} is at step {tag.step} ({tag.phase.value}) while step {before} was committed; it "
                f"has no sums to commit, so its state cannot follow"
            )
    return Resume(step=target, again=again)


def _leads_to(tag: StepTag, committed: int, goal: int) -> int:
    """The step of the state in which a worker is, or is about to be."""
    if tag.phase is not StepPhase.UPDATE:
        return tag.step
    return goal if tag.step == committed else tag.step + 1
