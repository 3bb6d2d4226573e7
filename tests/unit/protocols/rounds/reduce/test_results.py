"""Whole results handed from site to site: who is asked, who answers when, what happens when a source fails."""

from __future__ import annotations

import pytest

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.names import SITES_MAX, SiteId
from chaos_protocols.rounds.reduce import (
    FetchedRef,
    HeldRef,
    ResultComplete,
    ResultEffect,
    ResultExchange,
    ResultRefuted,
    ResultUnavailable,
    ResultVerified,
    SendBulk,
)
from chaos_protocols.rounds.reduce.results import WANTS_PENDING_MAX
from chaos_protocols.wire.bulk import ResultData, ResultGone, ResultHeader, ResultHeld, ResultPull, ResultWant

A, B, C = (SiteId(name) for name in "abc")
WANT = ResultWant(round=4, digest="d")
HELD = ResultHeld(round=4, digest="d")
GONE = ResultGone(round=4, digest="d")


def pull(start: int) -> ResultPull:
    return ResultPull(round=4, digest="d", next=start)


def data(chunk: int) -> ResultData:
    return ResultData(round=4, digest="d", chunk=chunk)


def sent(effects: list[ResultEffect]) -> list[tuple[SiteId, ResultHeader]]:
    assert all(isinstance(effect, SendBulk) for effect in effects), effects
    return [(effect.site, effect.header) for effect in effects if isinstance(effect, SendBulk)]  # type: ignore[misc]


def fetching(*holders: SiteId) -> ResultExchange:
    exchange = ResultExchange(A)
    exchange.fetch(4, "d", chunk_count=3, holders=holders)
    return exchange


def test_every_holder_is_asked_and_the_first_offer_is_pulled() -> None:
    exchange = ResultExchange(A)
    assert sent(exchange.fetch(4, "d", chunk_count=3, holders=[C, B, A])) == [(B, WANT), (C, WANT)]
    assert exchange.fetch(4, "d", chunk_count=3, holders=[B]) == []
    assert sent(exchange.received(C, HELD)) == [(C, pull(0))]
    assert exchange.received(B, HELD) == []
    assert exchange.place(B, data(0)) is None
    assert exchange.place(C, data(0)) == FetchedRef(round=4, index=0)
    assert exchange.received(C, data(0)) == []
    exchange.received(C, data(1))
    assert exchange.received(C, data(2)) == [ResultComplete(round=4, digest="d", source=C)]
    assert exchange.received(C, data(2)) == []
    assert exchange.received(B, HELD) == []
    exchange.hold(4, "d", 3)
    assert exchange.refuted(4) == []


def test_another_holder_goes_on_where_a_lost_one_stopped() -> None:
    exchange = fetching(B, C)
    exchange.received(B, HELD)
    exchange.received(C, HELD)
    exchange.received(B, data(0))
    assert sent(exchange.link_lost(B)) == [(C, pull(1))]
    assert exchange.link_lost(SiteId("x")) == []
    assert exchange.received(B, data(1)) == []
    assert sent(exchange.received(C, GONE)) == []
    assert sent(exchange.link_up(B)) == [(B, WANT)]
    assert sent(exchange.received(B, HELD)) == [(B, pull(1))]


def test_who_goes_on_with_another_cut_begins_from_the_start() -> None:
    exchange = ResultExchange(A)
    exchange.fetch(4, "d", chunk_count=1, fine_count=3, holders=[B, C])
    exchange.received(B, ResultHeld(round=4, digest="d", fine=True))
    exchange.received(C, HELD)
    assert exchange.place(B, data(0)) == FetchedRef(round=4, index=0, fine=True)
    assert exchange.received(B, data(0)) == []
    assert sent(exchange.link_lost(B)) == [(C, pull(0))]
    assert exchange.place(C, data(0)) == FetchedRef(round=4, index=0)
    assert exchange.received(C, data(0)) == [ResultComplete(round=4, digest="d", source=C)]
    assert sent(exchange.link_up(B)) == []


def test_a_holder_says_how_its_result_is_cut() -> None:
    exchange = ResultExchange(A)
    exchange.hold(4, "d", 3, fine=True)
    assert sent(exchange.received(B, WANT)) == [(B, ResultHeld(round=4, digest="d", fine=True))]


def test_an_offer_in_reserve_is_forgotten_with_its_link_or_its_result() -> None:
    exchange = fetching(B, C)
    exchange.received(B, HELD)
    exchange.received(C, HELD)
    assert exchange.link_lost(C) == []
    assert exchange.link_lost(B) == []
    exchange = fetching(B, C)
    exchange.received(B, HELD)
    exchange.received(C, HELD)
    assert exchange.received(C, GONE) == []
    assert exchange.received(B, GONE) == [ResultUnavailable(round=4, digest="d")]


def test_a_wrong_digest_begins_again_with_another_holder() -> None:
    exchange = fetching(B, C)
    exchange.received(B, HELD)
    for chunk in range(3):
        exchange.received(B, data(chunk))
    exchange.received(C, HELD)
    assert exchange.refuted(3) == []
    assert exchange.refuted(4) == []
    assert sent(exchange.received(C, HELD)) == [(C, pull(0))]
    for chunk in range(3):
        exchange.received(C, data(chunk))
    assert exchange.link_lost(C) == [], "it is complete already"
    assert exchange.refuted(4) == [ResultUnavailable(round=4, digest="d")]


def test_nobody_to_ask_is_told_and_the_next_link_is_asked() -> None:
    exchange = ResultExchange(A)
    assert exchange.fetch(4, "d", chunk_count=3, holders=[]) == [ResultUnavailable(round=4, digest="d")]
    assert sent(exchange.link_up(B)) == [(B, WANT)]
    assert sent(exchange.fetch(5, "e", chunk_count=3, holders=[B])) == [(B, ResultWant(round=5, digest="e"))]
    assert exchange.received(B, HELD) == [], "of a fetch that was replaced"


def test_a_holder_answers_when_it_has_the_result() -> None:
    exchange = ResultExchange(A)
    assert exchange.received(B, WANT) == []
    assert exchange.received(B, WANT) == []
    assert exchange.received(C, ResultWant(round=4, digest="other")) == []
    assert sent(exchange.hold(3, "x", 3)) == []
    effects = exchange.hold(4, "d", 3)
    assert sent(effects) == [(B, HELD), (C, ResultGone(round=4, digest="other"))]
    assert exchange.received(B, pull(1)) == [
        SendBulk(site=B, header=data(index), payload=HeldRef(round=4, index=index)) for index in (1, 2)
    ]
    assert sent(exchange.received(B, WANT)) == [(B, HELD)]
    exchange.drop(4)
    assert sent(exchange.received(B, pull(0))) == [(B, GONE)]


def test_a_round_that_is_done_again_ends_the_fetch_of_its_former_result() -> None:
    """The holder was lost, the round before it stands, and the round is done anew (seed 61258 of the simulator)."""
    exchange = fetching(B)
    exchange.received(B, HELD)
    exchange.received(B, data(0))
    assert exchange.hold(4, "anew", 3) == []
    assert exchange.place(B, data(1)) is None
    assert exchange.received(B, data(1)) == exchange.received(B, data(2)) == []
    assert exchange.link_up(B) == []
    assert sent(exchange.received(B, WANT)) == [(B, GONE)]


def test_who_holds_a_result_that_is_void_is_asked_for_the_one_that_stands_and_answers_when_it_has_that() -> None:
    """Else whoever has no other neighbour would have struck it off, and lose its state."""
    exchange = ResultExchange(A)
    exchange.hold(4, "former", 3)
    exchange.void_after(3)
    assert exchange.received(B, WANT) == []
    assert sent(exchange.received(C, ResultPull(round=4, digest="former", next=0))) == [
        (C, ResultGone(round=4, digest="former"))
    ]
    assert sent(exchange.hold(4, "d", 3)) == [(B, HELD)]


def test_an_older_result_than_those_held_is_gone() -> None:
    exchange = ResultExchange(A)
    exchange.hold(6, "x", 1)
    assert sent(exchange.received(B, WANT)) == [(B, GONE)]


def test_what_waits_is_bounded_and_goes_with_the_link() -> None:
    exchange = ResultExchange(A)
    for number in range(10, 30):
        exchange.received(B, ResultWant(round=number, digest="d"))
    answered = [number for number in range(10, 30) if exchange.hold(number, "d", 1)]
    assert answered == list(range(30 - WANTS_PENDING_MAX, 30))
    exchange = ResultExchange(A)
    exchange.received(B, WANT)
    exchange.link_lost(B)
    assert exchange.hold(4, "d", 1) == []


def test_a_site_that_was_not_asked_and_a_chunk_out_of_order_are_not_taken() -> None:
    exchange = fetching(B)
    assert exchange.received(C, HELD) == []
    exchange.received(B, HELD)
    assert exchange.place(B, ResultData(round=4, digest="e", chunk=0)) is None
    with pytest.raises(RemoteProtocolError, match="chunks of a result must come in order"):
        exchange.received(B, data(1))


def test_a_lost_source_without_offers_is_waited_for_and_its_refuted_bytes_have_no_owner() -> None:
    exchange = fetching(B, C)
    exchange.received(B, HELD)
    assert exchange.link_lost(B) == []
    assert exchange.refuted(4) == []
    assert exchange.link_lost(B) == []
    assert sent(exchange.received(C, HELD)) == [(C, pull(0))]
    assert exchange.received(C, HELD) == []


def test_only_the_digest_that_was_agreed_makes_what_came_the_result() -> None:
    exchange = fetching(B, C)
    exchange.received(B, HELD)
    for chunk in range(2):
        exchange.received(B, data(chunk))
    (complete,) = exchange.received(B, data(2))
    assert isinstance(complete, ResultComplete)
    assert exchange.checked(complete, "d") == [ResultVerified(round=4, digest="d")]
    exchange.received(C, HELD)
    refuted = exchange.checked(complete, "e")
    assert refuted[0] == ResultRefuted(round=4, source=B)
    assert sent(exchange.received(C, HELD)) == [(C, pull(0))], "another holder is asked, from the start"


def test_who_goes_on_with_what_another_has_begun_is_not_blamed_for_the_whole() -> None:
    """The first part may be the wrong one, and whoever sent it is gone (seed 9369847, 3 sites)."""
    exchange = fetching(B, C)
    for header in (HELD, data(0)):
        exchange.received(B, header)
    exchange.received(C, HELD)
    assert sent(exchange.link_lost(B)) == [(C, pull(1))]
    exchange.received(C, data(1))
    (complete,) = exchange.received(C, data(2))
    assert isinstance(complete, ResultComplete)
    assert sent(exchange.checked(complete, "e")) == [(C, pull(0))], "all of it from one"
    for chunk in range(2):
        exchange.received(C, data(chunk))
    (complete,) = exchange.received(C, data(2))
    assert isinstance(complete, ResultComplete)
    assert exchange.checked(complete, "e")[0] == ResultRefuted(round=4, source=C), "now nobody else has sent a part"


def test_a_complete_result_is_not_asked_for_again_over_a_new_link() -> None:
    exchange = fetching(B)
    exchange.received(B, HELD)
    for chunk in range(3):
        exchange.received(B, data(chunk))
    assert sent(exchange.link_up(C)) == []


def test_sites_that_wait_for_a_result_are_bounded_in_number() -> None:
    exchange = ResultExchange(A)
    for number in range(SITES_MAX + 10):
        exchange.received(SiteId(f"{number:032x}"), ResultWant(round=4, digest="d"))
    assert len(sent(exchange.hold(4, "d", 3))) == SITES_MAX


def test_a_result_that_does_not_stand_any_more_is_fetched_no_further() -> None:
    """Its round begins anew: with the former result here, what was lost in the new one would never count (row 124)."""
    exchange = fetching(B)
    exchange.received(B, HELD)
    assert not exchange.void_after(4)
    assert exchange.place(B, data(0)) == FetchedRef(round=4, index=0)
    exchange.received(B, data(0))
    assert exchange.void_after(3)
    assert exchange.place(B, data(1)) is None
    assert exchange.received(B, data(1)) == []
    assert exchange.link_up(C) == []
    assert not exchange.void_after(0)


def test_a_guest_is_not_asked_for_a_result_so_none_is_waited_for_that_it_says_it_holds() -> None:
    """It said so first, sent nothing, and kept its link: the site that lacked the result waited for it."""
    exchange = ResultExchange(A)
    exchange.may_hold = lambda site: site != B
    assert sent(exchange.fetch(4, "d", chunk_count=3, holders=[B, C])) == [(C, WANT)]
    assert exchange.link_up(B) == [] and exchange.received(B, HELD) == []
    assert sent(exchange.received(C, HELD)) == [(C, pull(0))]


def test_bytes_of_another_than_who_is_pulled_from_are_not_taken() -> None:
    """They would be counted as its, and lie between its own."""
    exchange = fetching(B, C)
    exchange.received(B, HELD)
    exchange.received(C, HELD)
    assert exchange.place(C, data(0)) is None and exchange.received(C, data(0)) == []
    assert exchange.place(B, data(0)) is not None
