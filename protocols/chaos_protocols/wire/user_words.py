"""What a daemon has to say to the person at the script, while training goes on. Part of `worker.DaemonMessage`."""

from __future__ import annotations

from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(max_length=512)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Round = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class RunPaused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nothing moves at the moment, and why (no quorum, waiting for the first sites). For the user's eyes."""

    reason: Text


class RunResumed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It moves again."""


class StateDiffered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This worker's state of `round` was not that of most sites, first in `array`; it gets theirs. For the user's
    eyes."""

    round: Round
    array: Name
    reason: Text
    optional: bool = True


class RunWarned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something is wrong beside the training that only a person can take away: what, and what to do. Nothing stands
    for it. An older script may skip this."""

    reason: Text
    optional: bool = True
