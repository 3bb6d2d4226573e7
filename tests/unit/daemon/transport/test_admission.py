"""Verdicts on proven dialers: trust first, then the run, then which of two connections stays."""

from __future__ import annotations

import itertools

import msgspec

from chaos_protocols.causes import Cause
from chaos_protocols.names import SiteId
from chaos_protocols.wire.handshake import ACCEPTED, FIXED_REFUSAL, Hello, Session, Verdict
from chaos_protocols.wire.versions import NEWEST, OLDEST
from chaosd.transport.admission import AdmissionFacts, StandingLink, judge, why_refused
from chaosd.transport.handshake import Speaker
from chaosd.transport.settings import KeptOut
from chaosd.transport.starts import Start

SMALL, LARGE = SiteId("0" * 32), SiteId("f" * 32)


def hello(site: SiteId, **changes: object) -> Hello:
    made = Hello(
        version=NEWEST,
        oldest=OLDEST,
        run="hearts",
        site=site,
        public_key=bytes(32),
        incarnation=5,
        purpose="control",
        stream=0,
        streams=2,
        session=Session(dialer=site, attempt=4),
        known=None,
        address="",
        nonce=bytes(32),
    )
    return msgspec.structs.replace(made, **changes)


def facts(own: SiteId = SMALL, **changes: object) -> AdmissionFacts:
    known: dict[str, object] = {
        "own_site": own,
        "own_run": "hearts",
        "own_start": Start(incarnation=1),
        "own_address": "host:1",
        "own": Speaker(),
        "kept_out": None,
        "link": None,
        "committed": False,
    }
    return AdmissionFacts(**(known | changes))  # type: ignore[arg-type]


def code(verdict: tuple[Verdict, str]) -> str:
    return verdict[0].code


def standing(dialer: SiteId, attempt: int, incarnation: int = 5) -> StandingLink:
    return StandingLink(incarnation=incarnation, session=Session(dialer=dialer, attempt=attempt), streams=2)


def test_a_distrusted_site_gets_the_fixed_refusal_whatever_else_is_wrong() -> None:
    for changes in ({}, {"version": 9, "oldest": 9}, {"run": "other"}, {"purpose": "x"}, {"incarnation": 0}):
        verdict, reason = judge(LARGE, hello(LARGE, **changes), facts(kept_out=KeptOut("banned")))
        assert verdict == FIXED_REFUSAL and reason == "banned"


def test_only_a_stranger_is_named_to_the_operator_as_one_to_let_in() -> None:
    """Who was shut out for what it did is not waiting for `chaosd accept`."""
    causes = {}
    for kept_out in (KeptOut("not trusted by this site", stranger=True), KeptOut("it broke the rules")):
        facts_now = facts(kept_out=kept_out)
        why = why_refused(LARGE, hello(LARGE), facts_now, judge(LARGE, hello(LARGE), facts_now)[0], "10.0.0.1")
        assert why is not None
        causes[why.cause] = why.text
    assert list(causes) == [Cause.UNTRUSTED, Cause.SHUT_OUT]
    assert "chaosd accept" in causes[Cause.UNTRUSTED] and "chaosd accept" not in causes[Cause.SHUT_OUT]


def test_this_site_itself_is_refused() -> None:
    assert judge(SMALL, hello(SMALL), facts())[0] == FIXED_REFUSAL


def test_of_two_committed_dials_exactly_that_of_the_smaller_site_is_accepted() -> None:
    assert code(judge(LARGE, hello(LARGE), facts(SMALL, committed=True))) == "simultaneous"
    assert code(judge(SMALL, hello(SMALL), facts(LARGE, committed=True))) == ACCEPTED


def test_a_dial_that_finds_us_not_committed_is_accepted() -> None:
    assert code(judge(LARGE, hello(LARGE), facts(SMALL))) == ACCEPTED


def test_a_hello_written_before_the_link_was_known_is_a_straggler() -> None:
    ours = standing(SMALL, 7)
    assert code(judge(LARGE, hello(LARGE), facts(link=ours))) == "simultaneous"
    older = Session(dialer=SMALL, attempt=6)
    assert code(judge(LARGE, hello(LARGE, known=older), facts(link=ours))) == "simultaneous"


def test_a_redial_by_a_peer_that_knew_the_link_replaces_it() -> None:
    assert (
        code(judge(LARGE, hello(LARGE, known=Session(dialer=SMALL, attempt=7)), facts(link=standing(SMALL, 7))))
        == ACCEPTED
    )
    assert code(judge(LARGE, hello(LARGE), facts(link=standing(LARGE, 3)))) == ACCEPTED


def test_the_smaller_site_that_is_committed_takes_nothing_of_the_other_dial_whatever_stands() -> None:
    knows = hello(LARGE, known=Session(dialer=SMALL, attempt=7))
    bulk = hello(LARGE, purpose="bulk", stream=1)
    for said, link in (
        (hello(LARGE), None),
        (hello(LARGE), standing(LARGE, 3)),
        (hello(LARGE), standing(LARGE, 3, incarnation=4)),
        (knows, standing(SMALL, 7)),
        (bulk, standing(LARGE, 4)),
    ):
        if link is not None:
            assert code(judge(LARGE, said, facts(SMALL, link=link))) == ACCEPTED
        assert code(judge(LARGE, said, facts(SMALL, link=link, committed=True))) == "simultaneous"


def test_the_larger_site_takes_the_other_dial_though_it_is_committed_itself() -> None:
    bulk = hello(SMALL, purpose="bulk", stream=1)
    for said, link in ((hello(SMALL), None), (hello(SMALL), standing(SMALL, 3)), (bulk, standing(SMALL, 4))):
        assert code(judge(SMALL, said, facts(LARGE, link=link, committed=True))) == ACCEPTED


def test_an_attempt_that_arrives_out_of_order_is_stale() -> None:
    for attempt in (4, 5):
        assert code(judge(LARGE, hello(LARGE), facts(link=standing(LARGE, attempt)))) == "stale"


def test_incarnations_only_rise() -> None:
    for dialer, committed in itertools.product((SMALL, LARGE), (False, True)):
        newer = facts(link=standing(dialer, 9, incarnation=6), committed=committed)
        older = facts(link=standing(dialer, 9, incarnation=4), committed=committed)
        assert code(judge(LARGE, hello(LARGE), newer)) == "stale"
        verdict = "simultaneous" if committed else ACCEPTED  # else each end would give way: our hello may be on its way
        assert code(judge(LARGE, hello(LARGE), older)) == verdict


def test_an_older_start_than_is_known_is_stale_without_a_link_too() -> None:
    """It is shown which one is known, so that it can end (spec 2.14)."""
    verdict, _ = judge(LARGE, hello(LARGE), facts(newest=Start(incarnation=6, signature=b"s")))
    assert (verdict.code, verdict.newest, verdict.newest_start) == ("stale", 6, b"s")
    assert code(judge(LARGE, hello(LARGE), facts(newest=Start(incarnation=5)))) == ACCEPTED


def test_a_control_connection_belongs_to_the_dialers_own_session() -> None:
    assert judge(LARGE, hello(LARGE, session=Session(dialer=SMALL, attempt=1)), facts())[0] == FIXED_REFUSAL


def test_bulk_streams_belong_to_a_standing_link() -> None:
    bulk = hello(LARGE, purpose="bulk", stream=1)
    assert code(judge(LARGE, bulk, facts())) == "stale"
    assert code(judge(LARGE, bulk, facts(link=standing(LARGE, 4)))) == ACCEPTED
    assert code(judge(LARGE, bulk, facts(link=standing(LARGE, 3)))) == "stale"
    assert code(judge(LARGE, bulk, facts(link=standing(LARGE, 4, incarnation=6)))) == "stale"
    assert code(judge(LARGE, hello(LARGE, purpose="bulk", stream=2), facts(link=standing(LARGE, 4)))) == "stale"
