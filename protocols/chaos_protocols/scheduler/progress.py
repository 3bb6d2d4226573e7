"""Whether what takes long still moves: leavers that wait for their last round, transfers of the state.

What moves is given time; what stands still is ended. Driven by the machine after every event.
"""

from __future__ import annotations

from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.decisions import Finding, Inform, RestoreAgain, SiteFailed
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.negotiation import EverybodyDone, RoundNeverDone, ScaleIn, ScaleOut, SubjectGone
from chaos_protocols.scheduler.negotiation.scale_in import ScaleInState
from chaos_protocols.scheduler.negotiation.scale_out import ScaleOutState
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.scheduler.running import RunningNegotiations
from chaos_protocols.wire.control import SiteStatus

LOAD_RATE_MIN_BYTES_PER_S = 50e6
"""A worker is given so long to load a state that it has, and `transfer_stall_s` besides."""

IDLE_BEATS = 2
"""After so many beats without a word of a worker that trains, nobody's contribution is on its way any more."""

_WATCHED = (ScaleInState.FINISHING, ScaleOutState.REPLICATING)


class ProgressWatch:
    """Of one term of the scheduler."""

    def __init__(self, facts: Facts, negotiations: RunningNegotiations, reports: Reports) -> None:
        self._facts, self._negotiations, self._reports = facts, negotiations, reports
        self._moved: dict[str, tuple[tuple[int, int], float]] = {}
        """How far each watched negotiation was when it last moved, and when that was."""
        self._idle_since_s: float | None = None
        """Since when nobody trains, while something was watched."""

    def look(self, awake_s: float) -> list[Finding]:
        """Leavers whose last round is everywhere or never comes; transfers that have ended or stand still."""
        if not any(one.state in _WATCHED for one in self._negotiations.all.values()):
            self._idle_since_s = None  # who is watched next has seen nothing of it
            self._moved.clear()
            return []
        empty_round = self._empty_round(awake_s)
        findings: list[Finding] = []
        for negotiation in self._negotiations.all.values():
            if isinstance(negotiation, ScaleIn) and negotiation.state is ScaleInState.FINISHING:
                findings += self._leaver(negotiation, empty_round, awake_s)
            elif isinstance(negotiation, ScaleOut) and negotiation.state is ScaleOutState.REPLICATING:
                findings += self._transfer(negotiation, awake_s)
        return findings

    def _empty_round(self, awake_s: float) -> int | None:
        """The running round if everybody has given weight 0 to it, and nobody has trained for a while."""
        if self._reports.anybody_active():
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = awake_s
        idle_s = IDLE_BEATS * self._facts.settings.beat_s
        idle = self._idle_since_s is not None and awake_s >= self._idle_since_s + idle_s
        return self._reports.empty_round() if idle else None

    def _stands_still(self, identifier: str, now: tuple[int, int], limit_s: float, awake_s: float) -> bool:
        """Whether it has not moved for longer than that; a first look is a move. Who stands still begins anew."""
        known, since_s = self._moved.get(identifier, (None, awake_s))
        if now != known:
            self._moved[identifier] = (now, awake_s)
            return False
        return awake_s - since_s > limit_s

    def _leaver(self, leave: ScaleIn, empty_round: int | None, awake_s: float) -> list[Finding]:
        facts, roster, done = self._facts, self._facts.roster, self._reports.done_rounds()
        findings: list[Finding] = []
        last_round = leave.last_round
        if empty_round is not None:  # nobody contributes any more: the round that the leaver waits for never comes
            last_round = min(last_round, empty_round - 1)
            findings.append(Inform(negotiation=leave.identifier, event=RoundNeverDone(round=empty_round)))
        others = [site for site in roster.member_ids() if site != leave.site]
        if not roster.started or all(done.get(site, -1) >= last_round for site in others):
            return [*findings, Inform(negotiation=leave.identifier, event=EverybodyDone())]
        limit_s = facts.settings.negotiation_timeout_s
        stands_still = self._stands_still(leave.identifier, (facts.done_round, 0), limit_s, awake_s)
        if stands_still and not roster.resolving:
            # Its last rounds do not end (nobody else contributes to them): they are resolved without it.
            del self._moved[leave.identifier]
            findings.append(SiteFailed(site=leave.site, reason="its last rounds do not end"))
        return findings

    def _transfer(self, transfer: ScaleOut, awake_s: float) -> list[Finding]:
        facts, roster = self._facts, self._facts.roster
        plan = roster.replication
        if plan is None or plan.transfer != transfer.identifier:  # resolved away, or promoted by the scheduler before
            gone = SubjectGone(reason="its transfer is no longer agreed")
            return [Inform(negotiation=transfer.identifier, event=gone)]
        report = self._report_of(transfer.joiner)
        # The others' rounds go on whatever becomes of the transfer: its bytes count, then its worker's rounds.
        now = (report.transfer_bytes, report.worker_round) if report else (0, 0)
        limit_s = facts.settings.transfer_stall_s
        if now[0] >= plan.state_bytes:
            limit_s += plan.state_bytes / LOAD_RATE_MIN_BYTES_PER_S
        if facts.done_round < plan.round:  # before that round there is no snapshot
            self._moved[transfer.identifier] = (now, awake_s)
        if not self._stands_still(transfer.identifier, now, limit_s, awake_s):
            return []
        del self._moved[transfer.identifier]
        reason = f"no progress for {limit_s:g} s"
        record = roster.record(transfer.joiner)
        if record is not None and record.state == "learner":
            return [SiteFailed(site=transfer.joiner, reason=reason)]
        gone = SubjectGone(reason=reason)
        return [
            Inform(negotiation=transfer.identifier, event=gone),
            RestoreAgain(site=transfer.joiner, reason=reason),
        ]

    def _report_of(self, site: SiteId) -> SiteStatus | None:
        """The newest word of a site; what its former life has said counts until the new one speaks."""
        if site == self._facts.site:
            return self._facts.own_report()
        report, _ = self._reports.newest.get(site, (None, 0.0))
        return report
