"""A round to which everybody gave weight 0 is done again when a member has the state."""

from __future__ import annotations

from tests.unit.protocols.one_site import (
    EPOCH,
    A,
    B,
    leader_of,
    records,
    roster_of,
)
from tests.unit.protocols.scheduler.scheduler_kit import (
    alive,
    refusing,
    report,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    RetryRound,
    apply_command,
    decode_command,
    encode_command,
)
from chaos_protocols.wire.control import (
    RoundStatusReply,
    SiteStatus,
)
from chaos_protocols.wire.plans import Tag


def test_a_round_is_done_again_once_the_agreement_takes_it() -> None:
    bench = leader_of(B)
    tag = bench.machine.rounds.running
    assert tag is not None
    real = refusing(bench)
    bench.handle(events.RoundCameUpEmpty(tag=tag))
    bench.hear(B, report(bench))
    assert not bench.machine.roster.resolving
    bench.machine.propose = real  # type: ignore[method-assign]
    alive(bench, B, seconds=1.5)
    assert bench.machine.roster.resolving or bench.machine.rounds.running != tag


def test_a_round_of_weight_zero_is_opened_anew_when_a_member_has_the_state() -> None:
    bench = leader_of(B)
    bench.hear(B, report(bench, active=False))
    tag = bench.machine.rounds.running
    assert tag is not None
    bench.handle(events.RoundCameUpEmpty(tag=tag))
    assert bench.machine.roster.epoch == EPOCH, "nobody has the state: it waits"
    bench.hear(B, report(bench))
    assert bench.machine.roster.resolving
    epoch = bench.machine.roster.epoch
    bench.hear(B, RoundStatusReply(epoch=epoch, done_round=0, digest="", has_state=True))
    assert bench.machine.rounds.running != tag and not bench.machine.roster.resolving


def test_round_that_is_done_again_is_resolved_first() -> None:
    roster = roster_of(A, B)
    command = RetryRound(views=roster.views, reason="every contribution had weight 0")
    assert decode_command(encode_command(command)) == command
    after = apply_command(roster, command, EPOCH + 1)
    assert after.resolving
    assert (after.sites, after.links, after.views) == (roster.sites, roster.links, roster.views)
    assert after.view_of(1) is None


def test_stalled_round_is_done_again_when_a_member_has_the_state() -> None:
    bench = leader_of(B)
    stalled = Tag(epoch=bench.machine.roster.views[-1].epoch, round=1)
    here = SiteStatus(incarnation=1, epoch=EPOCH, done_round=0, active=True, transfer_bytes=0, empty_round=stalled)
    bench.taken()
    bench.hear(B, here)
    assert bench.machine.roster.resolving
    assert [one.reason for one in records(bench.taken(), "resolve")] == ["it is done again"]
    assert bench.machine.roster.links == roster_of(A, B).links
