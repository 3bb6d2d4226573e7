"""What an operator may type for a site."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.one_site import A, B, C, D, roster_of

from chaos_protocols.named_sites import NotOneSite, site_named
from chaos_protocols.names import SiteId

BERLIN, BERN, NAMELESS = SiteId("a" * 32), SiteId("abcd" + "0" * 28), SiteId("c" * 32)
AMONG = [(BERLIN, "berlin"), (BERN, "bern"), (NAMELESS, ""), (BERLIN, "Charité")]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (BERLIN, BERLIN),
        ("bern", BERN),
        ("Charité", BERLIN),
        ("abcd", BERN),
        ("cccccc", NAMELESS),
    ],
)
def test_a_site_is_named_by_its_id_by_one_of_its_names_or_by_how_its_id_begins(text: str, meant: SiteId) -> None:
    assert site_named(text, AMONG, "the peers") == meant


@pytest.mark.parametrize("text", ["ber", "abc", "", "d" * 32, "abcx", "x" * 1000])
def test_what_names_no_site_is_answered_with_all_that_there_are(text: str) -> None:
    with pytest.raises(NotOneSite) as told:
        site_named(text, AMONG, "the peers")
    words = f"none of the peers is '{text[:64]}'; there are: berlin (aaaaaaaa), bern (abcd0000), cccccccc"
    assert str(told.value) == words


def test_two_sites_that_one_word_may_mean_are_both_left_alone() -> None:
    twin = SiteId("abcd" + "1" * 28)
    for text, among in (("abcd", [(BERN, ""), (twin, "")]), ("bern", [(BERN, "bern"), (twin, "bern")])):
        with pytest.raises(NotOneSite, match=r"^more than one of the peers is"):
            site_named(text, among, "the peers")
    assert site_named(BERN, [(BERN, ""), (twin, str(BERN))], "the peers") == BERN, "an id before any name"
    with pytest.raises(NotOneSite, match=r"; there is none$"):
        site_named("bern", [], "the peers")


def test_a_name_that_begins_like_another_sites_id_means_neither_of_the_two() -> None:
    guest = SiteId("d" * 32)
    with pytest.raises(NotOneSite, match=r"^more than one of the sites is 'abcd0000'"):
        site_named("abcd0000", [(BERN, "bern"), (guest, "abcd0000")], "the sites")
    assert site_named("abcd0000", [(BERN, "abcd0000"), (guest, "")], "the sites") == BERN, "its own id"


def test_people_are_told_two_sites_of_one_name_apart_by_their_ids() -> None:
    roster = roster_of(A, B, C)
    twin = msgspec.structs.replace(
        roster, sites=tuple(msgspec.structs.replace(one, name="vm") for one in roster.sites[:2])
    )
    assert [roster.called(site) for site in (A, D)] == ["site a", D[:8]]
    assert [twin.called(site) for site in (A, B)] == [f"vm ({A[:8]})", f"vm ({B[:8]})"]
