"""One timeout for the user, all others derived from it (spec 15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What a site keeps of its worker's state beside its worker (decision 0011).

    `memory_checkpoint_every_rounds`: its daemon's memory has a copy of the state of every so many rounds; 0: none.
    `checkpoint`: `off`; `auto`: a file as often as costs at most a hundredth of the time; `fixed`: a file every
    `checkpoint_every_rounds` rounds or every `checkpoint_every_s` seconds, whichever is set (0: not) and comes first;
    `optimum`: FlashRecovery's equation (3), with `mean_time_between_failures_s` as its d / m, and its k0 measured."""

    memory_checkpoint_every_rounds: int = 0
    checkpoint: Literal["off", "auto", "fixed", "optimum"] = "auto"
    checkpoint_every_rounds: int = 0
    checkpoint_every_s: float = 0.0
    mean_time_between_failures_s: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """`failure_timeout_s`: silence longer than this counts as a failure (default 1 s: hospitals' links jitter by tens
    of milliseconds, and a false alarm costs a re-done round). Every other time below is a share of it.

    `restore_wait_s`: when the run stands for want of a state, a daemon's worker may still come back with it for so
    long; and after so long an operator is told what can be decided. People and machines set it, not links: no share."""

    failure_timeout_s: float = 1.0
    heartbeat_interval_s: float | None = None
    join_hold_s: float = 60.0
    """So long the rounds wait for a joiner that cannot follow them while it fetches the state; the scheduler's value
    counts. 0: they never wait, and such a joiner is refused."""
    straggler_timeout: float = 10.0
    """So many times the usual round a site's part is waited for, `straggler_min_s` at least; 0: for ever. The
    scheduler's counts."""
    restore_wait_s: float = 120.0
    replan_every_s: float = 10.0
    """Between two looks of the scheduler at whether other trees would average faster."""
    rules_after: float = 30.0
    """So many failure timeouts all sites have spoken a newer version, and the same sites voted, before the run agrees
    on its rules, for good: who goes back to the former release at once can still do so."""
    keep: CheckpointSettings = CheckpointSettings()

    @property
    def rules_after_s(self) -> float:
        return self.rules_after * self.failure_timeout_s

    @property
    def beat_s(self) -> float:
        """Four beats must be lost in a row before a link counts as silent."""
        return self.heartbeat_interval_s or self.failure_timeout_s / 4

    @property
    def redial_timeout_s(self) -> float:
        """After end-of-file: one redial, answered or refused within a round trip where the other side lives."""
        return 0.2 * self.failure_timeout_s

    @property
    def redial_pause_s(self) -> float:
        """Between further attempts to reach a configured peer or an agreed neighbour that is down."""
        return 0.5 * self.failure_timeout_s

    @property
    def dial_timeout_s(self) -> float:
        return 3.0 * self.failure_timeout_s

    @property
    def election_timeout_s(self) -> float:
        """Longer than the failure timeout, so that a leader removes a silent voter before check-quorum makes it step
        down. One that is known to be gone is not waited for (`RaftMachine.leader_lost`)."""
        return 2.0 * self.failure_timeout_s

    @property
    def cut_off_s(self) -> float:
        """So long without a link that leads into the run: any site that is known is dialled. Longer than an election,
        and than the removal of a site that failed."""
        return 3.0 * self.failure_timeout_s

    @property
    def worker_stopped_s(self) -> float:
        """So long a worker may stand still: then it counts as gone, like a site that is silent."""
        return self.failure_timeout_s

    @property
    def straggler_min_s(self) -> float:
        """So long every site's part is waited for, however short the rounds are."""
        return 10.0 * self.failure_timeout_s

    @property
    def waits_told_s(self) -> float:
        """So long a round may wait for a site before everybody is told."""
        return 2.0 * self.failure_timeout_s

    @property
    def waits_stale_s(self) -> float:
        """What was told so long ago is no more than a memory: a scheduler that waits says so every failure timeout."""
        return 3.0 * self.failure_timeout_s

    @property
    def late_look_s(self) -> float:
        """A look at who is waited for comes late after so long since the one before: this site stood still, or lacks a
        processor, and what is beyond that time is nobody's (spec 3.6)."""
        return 2.0 * self.beat_s

    @property
    def stateless_s(self) -> float:
        """So long a worker may be without the state before its user is told why."""
        return 2.0 * self.failure_timeout_s

    @property
    def raft_heartbeat_s(self) -> float:
        return 0.25 * self.failure_timeout_s

    @property
    def negotiation_timeout_s(self) -> float:
        """For the connect and probe phase of a negotiation; a transfer has no deadline but must progress."""
        return 5.0 * self.failure_timeout_s

    @property
    def transfer_stall_s(self) -> float:
        """A learner whose verified bytes have not grown for so long is given up."""
        return 10.0 * self.failure_timeout_s

    @property
    def unacknowledged_max_s(self) -> float:
        """After so long the system itself gives up a connection whose bytes nobody acknowledges: no link whose bulk
        stands still is ever given longer (`links.silence`)."""
        return 8.0 * self.failure_timeout_s

    @property
    def retry_s(self) -> float:
        """Between two requests of the same kind to the scheduler (join, leave, round-status query)."""
        return 0.5 * self.failure_timeout_s

    @property
    def link_grace_s(self) -> float:
        """Between the first report of a dead link and the decision: the other links of a dead site are reported within
        it."""
        return 0.15 * self.failure_timeout_s
