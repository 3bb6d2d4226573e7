"""What tests of the scheduler's role share: reports, losses, time that passes while everybody is there."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.one_site import (
    MODEL,
    A,
    B,
    Bench,
    leader_of,
    link,
    moving,
    roster_of,
    sent,
)

from chaos_protocols import events
from chaos_protocols.agreement.raft.messages import (
    AppendRequest,
    AppendResponse,
    PreVoteRequest,
    PreVoteResponse,
    RaftMessage,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import (
    ConnectOrder,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeaveRequest,
    LinkReady,
    LinkStateAdvertisement,
    RaftEnvelope,
    SiteStatus,
)
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange, Tag


def report(bench: Bench, *, active: bool = True, done_round: int = 0, empty_round: Tag | None = None) -> SiteStatus:
    epoch = bench.machine.roster.epoch
    return SiteStatus(
        incarnation=1,
        epoch=epoch,
        done_round=done_round,
        active=active,
        transfer_bytes=0,
        empty_round=empty_round,
        known_round=done_round,
    )


def down(bench: Bench, reporter: SiteId, neighbour: SiteId, reason: str = "cut") -> list[Any]:
    told = LinkStateAdvertisement(
        neighbour=neighbour, incarnation=1, up=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason=reason
    )
    return bench.hear(reporter, told)


def lose(bench: Bench, site: SiteId) -> None:
    """All that this site has of `site` is gone, for certain."""
    bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=site, reason="refused"))


def alive(bench: Bench, *sites: SiteId, seconds: float, step_s: float = 0.1) -> None:
    """Time passes; these are heard, and hear us, all the while. What they have reported they report again."""
    scheduler = bench.machine.scheduler
    for _ in range(round(seconds / step_s)):
        for site in sites:
            bench.handle(moving(site))
            if scheduler.leading and site in scheduler.term.reports.newest:
                told, _ = scheduler.term.reports.newest[site]
                bench.hear(site, msgspec.structs.replace(told, epoch=bench.machine.roster.epoch))
        bench.wait(step_s)


def plan(joiner: SiteId, source: SiteId = B, transfer: str = "old") -> ReplicationPlan:
    return ReplicationPlan(
        transfer=transfer, joiner=joiner, round=0, state_bytes=1 << 20, shard_bytes=4096, reason="",
        ranges=(SourceRange(source=source, start=0, stop=1 << 20),),
    )  # fmt: skip


def line(*members: SiteId, **changes: Any) -> Roster:
    """A in the middle of all others."""
    return roster_of(A, *members, links=tuple(link(A, one) for one in members), **changes)


def elect(bench: Bench, *, at_work: bool = True) -> None:
    """The other voters grant whatever A asks for, until it leads. Not `at_work`: none has its first entry."""
    for _ in range(60):
        bench.wait(0.1)
        for site, told in sent(bench.taken(), RaftEnvelope):
            match told.message:
                case PreVoteRequest(term=term):
                    bench.hear(site, RaftEnvelope(message=PreVoteResponse(term=term, granted=True)))
                case VoteRequest(term=term):
                    bench.hear(site, RaftEnvelope(message=VoteResponse(term=term, granted=True)))
        for site in bench.machine.links.neighbours:
            bench.handle(moving(site))
        if bench.machine.scheduler.leading:
            if at_work:
                acknowledge(bench, *bench.machine.links.up_sites())
            return
    raise AssertionError("no leader")


def acknowledge(bench: Bench, *sites: SiteId) -> None:
    """These hold whatever the leader has."""
    tenures = {
        site: told.message.tenure
        for site, told in sent(bench.out, RaftEnvelope)
        if isinstance(told.message, AppendRequest)
    }
    last = bench.machine.raft.last_index
    for site in sites:
        said = AppendResponse(
            term=bench.machine.raft.term, success=True, match_index=last, previous_index=last, conflict_index=0,
            last_index=last, tenure=tenures.get(site, 0),
        )  # fmt: skip
        bench.hear(site, RaftEnvelope(message=said))


def asked_to_lead(bench: Bench) -> list[SiteId]:
    """To whom the scheduler's role was handed, since the last look."""
    return [site for site, told in sent(bench.out, RaftEnvelope) if isinstance(told.message, TimeoutNow)]


def holds(bench: Bench, number: int, digest: str) -> None:
    """This site's own result of its last round."""
    bench.machine.membership.begun, bench.machine.rounds.completed_round, bench.machine.rounds.digest = (
        True,
        number,
        digest,
    )


def refusing(bench: Bench) -> Any:
    """The agreement takes nothing (a change of the voters is not committed yet, the role is being handed over)."""
    real = bench.machine.propose
    bench.machine.propose = lambda *_: False  # type: ignore[method-assign]
    return real


def accepting(bench: Bench, real: Any) -> None:
    bench.machine.propose = real  # type: ignore[method-assign]
    bench.hear(B, report(bench))


def training(*others: SiteId, **changes: Any) -> Bench:
    """A leads; B has told that its worker trains."""
    bench = leader_of(*others, **changes)
    bench.hear(B, report(bench))
    return bench


def join(bench: Bench, site: SiteId, *neighbours: SiteId, incarnation: int = 1) -> JoinAnswer:
    bench.up(site)
    request = JoinRequest(
        name=f"site {site[:1]}", address=f"{site[:1]}:1", public_key=b"", incarnation=incarnation,
        neighbours=neighbours, model=MODEL, worker_round=0,
    )  # fmt: skip
    ((_, told),) = sent(bench.hear(site, request), JoinAnswer)
    return told


def connected(bench: Bench, neighbour: SiteId, joiner: SiteId, *, ready: bool = True) -> None:
    """The neighbour answers the order that it was given for this joiner."""
    order = next(told for site, told in sent(bench.out, ConnectOrder) if site == neighbour and told.other == joiner)
    bench.hear(
        neighbour,
        LinkReady(
            negotiation=order.negotiation, other=joiner, ready=ready, rtt_s=0.01, rate_bytes_per_s=1e7, reason="no"
        ),
    )


def leave(bench: Bench, site: SiteId, incarnation: int = 1) -> list[LeaveAnswer]:
    return [told for _, told in sent(bench.hear(site, LeaveRequest(incarnation=incarnation, reason="")), LeaveAnswer)]


def raft(message: RaftMessage) -> RaftEnvelope:
    return RaftEnvelope(message=message)
