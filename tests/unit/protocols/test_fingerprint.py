"""Ids in words: what is read out on the telephone tells every id from every other (spec 2.15)."""

from __future__ import annotations

import hashlib

import pytest

from chaos_protocols.fingerprint import WORDS, site_of_words, words_of
from chaos_protocols.names import SiteId

UNCHANGED = "0c7ff1d021"
"""Of the list: operators of two releases compare words, so it never changes."""


def test_every_byte_has_a_short_word_of_its_own() -> None:
    assert len(WORDS) == len({*WORDS}) == 256 and list(WORDS) == sorted(WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() and 4 <= len(word) <= 8 for word in WORDS)


def test_the_list_is_the_one_that_other_releases_have() -> None:
    assert hashlib.sha256(" ".join(WORDS).encode()).hexdigest()[:10] == UNCHANGED


def test_all_bytes_count_and_words_lead_back_to_the_id() -> None:
    site = SiteId(bytes(range(0, 256, 16)).hex())
    words = words_of(site)
    assert words.startswith("acorn bacon ") and words.count(",") == 3
    assert bytes(WORDS.index(word) for word in words.replace(",", "").split()).hex() == site


@pytest.mark.parametrize("text", ["", "ab", "zz" * 16])
def test_what_is_no_id_has_no_words(text: str) -> None:
    with pytest.raises(ValueError):
        words_of(SiteId(text))


def test_words_are_read_whatever_stands_between_them() -> None:
    site = SiteId(bytes(range(1, 256, 16)).hex())
    words = words_of(site)
    assert (
        site_of_words(words) == site_of_words(words.replace(",", "").upper()) == site_of_words(f"  {words}\n") == site
    )
    for wrong in ("", words.rpartition(" ")[0], f"{words} acorn", words.replace(words.split()[0], "acorns"), "ab" * 16):
        assert site_of_words(wrong) is None
