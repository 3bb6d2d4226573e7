"""The states that a run could go on from when no member has one: what the sites have said of their workers and disks.

Kept for one term of the scheduler; asked by `restore_point.py`, which decides. Source: spec 13.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from chaos_protocols.agreement.roster import DEPARTED_KEPT_MAX, Departure, LinkRecord, ModelFacts, Roster, SiteRecord
from chaos_protocols.names import ROUNDS_DONE_MAX, SiteId, link_key
from chaos_protocols.rounds.reached import ANEW_ROUNDS_MAX
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.proposals import record_of
from chaos_protocols.wire.control import JoinRequest, StateRequest
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.versions import LINEAGES_SINCE

ASKERS_MAX = 64
"""Sites that were never in the run, as far as is known, whose request to join is remembered while nobody trains."""

Age = tuple[int, int]
"""Lineage and round of a state: the greater one is the newer. A run that went back to an older state has given up what
came after it, whatever its round."""


def is_given_up(roster: Roster, age: Age) -> bool:
    """An operator has had the run go on from another state than that: what came after it, and what was done in
    histories that began since it was made, is taken again on an operator's word alone. As far as the roster still
    tells: the run has not come so far since."""
    lineage, number = age
    if not roster.restored_by or lineage >= roster.restore_epoch:
        return False
    return number > roster.resolved_round or 0 < roster.restored_lineage < lineage


def heeded(roster: Roster, age: Age) -> Age:
    """The newest that whoever has a state of that age may have besides, if an operator has given that one up."""
    if not is_given_up(roster, age):
        return age
    return (min(age[0], roster.restored_lineage or age[0]), roster.resolved_round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A site that could bring the state of `round`: its worker has it, or (`checkpoint`) its disk."""

    record: SiteRecord
    links: tuple[LinkRecord, ...]
    model: ModelFacts
    round: int
    lineage: int
    trained: bool = False
    """Nobody has a state that is more than a round newer than its worker's."""
    checkpoint: CheckpointFacts | None = None

    @property
    def source(self) -> str:
        return "worker" if self.checkpoint is None else "checkpoint"

    @property
    def age(self) -> Age:
        return (self.lineage, self.round)

    def lineage_told(self, roster: Roster) -> int:
        """Where it is taken on an operator's word; 0: a fresh worker has none, and older sites do not know of it."""
        known = min(roster.version(), self.record.versions.newest) >= LINEAGES_SINCE
        return self.lineage if self.round and known else 0

    @property
    def rank(self) -> tuple[Age, bool, str]:
        """The least comes first: the newest state, a worker before a disk, the lowest id."""
        return ((-self.lineage, -self.round), self.checkpoint is not None, self.record.site)


class RestoreOffers:
    """See the module."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._state_requests: dict[SiteId, StateRequest] = {}
        """Sites of the roster whose workers have said which round they are at, and what is on their disks."""
        self._join_requests: dict[SiteId, JoinRequest] = {}
        """The same of sites outside."""

    @property
    def state_requests(self) -> Mapping[SiteId, StateRequest]:
        return self._state_requests

    @property
    def join_requests(self) -> Mapping[SiteId, JoinRequest]:
        return self._join_requests

    def inside(self, site: SiteId, request: StateRequest) -> None:
        self._state_requests[site] = request

    def outside(self, site: SiteId, request: JoinRequest) -> None:
        """What a start that was in the roster says counts from its answer to this term on: what it asked before it was
        let in may come late, or again, and this daemon may have been started since. Of sites that were never in it, as
        far as is known, the ASKERS_MAX that asked last."""
        facts = self._facts
        last = max((gone.incarnation for gone in facts.roster.departed if gone.site == site), default=-1)
        if request.incarnation > last or (request.incarnation == last and request.answered_in == facts.term):
            self._join_requests[site] = request
            gone = {one.site for one in facts.roster.departed}
            strangers = [one for one in self._join_requests if one not in gone]
            for one in strangers[: max(0, len(strangers) - ASKERS_MAX)]:
                del self._join_requests[one]

    def stays_outside(self, site: SiteId) -> None:
        """It does not want to join any more."""
        self._join_requests.pop(site, None)

    def is_void(self, site: SiteId) -> None:
        """It is given another state than it offered, or has one by now and trains: what it said before is of no worth,
        also where it comes late. It asks again when it has to."""
        self._state_requests.pop(site, None)
        self._join_requests.pop(site, None)

    def asks(self, site: SiteId) -> bool:
        """It has asked since it was last chosen or served."""
        return site in self._state_requests or site in self._join_requests

    def has_spoken(self, record: SiteRecord) -> bool:
        """This start of a site of the roster has said what its worker and its disk have."""
        request = self._state_requests.get(record.site)
        return request is not None and request.incarnation == record.incarnation

    def newest_of(self, site: SiteId) -> Age | None:
        """The newest state that a site outside says it has, whether or not a member has a link to it; None: it has said
        nothing since it was inside."""
        request = self._join_requests.get(site)
        if request is None:
            return None
        worker = (self._lineage(request), request.worker_round) if request.worker_round else (0, 0)
        stored = request.checkpoint
        if stored is None or stored.spec_digest != request.model.spec_digest:
            return worker
        return max(worker, (stored.lineage, stored.round))

    def nobody_left_with_a_checkpoint(self) -> bool:
        """Of those that were in the run, had a state, and are outside now. Who has asked to join since may say that
        it had none yet. Nobody knows it once so many have gone that the roster forgets them."""
        roster = self._facts.roster
        if len(roster.departed) >= DEPARTED_KEPT_MAX:
            return False
        gone = (one for one in roster.departed if one.lineage or one.last_round > ANEW_ROUNDS_MAX)
        return all(roster.record(one.site) is not None or self._was_unsaved(one) for one in gone)

    def _was_unsaved(self, gone: Departure) -> bool:
        present, request = self._facts.roster.restore_epoch, self._join_requests.get(gone.site)
        return request is not None and 0 < request.unsaved_in in (present, gone.lineage or present)

    # -- what could be gone on from

    def candidates(self) -> list[Candidate]:
        """Workers, fresh ones (round 0) too, and the newest checkpoint of each disk that fits the site's worker. None
        of a round that nobody can have done: what follows it has no number that others could read."""
        return [one for one in self._all_offered() if one.round <= ROUNDS_DONE_MAX]

    def _all_offered(self) -> list[Candidate]:
        found: list[Candidate] = []
        for worker, checkpoint in (*self._inside(), *self._outside()):
            found.append(worker)
            if checkpoint is not None and checkpoint.spec_digest == worker.model.spec_digest:
                stored = replace(
                    worker, round=checkpoint.round, lineage=checkpoint.lineage, trained=False, checkpoint=checkpoint
                )
                found.append(stored)
        return found

    def _inside(self) -> Iterator[tuple[Candidate, CheckpointFacts | None]]:
        """Of sites of the roster."""
        roster = self._facts.roster
        for site, request in self._state_requests.items():
            record = roster.record(site)
            if record is None or record.incarnation != request.incarnation:
                continue
            worker = Candidate(
                record=record,
                links=(),
                model=request.model,
                round=request.worker_round,
                lineage=self._lineage(request),
                trained=request.trained,
            )
            yield worker, request.checkpoint

    def _outside(self) -> Iterator[tuple[Candidate, CheckpointFacts | None]]:
        """Of sites that could be admitted with what they have."""
        roster = self._facts.roster
        for site, request in self._join_requests.items():
            links = self._links(site, request.neighbours)
            if roster.record(site) is not None or not links or site not in self._facts.reachable():
                continue
            worker = Candidate(
                record=record_of(site, request, "member"),
                links=links,
                model=request.model,
                round=request.worker_round,
                lineage=self._lineage(request),
            )
            yield worker, request.checkpoint

    def _lineage(self, request: StateRequest | JoinRequest) -> int:
        """Of its worker's state. A fresh one is of no history, whatever its daemon calls it."""
        present = self._facts.roster.restore_epoch
        return (request.lineage or present) if request.worker_round else present

    def _links(self, site: SiteId, neighbours: tuple[SiteId, ...]) -> tuple[LinkRecord, ...]:
        """With members, which say so themselves: the first round would go over a link that is not there."""
        facts, members = self._facts, self._facts.roster.member_ids()
        linked = (one for one in neighbours if facts.has_said_up(one, site) and facts.link_is_up(site, one))
        keys = [link_key(site, one) for one in linked if one in members]
        return tuple(LinkRecord(one=one, other=other, rate_bytes_per_s=0.0, rtt_s=0.0) for one, other in keys)
