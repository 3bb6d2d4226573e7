"""Where a worker stands in the conversation with its daemon."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What the worker may do now."""

    WAITING = "waiting"  # for TrainFrom: it serves, but must not contribute
    TRAINING = "training"  # computes; its state is that of the end of `round`
    PAUSED = "paused"  # the script does something else; its site counts with weight 0
    CONTRIBUTED = "contributed"  # waits for the result of `round + 1`
    LEFT = "left"  # out of the run, gracefully or not
    BROKEN = "broken"  # an update failed half-way: the state belongs to no round
