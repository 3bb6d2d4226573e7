"""Settings of the agreement, and the rules for configurations: what is a majority, and which change is safe.

One voter at a time: then every majority of the old and every majority of the new configuration share a site (thesis
4.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.agreement.raft.messages import COMMAND_BYTES_MAX, ENTRIES_PER_APPEND_MAX, Configuration
from chaos_protocols.names import SITES_MAX, VOTERS_MAX

IN_FLIGHT_APPENDS_MAX = 16
"""Appends with entries that a follower may owe answers for: hides a round trip of many commits, bounds what a dead one
costs."""

NOBODY = Configuration(voters=(), learners=())
"""The configuration of a site that was never in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """`election_timeout_s`: silence of the leader after which a follower asks for votes, drawn from [1, 2) times this
    (thesis 3.4, 9.3: several times the heartbeat interval, well above a round trip). `snapshot_after_entries`:
    `compaction_due` from then on."""

    election_timeout_s: float = 0.6
    heartbeat_interval_s: float = 0.15
    entries_per_append_max: int = 256
    append_bytes_max: int = COMMAND_BYTES_MAX
    snapshot_after_entries: int = 1024

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_s < float("inf"):
            raise ValueError(f"heartbeat_interval_s is {self.heartbeat_interval_s}; it must be above 0")
        if not 2 * self.heartbeat_interval_s <= self.election_timeout_s < float("inf"):
            raise ValueError(
                f"election_timeout_s is {self.election_timeout_s}; it must be at least twice heartbeat_interval_s"
                f" ({self.heartbeat_interval_s}), or one lost heartbeat starts an election"
            )
        if not 1 <= self.entries_per_append_max <= ENTRIES_PER_APPEND_MAX:
            raise ValueError(
                f"entries_per_append_max is {self.entries_per_append_max}; allowed: 1 to {ENTRIES_PER_APPEND_MAX}"
            )
        if not 1 <= self.append_bytes_max <= COMMAND_BYTES_MAX:
            raise ValueError(f"append_bytes_max is {self.append_bytes_max}; allowed: 1 to {COMMAND_BYTES_MAX}")
        if self.snapshot_after_entries < 1:
            raise ValueError(f"snapshot_after_entries is {self.snapshot_after_entries}; it must be at least 1")


def majority(voters: int) -> int:
    return voters // 2 + 1


def fault_of(configuration: Configuration) -> str | None:
    """Why this can be nobody's configuration, or None."""
    voters, learners = configuration.voters, configuration.learners
    if not 1 <= len(voters) <= VOTERS_MAX:
        return f"{len(voters)} voters; allowed: 1 to {VOTERS_MAX}"
    if len(voters) + len(learners) > SITES_MAX:
        return f"{len(voters) + len(learners)} sites; allowed: {SITES_MAX}"
    if len({*voters, *learners}) != len(voters) + len(learners):
        return "a site is listed twice"
    return None


def voters_changed(old: Configuration, new: Configuration) -> int:
    """How many voters come or go. A learner that becomes a voter is one."""
    return len(set(old.voters) ^ set(new.voters))
