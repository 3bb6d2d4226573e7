"""Where a site stands, as heartbeats say it of their sender, and of others."""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.agreement.roster import Count
from chaos_protocols.wire.plans import Site

STEPS_TOLD_MAX = 256
"""In one heartbeat, the newest first: with 20 sites it takes about 1 KiB."""
Lost = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""What an encoding lost, over what was encoded (norms)."""
Phase = Annotated[str, msgspec.Meta(pattern=r"^(compute|reduce|update|standby)\Z")]


class SiteStep(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where a site stands by its heartbeat `sequence`, as somebody has heard it `age_s` ago. For people."""

    site: Site
    incarnation: Count
    sequence: Count
    round: Count
    phase: Phase
    age_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    encoding_error: Lost | None = None
    """As in `Heartbeat`."""
