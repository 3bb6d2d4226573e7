"""From which state a run goes on when no live member has it: which workers and which checkpoints could bring it, and
which of them does (decisions 0006 and 0011).

A worker that lives comes first, if it has the newest round that is known of; a checkpoint is the last resort. An older
state is never taken silently, and not before a while has passed in which a newer one could have come back. Also how a
run begins: with the state of the founder's worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from chaos_protocols.agreement.commands import SetRestorePoint
from chaos_protocols.agreement.roster import LinkRecord, ModelFacts, SiteRecord, View
from chaos_protocols.agreement.views import connects, make_view
from chaos_protocols.names import SiteId, link_key
from chaos_protocols.scheduler.decisions import Decision, Note, SiteFailed
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.proposals import Proposal, with_learner
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.wire.control import JoinRequest, StateRequest
from chaos_protocols.wire.plans import CheckpointFacts

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
    def source(self) -> str:
        return "worker" if self.checkpoint is None else "checkpoint"


Offer = tuple[Candidate, CheckpointFacts | None]
"""What a site has said: the state of its worker, and what is on its disk."""


class RestorePoint:
    """Of one term of the scheduler."""

    def __init__(self, facts: Facts, reports: Reports, *, led_since_s: float) -> None:
        self._facts, self._reports = facts, reports
        self._led_since_s = led_since_s
        self._state_requests: dict[SiteId, StateRequest] = {}
        """Sites of the roster whose workers have said which round they are at, and what is on their disks."""
        self._join_requests: dict[SiteId, JoinRequest] = {}
        """The same of sites outside."""
        self._inactive_since_s: float | None = None
        """Since when no member has trained."""
        self._loading: tuple[SiteId, float] | None = None
        """The site that was chosen for its checkpoint, and until when it may read it."""
        self._proposed: Candidate | None = None
        """Whose state the last decision was to go on from."""

    # -- what could be gone on from

    @property
    def state_requests(self) -> Mapping[SiteId, StateRequest]:
        return self._state_requests

    @property
    def join_requests(self) -> Mapping[SiteId, JoinRequest]:
        return self._join_requests

    def offered_inside(self, site: SiteId, request: StateRequest) -> None:
        self._state_requests[site] = request

    def offered_outside(self, site: SiteId, request: JoinRequest) -> None:
        self._join_requests[site] = request

    def is_served(self, site: SiteId) -> None:
        """It gets the state from a member."""
        self._state_requests.pop(site, None)

    def stays_outside(self, site: SiteId) -> None:
        """It does not want to join any more."""
        self._join_requests.pop(site, None)

    # -- the decision

    def step(self, now_s: float) -> Decision | None:
        """No live member has the state: the run begins with the founder's worker, or goes on from one that has the
        newest state. An older state is never taken silently: the run waits until a site that has the newest one is
        back; after a while one that is a single round older will do."""
        facts, roster = self._facts, self._facts.roster
        trains = (roster.model is not None and facts.active) or self._reports.anybody_active()
        if roster.resolving or trains or self._reports.anybody_rests():
            self._inactive_since_s = None
            return None
        if self._inactive_since_s is None:
            self._inactive_since_s = now_s
        if roster.model is not None and not self._nobody_trains(now_s):
            return None
        newest = self._reports.newest_round()
        chosen = self._choose(newest, now_s)
        if chosen is None:
            return None
        view = self._view_with(chosen)
        if view is None:
            return None
        learners = [one.site for one in roster.sites if one.state == "learner" and one.site != chosen.record.site]
        if learners:  # one goes at a time, each with the next event: this takes no step of its own
            reason = "its transfer's sources are gone"
            return Decision(reason=reason, failed=(SiteFailed(site=learners[0], reason=reason),))
        self._proposed = chosen
        return self._restore_decision(chosen, view, newest)

    def proposed(self, now_s: float) -> None:
        """What was decided last is in the log: the run goes on from there. A checkpoint has the time that its disk may
        take before anything else is chosen."""
        assert self._proposed is not None
        chosen, site = self._proposed, self._proposed.record.site
        self._state_requests.pop(site, None)
        self._join_requests.pop(site, None)
        if chosen.checkpoint is not None:
            reading_s = chosen.model.state_bytes / CHECKPOINT_RATE_MIN_BYTES_PER_S
            self._loading = (site, now_s + self._facts.settings.transfer_stall_s + reading_s)

    def _nobody_trains(self, now_s: float) -> bool:
        """Whether that is certain, and not only unheard."""
        facts, reports = self._facts, self._reports
        if not all(reports.spoke_lately(record, now_s) for record in facts.roster.sites if record.state == "member"):
            return False
        if now_s < self._led_since_s + facts.settings.failure_timeout_s:
            return False  # others may still report that their workers live
        in_memory = any(report.memory_checkpoint for report in reports.of_members().values())
        # No entry says that a worker trains that its own daemon gave the state.
        return not in_memory or self._has_waited(now_s)

    def _has_waited(self, now_s: float) -> bool:
        """Whether the run has stood for so long that who has something better would have come back with it."""
        since_s = self._inactive_since_s
        return since_s is not None and now_s >= since_s + self._facts.settings.transfer_stall_s

    def _view_with(self, chosen: Candidate) -> View | None:
        """All members, and the chosen site; None where the overlay does not connect them."""
        facts, roster = self._facts, self._facts.roster
        members = {*roster.member_ids(), chosen.record.site}
        links = (*roster.links, *chosen.links)
        if not connects(members, (), links):
            return None
        return make_view(facts.planner, first_round=chosen.round + 1, members=members, listeners=(), links=links)

    def _restore_decision(self, chosen: Candidate, view: View, newest: int) -> Decision:
        configuration, site = self._facts.configuration, chosen.record.site
        member = msgspec.structs.replace(chosen.record, state="member")
        command = SetRestorePoint(
            record=member, links=chosen.links, round=chosen.round, model=chosen.model, views=(view,)
        )
        known_here = site in configuration.voters or site in configuration.learners
        proposal = Proposal(command=command, configuration=None if known_here else with_learner(configuration, site))
        repeated = ""
        if chosen.round == newest - 1:
            repeated = f"; round {newest} is done again, its result died with its workers"
        elif chosen.round < newest:
            first = chosen.round + 1
            repeated = f"; rounds {first} to {newest} are done again, their results died with their workers"
        reason = f"the run goes on from its {chosen.source}, at round {chosen.round}{repeated}"
        note = Note(
            kind="restore-point", subject=chosen.record.name, cause="no member has the training state", outcome="done",
            reason=reason,
        )  # fmt: skip
        return Decision(reason=reason, proposal=proposal, note=note)

    # -- the choice

    def _choose(self, newest: int, now_s: float) -> Candidate | None:
        """The candidate from which the run goes on; None: nobody has a state that will do, or it is too early to
        say."""
        if self._reads_its_checkpoint(now_s):
            return None
        offers = [*self._inside(), *self._outside()]
        stored = self._best_stored(offers, newest, now_s)
        worker = self._best_worker([one for one, _ in offers], newest, now_s)
        if worker is not None and self._begins_anew(worker) and stored is None and not self._everybody_spoke(now_s):
            return None
        if worker is None or stored is None:
            return worker or stored
        assert stored.checkpoint is not None
        lineage, present = stored.checkpoint.lineage, self._facts.roster.restore_epoch
        if worker.round == 0:  # a fresh one: it would begin anew
            return stored if lineage >= present else worker
        return stored if lineage == present and stored.round > worker.round else worker

    def _best_worker(self, live: list[Candidate], newest: int, now_s: float) -> Candidate | None:
        able = [one for one in live if one.round >= newest]
        if not able and self._has_waited(now_s):
            # Nobody came back with it: at most one round of work is repeated, never more (FlashRecovery III-E).
            able = [one for one in live if one.round >= newest - 1]
        return min(able, key=lambda one: (-one.round, one.record.site), default=None)

    def _begins_anew(self, worker: Candidate) -> bool:
        """A fresh worker where the run has begun already: a disk that has not spoken yet may have more."""
        return worker.round == 0 and self._facts.roster.model is not None

    def _everybody_spoke(self, now_s: float) -> bool:
        """Every member's worker is there without the state, or has had the time to be."""
        return self._has_waited(now_s) or self._every_member_asks()

    def _every_member_asks(self) -> bool:
        return all(site in self._state_requests for site in self._facts.roster.member_ids())

    def _best_stored(self, offers: list[Offer], newest: int, now_s: float) -> Candidate | None:
        """The newest checkpoint, if it may be loaded: a disk is asked last, when every member's worker is there
        without the state; and for an older round than is known of, when nobody came back with that for a while."""
        stored = [
            replace(one, round=checkpoint.round, checkpoint=checkpoint)
            for one, checkpoint in offers
            if checkpoint is not None and checkpoint.spec_digest == one.model.spec_digest
        ]
        best = max(stored, key=_age, default=None)
        if best is None or self._facts.roster.model is None or self._has_waited(now_s):
            return best
        return best if best.round >= newest and self._every_member_asks() else None

    def _reads_its_checkpoint(self, now_s: float) -> bool:
        """A site was chosen for its checkpoint: it will train with no entry in the log, and no other one is chosen."""
        if self._loading is None:
            return False
        site, until_s = self._loading
        asks_again = site in self._state_requests or site in self._join_requests
        if self._facts.roster.record(site) is not None and not asks_again and now_s < until_s:
            return True
        self._loading = None
        return False

    def _inside(self) -> Iterator[Offer]:
        """Of sites of the roster."""
        for site, request in self._state_requests.items():
            record = self._facts.roster.record(site)
            if record is None or record.incarnation != request.incarnation:
                continue
            worker = Candidate(record=record, links=(), model=request.model, round=request.worker_round)
            yield worker, request.checkpoint

    def _outside(self) -> Iterator[Offer]:
        """Of sites that could be admitted with what they have."""
        for site, request in self._join_requests.items():
            links = self._links(site, request.neighbours)
            if self._facts.roster.record(site) is not None or not links or site not in self._facts.reachable():
                continue
            record = SiteRecord(
                site=site,
                name=request.name,
                address=request.address,
                public_key=request.public_key,
                incarnation=request.incarnation,
                state="member",
                versions=request.versions,
            )
            worker = Candidate(record=record, links=links, model=request.model, round=request.worker_round)
            yield worker, request.checkpoint

    def _links(self, site: SiteId, neighbours: tuple[SiteId, ...]) -> tuple[LinkRecord, ...]:
        facts, members = self._facts, self._facts.roster.member_ids()
        near = [one for one in neighbours if one in members and facts.link_is_up(site, one)]
        keys = [link_key(site, neighbour) for neighbour in near]
        return tuple(LinkRecord(one=one, other=other, rate_bytes_per_s=0.0, rtt_s=0.0) for one, other in keys)


def _age(candidate: Candidate) -> tuple[int, int, str]:
    assert candidate.checkpoint is not None
    return (candidate.checkpoint.lineage, candidate.round, candidate.record.site)
