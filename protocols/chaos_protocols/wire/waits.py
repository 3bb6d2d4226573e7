"""What the scheduler tells all sites while a round waits: for whom, and since when. Part of `control.Message`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.agreement.roster import Count
from chaos_protocols.wire.plans import Site

SITES_NAMED_MAX = 64
"""In one message; who waits for more is told of these."""
UNANSWERED = "it does not say how far it is"
"""The reason that holds while a failure is being resolved, and no longer."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Words = Annotated[str, msgspec.Meta(max_length=1024)]


class SiteWait(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds`: since when, by the scheduler's clock. `reason`: what is known of it, for people."""

    site: Site
    seconds: Seconds
    reason: Words = ""


class RoundWaits(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The parts of these sites (`waits`) to `round` are missing, while others have given theirs. A site for which the
    round has waited `limit_s` is to give weight 0 by itself (0: no limit). `rests`: sites that are not waited for,
    though their workers have the state. `empty`: all sites have given weight 0 to the round, and it cannot be done."""

    round: Count
    limit_s: Seconds
    waits: Annotated[tuple[SiteWait, ...], msgspec.Meta(max_length=SITES_NAMED_MAX)] = ()
    empty: bool = False
    rests: Annotated[tuple[SiteWait, ...], msgspec.Meta(max_length=SITES_NAMED_MAX)] = ()
