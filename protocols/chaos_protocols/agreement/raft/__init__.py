"""The agreement: Raft as a pure machine.

It decides who leads (`election.py`, with the proof of it in `proof.py`), which entries of the log are committed
(`replication.py` at the leader, `follower.py` at the others), and which change of the voters is safe (`config.py`).
What an entry means is no concern of it. Driven by `SiteMachine` through `RosterReplica`: `machine.py` takes messages,
proposals and the passing of time, and `effects.py` says what its driver owes it, durable before an answer leaves.
"""

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
from chaos_protocols.agreement.raft.founding import bootstrap, founded_after
from chaos_protocols.agreement.raft.machine import RaftMachine
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
    "founded_after",
]
