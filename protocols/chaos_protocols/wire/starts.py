"""What a site is told of another daemon that has its key. Part of `control.Message`; see spec 2.16."""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.roster import Count
from chaos_protocols.wire.recovery import Reason


class OlderStartRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A daemon with the receiver's key, of an older start than the receiver's, was refused by the sender. For the eyes
    of the receiver's operator: nothing follows from it. `older_than`: the receiver's start, as far as the sender knows;
    `reason`: the sender's words, with the host that the daemon dialled from."""

    older_than: Count
    reason: Reason
