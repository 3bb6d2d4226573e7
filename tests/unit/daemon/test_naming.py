"""What an operator may type for a site."""

from __future__ import annotations

import pytest

from chaos_protocols.names import SiteId
from chaosd.naming import NotOneSite, site_named

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
