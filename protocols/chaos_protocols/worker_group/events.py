"""What a worker group is told, and what it asks for. Declared together, since both are few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from chaos_protocols.wire.worker import DaemonMessage
from chaos_protocols.wire.worker import WorkerMessage as MemberMessage
from chaos_protocols.worker_group.member_phases import Kept
from chaos_protocols.worker_group.messages import ControllerMessage, WorkerMessage
from chaos_protocols.worker_group.plan import Plan


class GroupTimer(Enum):
    """What is waited for; a timer that is set again replaces the one before."""

    STOP = "stop"
    BROKEN = "broken"
    LEAVE = "leave"


# ---- events


@dataclass(frozen=True, slots=True)
class Begin:
    """The controller is there: start the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSaid:
    """A message of a worker; those of the rendezvous go to `GroupStore` instead."""

    worker: int
    message: WorkerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker's process has ended, or its socket has. `killed`: by somebody else, as far as is known."""

    worker: int
    reason: str
    killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSuspected:
    """A worker stands still (`suspicion`), for `over_s` longer than it may; told again while it does. `in_vain`: its
    script has ended its training, and another one waits for it."""

    worker: int
    reason: str
    over_s: float = 0.0
    in_vain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsSeen:
    """What processor time each running worker has used, with all that it has started; told every few seconds while one
    has yet to say hello."""

    processor_s: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """The planner's answer to `AskPlanner` of the same number."""

    asked: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlanMade:
    """The planner's answer to `AskPlanner` of the same number: no plan. `hopeless`: no further worker could help."""

    asked: int
    reason: str
    hopeless: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrepared:
    """The planner has worked out what `PreparePlan` named: to ask for it is a look-up now."""

    idle: frozenset[int]
    drained: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlanPrepared:
    """There is no plan for what `PreparePlan` named: with those that came, without those that are drained, or none that
    is so much faster."""

    idle: frozenset[int]
    drained: frozenset[int]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimerFired:
    """The time of `SetGroupTimer` is over."""

    timer: GroupTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWanted:
    """The operator wants it to end."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrdered:
    """The operator wants this worker out of the plan from a step boundary on (`drain`), or lets it in again. Answered
    by `OrderAnswered`."""

    worker: int
    drain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedsMeasured:
    """At what speed workers compute by the last steps under the plan in force, where it is another one than that of the
    others with their layers, which is 1. Told every second or so, once enough of them are done. `before`: of those, the
    workers of which these steps say nothing, since they compute none or share no layers: what they had before."""

    speeds: Mapping[int, float]
    before: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ReplanOrdered:
    """The operator wants the best plan by the speeds of now. Answered by `ReplanAnswered`."""


@dataclass(frozen=True, slots=True)
class RunFound:
    """The answer to `JoinRun`: a daemon is there, and waits for the hello."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSaid:
    """A message of the daemon."""

    message: DaemonMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLost:
    """The connection to the daemon has ended. `final`: or none was to be had, for as long as one is waited for."""

    reason: str
    final: bool = False


PlacesEvent: TypeAlias = PlanPrepared | NoPlanPrepared | WorkerOrdered | ReplanOrdered | SpeedsMeasured
"""What `Places` takes."""

RunEvent: TypeAlias = RunFound | RunSaid | RunLost
Event: TypeAlias = (
    Begin
    | WorkerSaid
    | WorkerGone
    | WorkerSuspected
    | StartsSeen
    | PlanMade
    | NoPlanMade
    | GroupTimerFired
    | EndWanted
    | PlacesEvent
    | RunEvent
)

# ---- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start a process under this number, which no other ever had."""

    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillWorker:
    """End the process at once; `WorkerGone` follows."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TellWorker:
    """Send a message to a worker; messages to one worker arrive in order."""

    worker: int
    message: ControllerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPlanner:
    """What to do with the workers that are here? `lost`: workers of the plan in force that are gone; `idle`: workers
    outside of it that are here. `afresh`: no plan is in force any more, since the state comes from elsewhere. `part`:
    only what no worker holds does; the others keep what they hold, or get it from each other. `drained`: who is here
    and is to have no layers, though one that has some gives them on. `more`: further ones are on their way. Answered by
    `PlanMade` or `NoPlanMade`."""

    asked: int
    lost: frozenset[int]
    idle: frozenset[int]
    drained: frozenset[int] = frozenset()
    afresh: bool = False
    part: bool = False
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """Work out, while training goes on, what to do with these workers beside those of the plan in force, and without
    those that are `drained`. `faster_by`: only a plan will do whose steps take less by this share. `anew`: who counts
    as fast as the others from now on, until it is measured. Answered by `PlanPrepared` or `NoPlanPrepared`."""

    idle: frozenset[int]
    drained: frozenset[int] = frozenset()
    faster_by: float = 0.0
    anew: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PutPlanInForce:
    """The plan that answered this question is in force from now on: its workers hold its layers."""

    asked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStore:
    """Rendezvous for this generation."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroupTimer:
    """`GroupTimerFired` after so many seconds; None: not any more."""

    timer: GroupTimer
    after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteEvent:
    """An entry of the history: what happened, and why."""

    kind: str
    reason: str
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAnswered:
    """To `WorkerOrdered` of the same worker and kind: whether it was `done`, and what happened or why not."""

    worker: int
    drain: bool
    done: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanAnswered:
    """To `ReplanOrdered`: whether another plan is in force now, and by what, or why not."""

    done: bool
    reason: str


@dataclass(frozen=True, slots=True)
class JoinRun:
    """Open a connection to the site's daemon; one that is open is closed first. `RunFound` or `RunLost` follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreetRun:
    """Say hello to the daemon, with what is kept of the state of the end of round `reached`, and hand the shared memory
    over."""

    reached: int
    kept: Kept

    @property
    def round(self) -> int:
        """Of a whole state."""
        return self.reached if self.kept is Kept.ALL else 0

    @property
    def damaged_round(self) -> int:
        """Of a part of one."""
        return self.reached if self.kept is Kept.PART else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRun:
    """A message to the daemon. `notes`: numbers to be written first, in front of what this site gives to the round."""

    message: MemberMessage
    notes: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TellDigests:
    """Digest the bytes [start, stop) of the state, which the workers have copied into the shared memory, and tell the
    daemon that `round` was applied."""

    round: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndGroup:
    """It is over. `failed`: why it could not go on; empty where the training is complete. `lacks`: what is not there
    though it is complete; mostly empty."""

    failed: str
    lacks: str = ""


Effect: TypeAlias = (
    StartWorker
    | KillWorker
    | TellWorker
    | AskPlanner
    | PreparePlan
    | PutPlanInForce
    | BeginStore
    | SetGroupTimer
    | NoteEvent
    | OrderAnswered
    | ReplanAnswered
    | JoinRun
    | GreetRun
    | TellRun
    | TellDigests
    | EndGroup
)
