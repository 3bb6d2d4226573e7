"""What this site's operator wants: events like those of `events.py`. Of the run, which most of its operators decide; of
his own site; and what he alone decides about its run when a majority of the voters is gone for good, with what is told
of that.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.recovered import RunRecovered


class BansChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Whom he wants out of it."""

    sites: tuple[SiteId, ...]


class BoundsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What he wants a site to be allowed to give; None: he takes it back."""

    bounds: Bounds | None


class KeyOffered(msgspec.Struct, frozen=True, kw_only=True):
    """This site has a next key, durable on its disk: its chain with that one at the end. None: he takes it back."""

    chain: KeyChain | None


class KeyApproved(msgspec.Struct, frozen=True, kw_only=True):
    """He approves that another site's next key is the one with this id."""

    site: SiteId
    key_id: SiteId


class SendLimitSet(msgspec.Struct, frozen=True, kw_only=True):
    """What his site sends at most from now on, in bulk and over all its links together; 0: as fast as they take it."""

    bytes_per_s: float


class RecoverWithout(msgspec.Struct, frozen=True, kw_only=True):
    """He makes a new run of what this site has, and gives these sites up: all voters that cannot be reached. `number`:
    NUMBER_BYTES bytes, drawn for this. Answered by `AnswerRequest(request)`."""

    request: str
    without: tuple[SiteId, ...]
    number: bytes


class FollowWanted(msgspec.Struct, frozen=True, kw_only=True):
    """He gives this site's membership of its run up, for that which site `by` has made of it. Answered by
    `AnswerRequest(request)`."""

    request: str
    by: SiteId


class RecoveryTold(msgspec.Struct, frozen=True, kw_only=True):
    """In a handshake `site`, which is in another run, has shown that this is a recovered one. `address`: where it
    listens; empty: not known. Nothing of it is checked yet."""

    site: SiteId
    address: str
    statement: RunRecovered


Wish = (
    BansChanged | BoundsWanted | KeyOffered | KeyApproved | SendLimitSet | RecoverWithout | FollowWanted | RecoveryTold
)
