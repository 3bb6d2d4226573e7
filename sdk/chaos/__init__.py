"""Chaos: institutions train one model together. What users import."""

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
