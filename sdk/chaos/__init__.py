"""Chaos: institutions train one model together. What users import."""

from __future__ import annotations

from chaos.coordinator import Coordinator, CoordinatorStatus
from chaos.errors import (
    ChaosError,
    DaemonLost,
    DaemonProtocolError,
    HalfAppliedStep,
    LeftRun,
    NoDaemon,
    Refused,
    SharedMemoryTooSmall,
)
from chaos.telling import install as _tell_errors_alone
from chaos_protocols.wire.state_spec import state_digest

_tell_errors_alone()

__all__ = [
    "ChaosError",
    "Coordinator",
    "CoordinatorStatus",
    "DaemonLost",
    "DaemonProtocolError",
    "HalfAppliedStep",
    "LeftRun",
    "NoDaemon",
    "Refused",
    "SharedMemoryTooSmall",
    "state_digest",
]
