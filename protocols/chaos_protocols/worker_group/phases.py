"""The phases of a worker group, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class GroupPhase(Enum):
    """What the worker group is at; the words are those that are shown."""

    FORMING = "forming"
    """Workers have been started; not all have said hello."""
    DECIDING = "deciding"
    """The planner is asked what to do with the workers that are here."""
    WAITING = "waiting"
    """There is no plan for the workers that are here; others are on their way."""
    BUILDING = "building"
    """A plan was ordered: groups are built, state moves."""
    TRAINING = "training"
    """The plan is executed, step by step."""
    STOPPING = "stopping"
    """A generation ends: survivors say where they stand."""
    ENDED = "ended"
    """The training is complete, or cannot go on."""


class GroupChange(Enum):
    """What moves a worker group; the text says what has happened."""

    CAME = "a worker said hello"
    ALL_HERE = "every worker that was started is here"
    PLAN = "the planner has a plan"
    NO_PLAN = "the planner has none"
    READY = "everybody is ready"
    REDUCED = "everybody has the sums of the step"
    LOST = "a worker is gone"
    BROKEN = "a group failed and nobody has died"
    WANTED = "another plan is wanted"
    STOPPED = "everybody has stopped"
    OVERDUE = "somebody has not stopped in time"
    ENDED = "the training is complete, or cannot go on"


_P, _C = GroupPhase, GroupChange

TABLE: Mapping[tuple[GroupPhase, GroupChange], GroupPhase] = {
    (_P.FORMING, _C.CAME): _P.FORMING,
    (_P.FORMING, _C.ALL_HERE): _P.DECIDING,
    (_P.FORMING, _C.ENDED): _P.ENDED,
    (_P.DECIDING, _C.CAME): _P.DECIDING,  # asked anew
    (_P.DECIDING, _C.LOST): _P.DECIDING,  # asked anew
    (_P.DECIDING, _C.PLAN): _P.BUILDING,
    (_P.DECIDING, _C.NO_PLAN): _P.WAITING,
    (_P.DECIDING, _C.ENDED): _P.ENDED,
    (_P.WAITING, _C.CAME): _P.DECIDING,
    (_P.WAITING, _C.LOST): _P.DECIDING,  # fewer are on their way, who may have been waited for
    (_P.WAITING, _C.ENDED): _P.ENDED,
    (_P.BUILDING, _C.CAME): _P.BUILDING,
    (_P.BUILDING, _C.READY): _P.TRAINING,
    (_P.BUILDING, _C.LOST): _P.STOPPING,
    (_P.BUILDING, _C.BROKEN): _P.STOPPING,
    (_P.BUILDING, _C.ENDED): _P.ENDED,
    (_P.TRAINING, _C.CAME): _P.TRAINING,
    (_P.TRAINING, _C.REDUCED): _P.TRAINING,
    (_P.TRAINING, _C.LOST): _P.STOPPING,
    (_P.TRAINING, _C.BROKEN): _P.STOPPING,
    (_P.TRAINING, _C.WANTED): _P.STOPPING,
    (_P.TRAINING, _C.ENDED): _P.ENDED,
    (_P.STOPPING, _C.CAME): _P.STOPPING,
    (_P.STOPPING, _C.LOST): _P.STOPPING,
    (_P.STOPPING, _C.OVERDUE): _P.STOPPING,
    (_P.STOPPING, _C.STOPPED): _P.DECIDING,
    (_P.STOPPING, _C.ENDED): _P.ENDED,
}
"""GroupPhase and change to the phase after. A pair that is not here is a defect of ours (`LocalProtocolError`), never
silence. docs/protocols/states.md is made from it."""
