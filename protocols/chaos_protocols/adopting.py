"""From which state a run goes on when no live member has it: which workers and which checkpoints could bring it, and
which of them does (decisions 0006 and 0011).

Functions on a `SchedulerMachine`, for `reconcile.adopt`. A worker that lives comes first, if it has the newest round
that is known of; a checkpoint is the last resort. An older state is never taken silently, and not before a while has
passed in which a newer one could have come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos_protocols.messages import Report
from chaos_protocols.names import SiteId, link_key
from chaos_protocols.plans import CheckpointFacts
from chaos_protocols.roster import LinkRecord, ModelFacts, SiteRecord

if TYPE_CHECKING:
    from chaos_protocols.scheduler import SchedulerMachine

CHECKPOINT_RATE_MIN_BYTES_PER_S = 50e6
"""A site is given so long to read its checkpoint, and `transfer_stall_s` besides, before another one is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A site that could bring the state of `round`: its worker has it, or (`checkpoint`) its disk."""

    record: SiteRecord
    links: tuple[LinkRecord, ...]
    model: ModelFacts
    round: int
    checkpoint: CheckpointFacts | None = None

    @property
    def whence(self) -> str:
        return "worker" if self.checkpoint is None else "checkpoint"


def spoke_lately(scheduler: SchedulerMachine, member: SiteRecord, now_s: float) -> bool:
    """Whether what a member has said of its worker is of now: it knew the present roster (the one just taken over
    trains from then on), and this site has heard it since it last stood still itself."""
    if member.site == scheduler.host.site:
        return True
    report = scheduler.report_of(member)
    if report is None or report.epoch != scheduler.host.roster.epoch:
        return False
    _, heard_s = scheduler.reports[member.site]
    return now_s <= heard_s + scheduler.host.settings.failure_timeout_s


def reports_of_members(scheduler: SchedulerMachine) -> dict[SiteId, Report]:
    found = {scheduler.host.site: scheduler.host.own_report()}
    for record in scheduler.host.roster.sites:
        report = scheduler.report_of(record) if record.state == "member" else None
        if report is not None:
            found[record.site] = report
    return found


def newest_round(scheduler: SchedulerMachine) -> int:
    """The newest round that a member knows to have been done."""
    known = (report.known_round for report in reports_of_members(scheduler).values())
    return max(scheduler.host.roster.settled_round, *known)


def has_waited(scheduler: SchedulerMachine, now_s: float) -> bool:
    """Whether the run has stood for so long that who has something better would have come back with it."""
    since_s = scheduler.inactive_since_s
    return since_s is not None and now_s >= since_s + scheduler.host.settings.transfer_stall_s


def choose(scheduler: SchedulerMachine, newest: int, now_s: float) -> Candidate | None:
    """The candidate from which the run goes on; None: nobody has a state that will do, or it is too early to say."""
    roster = scheduler.host.roster
    if _reads_its_checkpoint(scheduler, now_s):
        return None
    live, stored = _candidates(scheduler)
    best = max(stored, key=_age, default=None)
    if best is not None and roster.model is not None and not _may_load(scheduler, best, newest, now_s):
        best = None
    patient = has_waited(scheduler, now_s)
    # Nobody came back with it: at most one round of work is repeated, never more (FlashRecovery III-E).
    able = [one for one in live if one.round >= newest] or [one for one in live if patient and one.round >= newest - 1]
    worker = min(able, key=lambda one: (-one.round, one.record.site), default=None)
    everybody = all(site in scheduler.state_requests for site in roster.member_ids())
    if worker is not None and worker.round == 0 and roster.model is not None and not (patient or everybody or best):
        worker = None  # a fresh one would begin anew, and a disk that has not spoken yet may have more
    if worker is None or best is None:
        return worker or best
    assert best.checkpoint is not None
    if worker.round == 0:  # a fresh one: it would begin anew
        return best if best.checkpoint.lineage >= roster.adopted_epoch else worker
    newer = best.checkpoint.lineage == roster.adopted_epoch and best.round > worker.round
    return best if newer else worker


def _age(candidate: Candidate) -> tuple[int, int, str]:
    assert candidate.checkpoint is not None
    return (candidate.checkpoint.lineage, candidate.round, candidate.record.site)


def _reads_its_checkpoint(scheduler: SchedulerMachine, now_s: float) -> bool:
    """A site was chosen for its checkpoint: it will train with no entry in the log, and no other one is chosen."""
    if scheduler.loading is None:
        return False
    site, until_s = scheduler.loading
    asks_again = site in scheduler.state_requests or site in scheduler.join_requests
    if scheduler.host.roster.record(site) is not None and not asks_again and now_s < until_s:
        return True
    scheduler.loading = None
    return False


def _may_load(scheduler: SchedulerMachine, best: Candidate, newest: int, now_s: float) -> bool:
    """A disk is asked last: when every member's worker is there without the state, and for an older round than is
    known of, when nobody came back with that for a while."""
    if has_waited(scheduler, now_s):
        return True
    members = scheduler.host.roster.member_ids()
    return best.round >= newest and all(site in scheduler.state_requests for site in members)


def is_loading(scheduler: SchedulerMachine, candidate: Candidate, now_s: float) -> None:
    """It was chosen: wait for it as long as its disk may take."""
    if candidate.checkpoint is not None:
        reading_s = candidate.model.state_bytes / CHECKPOINT_RATE_MIN_BYTES_PER_S
        until_s = now_s + scheduler.host.settings.transfer_stall_s + reading_s
        scheduler.loading = (candidate.record.site, until_s)


def _candidates(scheduler: SchedulerMachine) -> tuple[list[Candidate], list[Candidate]]:
    """Workers that said what they have, and checkpoints, in the roster or outside it."""
    roster = scheduler.host.roster
    live: list[Candidate] = []
    stored: list[Candidate] = []
    for site, (request, _) in scheduler.state_requests.items():
        record = roster.record(site)
        if record is None or record.incarnation != request.incarnation:
            continue
        live.append(Candidate(record=record, links=(), model=request.model, round=request.worker_round))
        if request.checkpoint is not None:
            stored.append(_stored(live[-1], request.checkpoint))
    for site, (joining, _) in scheduler.join_requests.items():
        links = _links(scheduler, site, joining.neighbours)
        if roster.record(site) is not None or not links or site not in scheduler.host.reachable():
            continue
        record = SiteRecord(
            site=site,
            name=joining.name,
            address=joining.address,
            public_key=joining.public_key,
            incarnation=joining.incarnation,
            state="member",
            versions=joining.versions,
        )
        live.append(Candidate(record=record, links=links, model=joining.model, round=joining.worker_round))
        if joining.checkpoint is not None:
            stored.append(_stored(live[-1], joining.checkpoint))
    return live, [one for one in stored if one.checkpoint and one.checkpoint.spec_digest == one.model.spec_digest]


def _stored(live: Candidate, checkpoint: CheckpointFacts) -> Candidate:
    return Candidate(
        record=live.record, links=live.links, model=live.model, round=checkpoint.round, checkpoint=checkpoint
    )


def _links(scheduler: SchedulerMachine, site: SiteId, neighbours: tuple[SiteId, ...]) -> tuple[LinkRecord, ...]:
    host, roster = scheduler.host, scheduler.host.roster
    near = [one for one in neighbours if one in roster.member_ids() and host.link_is_up(site, one)]
    keys = [link_key(site, neighbour) for neighbour in near]
    return tuple(LinkRecord(one=one, other=other, rate_bytes_per_s=0.0, rtt_s=0.0) for one, other in keys)
