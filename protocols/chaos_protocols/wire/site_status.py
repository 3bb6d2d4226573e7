"""What a site tells the scheduler of itself.

Part of `wire/control.py`, which says how messages may change.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.agreement.roster import Count
from chaos_protocols.names import SiteId
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.keys import KeyNews
from chaos_protocols.wire.plans import CheckpointFacts, Site, Tag
from chaos_protocols.wire.waits import Seconds, Words

RATES_TOLD_MAX = 64
"""Of a site with more links those of the lowest ids are told."""

Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]

BANS_MAX = 64
"""Sites that an operator may want out at a time."""


class SiteStatus(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far a site is: for the scheduler's choice of rounds and sources."""

    incarnation: Count
    epoch: Count
    done_round: Count
    active: bool
    """Its worker has the state and trains."""
    transfer_bytes: Count
    empty_round: Tag | None = None
    """A round that it is the root of and to which everybody has given weight 0."""
    worker_round: Count = 0
    """The last one that its worker has applied, 0 if it lacks the state."""
    known_round: Count = 0
    """The newest that it knows to have been done; it may count from a later one that is still to come."""
    memory_checkpoint: bool = False
    """Its daemon has the state for a new worker."""
    open: Tag | None = None
    """Since version 4: its open round."""
    gave: bool = False
    """Since version 4: it has given its part to that one."""
    rests: Words = ""
    """Since version 4: why its worker, which has the state, is not waited for; empty: it is."""
    reached_round: Count = 0
    """Since version 4: the newest of the present lineage that its journal knows to be done."""
    checkpoint: CheckpointFacts | None = None
    """Since version 4: the newest of the run's model on its disk, while its worker does not train."""
    unacknowledged_by: Site = SiteId("")
    """Since version 4: the neighbour whose system has for longest acknowledged none of the bytes of averaging that wait
    for it, a failure timeout at least; empty: there is none."""
    unacknowledged_s: Seconds = 0.0
    """Since version 4: for how long."""
    rates: Annotated[tuple[tuple[Site, Rate], ...], msgspec.Meta(max_length=RATES_TOLD_MAX)] = ()
    """Since version 5: neighbours, and bytes per second that its links to them carried lately in rounds."""
    bans: Annotated[tuple[Site, ...], msgspec.Meta(max_length=BANS_MAX)] = ()
    """Since version 5: whom its operator wants out of the run."""
    bounds: Bounds | None = None
    """Since version 6: what its operator wants a site to be allowed to give; None: what it is."""
    unsaved: bool = False
    """As its journal knows, no checkpoint of the present lineage was ever whole on its disk: it was there in the first
    rounds of that, or came later and was new in the run. Not said by releases that do not note it."""
    send_limit: Rate = 0.0
    """Bytes per second that it sends in bulk at most, over all its links together; 0: no limit is set. Not said by
    releases that have none."""
    keys: KeyNews | None = None
    """Since version 10: what it has to say of its key, and of those of others; None: nothing."""
