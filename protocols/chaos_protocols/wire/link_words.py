"""Control messages on links that are to come or to go: what a site asks of the scheduler, what that orders."""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.agreement.roster import Address
from chaos_protocols.wire.plans import Site
from chaos_protocols.wire.recovery import Identifier, Reason
from chaos_protocols.wire.waits import Seconds

Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class LinkRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Connect-link or disconnect-link between the sender and `other`."""

    request: Identifier
    other: Site
    add: bool
    reason: Reason


class LinkAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    request: Identifier
    done: bool
    reason: Reason


class ConnectOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Scheduler to one end of a link: have a live link to `other`, measure it if asked, answer `LinkReady`."""

    negotiation: Identifier
    other: Site
    address: Address
    probe: bool


class LinkReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer to ConnectOrder. `ready` false: refused or failed, and why. `rate_bytes_per_s` 0: not measured."""

    negotiation: Identifier
    other: Site
    ready: bool
    rtt_s: Seconds
    rate_bytes_per_s: Rate
    reason: Reason
