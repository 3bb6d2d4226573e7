"""Which protocol versions this software speaks, and which one two ends use (docs/decisions/0015).

A version is a number that grows with every addition that others must know of before it may be used: a command of the
log or a field of one, a message that is not optional. Each end says a range; both use the highest that both know.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

UNNEGOTIATED = 1
"""What daemons speak from before versions were negotiated. No other end shares it: they compared for equality."""

OLDEST = 2
"""The oldest version that this software still speaks. Raised only when no institution runs an older one any more."""

NEWEST = 11
"""The newest one. What is new with each is listed in docs/decisions/0015."""

PROOFS_SINCE = 7
"""From this version on votes are signed, and leaders show them, once a run has agreed on it (spec 5.20)."""

SOFTWARE_CHARACTERS_MAX = 64
"""Of a release's name, as `chaos-train 1.12.0rc3+local`: for people, never compared."""

NAMES_SINCE = 8
"""From this version on a word that others hand on names the run that it was said in, once a run has agreed on it
(spec 4.19)."""

STARTS_SINCE = 9
"""From this version on a start number is signed for the run that it was told in, once a run has agreed on it
(spec 2.14)."""

CUTS_SINCE = 9
"""From this version on the vectors of rounds are cut into more chunks, once a run has agreed on it (spec 9.7)."""

KEYS_SINCE = 10
"""From this version on a run agrees on a site's new key (spec 20)."""

LINEAGES_SINCE = 10
"""From this version on the run knows of which history a state was that an operator has chosen (spec 13.7)."""

CHECKS_SINCE = 11
"""From this version on what a site says of its state is signed, once a run has agreed on it (spec 11.19)."""

RULED = (PROOFS_SINCE, NAMES_SINCE, STARTS_SINCE, CHECKS_SINCE)
"""Versions that brought rules which a run agrees on; each holds those before it, too (spec 6.12)."""

Version = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Software = Annotated[str, msgspec.Meta(max_length=SOFTWARE_CHARACTERS_MAX)]


class Versions(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The versions that one site speaks: all from `oldest` to `newest`. What a peer says may be reversed; then it
    shares none with anybody."""

    oldest: Version
    newest: Version

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SPOKEN = Versions(oldest=OLDEST, newest=NEWEST)
BEFORE = Versions(oldest=UNNEGOTIATED, newest=UNNEGOTIATED)
"""What an entry says that was written before versions were recorded."""


def agreed(here: Versions, there: Versions) -> int | None:
    """The highest version that both speak; None where they share none. The same from both ends."""
    if here.oldest > here.newest or there.oldest > there.newest:
        return None
    highest = min(here.newest, there.newest)
    return highest if highest >= max(here.oldest, there.oldest) else None


def refusal(here: Versions, there: Versions, *, software_here: str, software_there: str) -> str:
    """Why two sites that share no version cannot work together, and what to do at either end."""
    told = f"this site ({_named(software_here)}) speaks protocol {here}, the other ({_named(software_there)}) {there}"
    if there.oldest > there.newest:
        return f"{told}, which is no range: install a release of chaos-train there again"
    if here.newest > there.newest:
        old, new = "there", "here"
    else:
        old, new = "here", "there"
    return (
        f"{told}; they share none. Install a chaos-train {old} that speaks what is spoken {new}, "
        f"or, until then, one {new} that is old enough to speak what is spoken {old}"
    )


def _named(software: str) -> str:
    return f"chaos-train {software}" if software else "chaos-train of an unknown release"
