"""What a site says of its state, signed: on its way to the others it passes through members that could make up another
one (spec 11.19). A run signs it once it has agreed on that; before, what comes is taken as it is.

A word is what `encode_check` makes, or nothing where a site has no state to speak of, and behind it the site's
signature, which names run, round and view: so no word can be said again of another round, or of this one in a history
that was given up.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bulk import CHECK_BYTES, CHECK_SIGNATURE_BYTES
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.versions import CHECKS_SINCE

LABEL = b"chaos state digests 1\x00"


def check_words(run_id: str, tag: Tag, site: SiteId, check: bytes) -> bytes:
    """What a site signs of its state in the round `tag`."""
    return LABEL + msgspec.msgpack.encode((run_id, tag.epoch, tag.round, site, check))


def are_signed(roster: Roster) -> bool:
    """Whether only signed words count in this run."""
    return roster.rules >= CHECKS_SINCE


def unsigned(word: bytes) -> bytes:
    """What is said in a word, believed or not; empty: nothing."""
    return word[:CHECK_BYTES] if len(word) in (CHECK_BYTES, CHECK_BYTES + CHECK_SIGNATURE_BYTES) else b""


class CheckWords:
    """Of one site, with its keys."""

    def __init__(self, site: SiteId, keys: KeyRing) -> None:
        self._site, self._keys = site, keys
        self._last: tuple[str, Tag, bytes, bytes] | None = None
        """Run, round, and what was said of it last, with its signature: a part that is given in pieces says it with
        each."""

    def said(self, roster: Roster, tag: Tag, check: bytes) -> bytes:
        """This site's word."""
        if not are_signed(roster):
            return check
        if self._last is None or self._last[:3] != (roster.run_id, tag, check):
            signature = self._keys.sign(check_words(roster.run_id, tag, self._site, check))
            self._last = (roster.run_id, tag, check, check + signature)
        return self._last[3]

    def true(self, roster: Roster, tag: Tag, words: Mapping[SiteId, bytes]) -> dict[SiteId, bytes]:
        """Of these the ones that their sites have signed, without the signature; empty: that site has no state to
        speak of."""
        return {site: unsigned(word) for site, word in words.items() if self._is_true(roster, tag, site, word)}

    def _is_true(self, roster: Roster, tag: Tag, site: SiteId, word: bytes) -> bool:
        record, check = roster.record(site), unsigned(word)
        signature = word[len(check) :]
        if record is None or not signature:
            return False
        words = check_words(roster.run_id, tag, site, check)
        return self._keys.has_signed(site, record.public_key, signature, words)
