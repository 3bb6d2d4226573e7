"""The agreement: Raft as a pure machine. See `machine.py` for what it does, `effects.py` for what its driver owes
it."""

from __future__ import annotations

from chaos_protocols.agreement.raft.config import NOBODY, RaftSettings
from chaos_protocols.agreement.raft.effects import (
    Commit,
    Effect,
    HardState,
    Persist,
    RestoreSnapshot,
    Role,
    RoleChanged,
    Send,
    Unproven,
)
from chaos_protocols.agreement.raft.machine import RaftMachine, bootstrap
from chaos_protocols.agreement.raft.messages import Configuration, LogEntry, RaftMessage, Snapshot

__all__ = [
    "NOBODY",
    "Commit",
    "Configuration",
    "Effect",
    "HardState",
    "LogEntry",
    "Persist",
    "RaftMachine",
    "RaftMessage",
    "RaftSettings",
    "RestoreSnapshot",
    "Role",
    "RoleChanged",
    "Send",
    "Snapshot",
    "Unproven",
    "bootstrap",
]
