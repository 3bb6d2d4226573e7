"""What a daemon has to say to the person at the script, while training goes on. Part of `worker.DaemonMessage`."""

from __future__ import annotations

from typing import Annotated

import msgspec


class RunWarned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something is wrong beside the training that only a person can take away: what, and what to do. Nothing stands
    for it. An older script may skip this."""

    reason: Annotated[str, msgspec.Meta(max_length=4096)]
    optional: bool = True
