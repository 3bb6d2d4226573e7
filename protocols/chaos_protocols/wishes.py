"""What this site's operator wants of the run: events like those of `events.py`, which most of its operators decide."""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.keys import KeyChain


@dataclass(frozen=True, slots=True, kw_only=True)
class BansChanged:
    """Whom he wants out of it."""

    sites: tuple[SiteId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsWanted:
    """What he wants a site to be allowed to give; None: he takes it back."""

    bounds: Bounds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOffered:
    """This site has a next key, durable on its disk: its chain with that one at the end. None: he takes it back."""

    chain: KeyChain | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyApproved:
    """He approves that another site's next key is the one with this id."""

    site: SiteId
    key_id: SiteId


Wish = BansChanged | BoundsWanted | KeyOffered | KeyApproved
