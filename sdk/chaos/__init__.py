"""Chaos: institutions train one model together. What users import.

Driven by a training script through `Coordinator`. `frameworks` makes bytes of numbers and back, `sync` decides what is
given to a round and how its result is applied, `conversation` who may do what when; `worker_group` is for sites of
several workers, `data` for shared samples, `integrations` for loops of others. What sites agree on, the daemon knows.
"""

from __future__ import annotations

from chaos.coordinator import Coordinator
from chaos.errors import (
    ChangedOutside,
    ChaosError,
    DaemonLost,
    DaemonProtocolError,
    HalfAppliedStep,
    LeftRun,
    NoDaemon,
    NothingFinite,
    Refused,
    ScheduleOver,
    SharedMemoryTooSmall,
)
from chaos.frameworks import Update
from chaos.status import CoordinatorStatus
from chaos.sync import DiLoCo, EveryStep, LearningRateRule, LocalSGD, OuterSGD
from chaos.telling import install as _tell_errors_alone
from chaos_protocols.wire.state_spec import state_digest

_tell_errors_alone()

__all__ = [
    "ChangedOutside",
    "ChaosError",
    "Coordinator",
    "CoordinatorStatus",
    "DaemonLost",
    "DaemonProtocolError",
    "DiLoCo",
    "EveryStep",
    "HalfAppliedStep",
    "LearningRateRule",
    "LeftRun",
    "LocalSGD",
    "NoDaemon",
    "NothingFinite",
    "OuterSGD",
    "Refused",
    "ScheduleOver",
    "SharedMemoryTooSmall",
    "Update",
    "state_digest",
]
