"""What the agreement asks its driver to do, in the order of the list. The driver decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from chaos_protocols.agreement.raft.messages import LogEntry, RaftMessage, Snapshot
from chaos_protocols.names import SiteId


class Role(Enum):
    """Thesis figure 3.3, and 9.6 for the pre-candidate, who asks before it disturbs anybody."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


ROLE_CHANGES = {
    (Role.FOLLOWER, Role.PRE_CANDIDATE): "the leader is silent or lost",
    (Role.FOLLOWER, Role.CANDIDATE): "the leader hands its role over to it",
    (Role.PRE_CANDIDATE, Role.FOLLOWER): "another leads, a newer term has begun, or it has no vote any more",
    (Role.PRE_CANDIDATE, Role.CANDIDATE): "a majority would vote for it, or no other vote is needed",
    (Role.CANDIDATE, Role.FOLLOWER): "another leads, a newer term has begun, or it has no vote any more",
    (Role.CANDIDATE, Role.PRE_CANDIDATE): "no majority in time: it asks again",
    (Role.CANDIDATE, Role.LEADER): "a majority of votes, or no other vote is needed",
    (Role.LEADER, Role.FOLLOWER): "a newer term has begun, no majority is heard, or it has no vote any more",
}
"""From, to, and what brings it about. A change that is not here is a defect of ours; docs/protocols/states.md is made
from it."""


@dataclass(frozen=True, slots=True)
class HardState:
    """What must survive a crash besides the log: a site votes once in a term (thesis 3.4)."""

    term: int
    vote: SiteId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Duty: durable before any later effect of the same list is executed; after a crash either all of it or nothing is
    there. At most one in a list, and the first. `None` (or no entries): unchanged. To be applied in this order:

    1. `hard_state` replaces the one before; 2. `snapshot` replaces the one before and drops the entries up to its
    index; 3. entries from `truncate_from` on are dropped; 4. `entries` are appended.
    """

    hard_state: HardState | None
    truncate_from: int | None
    entries: tuple[LogEntry, ...]
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """May be lost, delayed, duplicated or reordered without harm."""

    destination: SiteId
    message: RaftMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Newly committed entries in the order of the log, each exactly once since the start (from the snapshot onwards);
    no-ops too. `late_until`: up to this index they were committed when this site came to hear the present leader,
    for the first time or again: what they say is some time ago."""

    entries: tuple[LogEntry, ...]
    late_until: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSnapshot:
    """The state machine must be replaced by this one: the leader no longer has the entries that led to it."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged:
    """Role, known leader, or the term of the known leader changed, and why."""

    role: Role
    term: int
    leader: SiteId | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproven:
    """`leader` claims to lead `term`, and what it shows are not the votes of those who elect here: nothing of it is
    taken."""

    leader: SiteId
    term: int


Effect = Persist | Send | Commit | RestoreSnapshot | RoleChanged | Unproven
