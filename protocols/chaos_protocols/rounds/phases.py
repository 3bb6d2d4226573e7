"""What a site does in the round that runs."""

from __future__ import annotations

from enum import Enum


class RoundPhase(Enum):
    """What a site does in the running round: the step tag of FlashRecovery III-D. See `PHASES`."""

    UPDATE = "update"
    STANDBY = "standby"
    REDUCE = "reduce"
    COMPUTE = "compute"


PHASES = {
    RoundPhase.UPDATE: "its worker applies a result",
    RoundPhase.STANDBY: "its worker is missing, lacks the state, or contributes no more",
    RoundPhase.REDUCE: "it has given its part to the round that is open",
    RoundPhase.COMPUTE: "none of these: its worker computes, or waits for a round",
}
"""A phase is not kept, it follows from what is: the first of these that holds."""
