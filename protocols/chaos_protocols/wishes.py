"""What this site's operator wants of the run: events like those of `events.py`, which most of its operators decide."""

from __future__ import annotations

from dataclasses import dataclass

from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class BansChanged:
    """Whom he wants out of it."""

    sites: tuple[SiteId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsWanted:
    """What he wants a site to be allowed to give; None: he takes it back."""

    bounds: Bounds | None
