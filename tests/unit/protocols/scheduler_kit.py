"""What tests of the scheduler's role share: reports, losses, time that passes while everybody is there."""

from __future__ import annotations

from typing import Any

from tests.unit.protocols.one_site import (
    A,
    B,
    Bench,
    link,
    roster_of,
)

from chaos_protocols import events
from chaos_protocols.messages import (
    LinkReport,
    Report,
)
from chaos_protocols.names import SiteId
from chaos_protocols.plans import ReplicationPlan, SourceRange, Tag
from chaos_protocols.roster import Roster


def report(bench: Bench, *, active: bool = True, done_round: int = 0, stalled: Tag | None = None) -> Report:
    epoch = bench.machine.roster.epoch
    return Report(incarnation=1, epoch=epoch, done_round=done_round, active=active, transfer_bytes=0, stalled=stalled)


def down(bench: Bench, reporter: SiteId, neighbour: SiteId, reason: str = "cut") -> list[Any]:
    told = LinkReport(neighbour=neighbour, incarnation=1, up=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason=reason)
    return bench.hear(reporter, told)


def lose(bench: Bench, site: SiteId) -> None:
    """All that this site has of `site` is gone, for certain."""
    bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file", end_of_file=True))
    bench.handle(events.DialFailed(site=site, reason="refused"))


def alive(bench: Bench, *sites: SiteId, seconds: float, step_s: float = 0.1) -> None:
    """Time passes; these are heard, and hear us, all the while."""
    for _ in range(round(seconds / step_s)):
        for site in sites:
            bench.handle(events.LinkProgressed(site=site))
        bench.wait(step_s)


def plan(joiner: SiteId, source: SiteId = B, transfer: str = "old") -> ReplicationPlan:
    return ReplicationPlan(
        transfer=transfer, joiner=joiner, round=0, state_bytes=1 << 20, shard_bytes=4096, reason="",
        ranges=(SourceRange(source=source, start=0, stop=1 << 20),),
    )  # fmt: skip


def line(*members: SiteId, **changes: Any) -> Roster:
    """A in the middle of all others."""
    return roster_of(A, *members, links=tuple(link(A, one) for one in members), **changes)
