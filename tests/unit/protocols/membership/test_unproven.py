"""A site that was away until all have lost their votes that it knows: it asks who schedules now to show who elected it,
and says so where that is in vain (spec 4.12, 12.11)."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.membership.test_outsiders import append
from tests.unit.protocols.one_site import (
    EPOCH,
    MODEL,
    A,
    B,
    Bench,
    C,
    D,
    heartbeat,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import alive

from chaos_protocols import events
from chaos_protocols.agreement.raft.messages import LeaderProof, ProofRequest
from chaos_protocols.agreement.replica import UNPROVEN_TOLD_MAX
from chaos_protocols.causes import Cause
from chaos_protocols.membership.joining import UNPROVEN_FIRST_S
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import JoinAnswer, JoinRequest, LinkStateAdvertisement, RaftEnvelope
from chaos_protocols.wire.versions import PROOFS_SINCE

IN_VAIN = RaftEnvelope(message=LeaderProof(term=2, leader=D, votes=(), mandates=()))


def back() -> Bench:
    """B was started again. By its journal A alone votes, which is gone; C, which has no vote there, names D."""
    bench = Bench(B, roster_of(A, B, C), voters=(A,), incarnation=2).up(C)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    way = LinkStateAdvertisement(neighbour=D, incarnation=1, up=True, rtt_s=0.01, rate_bytes_per_s=1e7, reason="")
    bench.hear(C, way)
    beat(bench)
    return bench


def beat(bench: Bench, scheduler: SiteId = D) -> list[Any]:
    return bench.hear(C, heartbeat(epoch=EPOCH + 9, scheduler=scheduler, knows_you=False))


def lives(bench: Bench, seconds: float, scheduler: SiteId = D) -> list[Any]:
    before = len(bench.out)
    for _ in range(round(seconds)):
        beat(bench, scheduler)
        alive(bench, C, seconds=1.0)
    return bench.out[before:]


def said(bench: Bench) -> list[Any]:
    """D says what a leader says to who was just let in."""
    return bench.hear(D, RaftEnvelope(message=msgspec.structs.replace(append(), term=2, leader=D)), by=C)


def test_whom_no_voter_names_is_asked_who_elected_it() -> None:
    bench = back()
    assert sent(lives(bench, 1), JoinRequest)
    asked = [one.message for site, one in sent(said(bench), RaftEnvelope) if site == D]
    assert asked == [ProofRequest(term=2, since=EPOCH)] and bench.machine.raft.leader is None


def test_a_release_that_could_not_read_the_question_is_not_asked() -> None:
    bench = back()
    message = RaftEnvelope(message=msgspec.structs.replace(append(), term=2, leader=D))
    old = msgspec.structs.replace(bench.envelope(D, message), version=PROOFS_SINCE - 1)
    assert not sent(bench.handle(events.EnvelopeReceived(neighbour=C, envelope=old)), RaftEnvelope)
    assert bench.machine.raft.leader is None


def test_who_cannot_show_it_is_asked_ever_more_seldom_to_let_this_site_in_which_says_why() -> None:
    bench = back()
    bench.hear(D, JoinAnswer(incarnation=2, accepted=True, final=False, reason=""), by=C)
    said(bench)
    out = bench.hear(D, IN_VAIN, by=C)
    assert [one.cause for one in records(out, "refused")] == ["claims to schedule in term 2"]
    why = bench.machine.participation.pause.why()
    assert why is not None and why.cause is Cause.UNPROVEN and A[:8] in why.text and D[:8] in why.text
    assert not sent(lives(bench, UNPROVEN_FIRST_S - 2), JoinRequest)
    assert sent(lives(bench, 4), JoinRequest), "it may be able to show more by now"
    lives(bench, 1)
    said(bench)
    bench.hear(D, IN_VAIN, by=C)
    assert not sent(lives(bench, 2 * UNPROVEN_FIRST_S - 2), JoinRequest)
    assert sent(lives(bench, 2, scheduler=C), JoinRequest), "another one schedules"


def test_a_site_that_claims_ever_new_terms_fills_no_history() -> None:
    bench, out = back(), []
    for term in range(2, 20):
        message = msgspec.structs.replace(append(), term=term, leader=D)
        bench.hear(D, RaftEnvelope(message=message), by=C)
        out += bench.hear(D, RaftEnvelope(message=LeaderProof(term=term, leader=D, votes=(), mandates=())), by=C)
        out += lives(bench, 2)
    told = [one.cause for one in records(out, "refused") if "claims to schedule" in one.cause]
    assert len(told) == UNPROVEN_TOLD_MAX


def test_what_is_shown_in_vain_again_meanwhile_lengthens_nothing_and_another_one_has_a_time_of_its_own() -> None:
    bench = back()
    joining = bench.machine.participation.joining
    for _ in range(3):
        joining.unproven(D)
    assert joining.is_in_vain(D) and not joining.is_in_vain(A)
    bench.wait(UNPROVEN_FIRST_S - 2)
    joining.unproven(A)
    assert joining.is_in_vain(A) and not joining.is_in_vain(D)
    bench.wait(UNPROVEN_FIRST_S - 2)
    joining.unproven(A)
    assert joining.is_in_vain(A)
    bench.wait(4)
    assert not joining.is_in_vain(A)
