"""What is said while a run stands for want of a state: for whom it waits, and an operator's word. All since version 4.

Part of `wire/control.py`, which says how messages may change.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from chaos_protocols.agreement.roster import Count, Label

REASON_CHARACTERS_MAX = 4096
"""A text that repeats what another site has said is cut to it: nobody could read the message otherwise."""

Reason = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)]
Identifier = Annotated[str, msgspec.Meta(max_length=96)]


class RunWaits(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The scheduler tells every site, again and again, why the run stands: which state it waits for, and for whom."""

    reason: Reason


class RecoverRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An operator's word on the state that the run is to go on from: that of the end of `round` at `origin` (its id,
    the beginning of it, or its name); an empty `origin`: it begins anew."""

    request: Label
    origin: Label
    round: Count


class RecoverAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The scheduler has carried it out, or refuses."""

    request: Label
    done: bool
    reason: Reason
