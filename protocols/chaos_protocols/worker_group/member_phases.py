"""Where a worker group stands in a run of institutions: with the site's daemon, and with its own workers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from chaos_protocols.wire import worker as wire

Lasting: TypeAlias = wire.TakeSnapshot | wire.LoadState | wire.ApplyResult
"""What the daemon wants that all workers have to do something for."""

Served: TypeAlias = Lasting | wire.TrainFrom | wire.FallenBehind
"""What the daemon wants of the state, or to hear when the workers stand still: one after the other, in its order."""


class MemberPhase(Enum):
    """Where the site's worker stands with its daemon."""

    OUTSIDE = "outside"
    """No connection, or no hello yet."""
    WAITING = "waiting"
    """The daemon says what comes: a state, results, or the round to give to."""
    TRAINING = "training"
    """The part of the next round is computed."""
    GIVEN = "given"
    """It was given; the result is awaited."""
    LEAVING = "leaving"
    """Nothing is given any more; results are applied until the run lets this site go."""


class MemberChange(Enum):
    """What moves it; the text says what has happened."""

    GREETED = "hello was said"
    GAVE = "the part of a round was given, or none of it"
    MAY_TRAIN = "the daemon says from which round on to train"
    APPLIED = "the result of a round was applied"
    LOADED = "a state was taken over"
    BEHIND = "the others went on without this site"
    LEAVES = "the group wants to leave"
    LOST = "the connection has ended"


_P, _C = MemberPhase, MemberChange

MEMBER_TABLE: Mapping[tuple[MemberPhase, MemberChange], MemberPhase] = {
    **{(phase, _C.LOST): _P.OUTSIDE for phase in MemberPhase},
    **{(phase, _C.LOADED): _P.WAITING for phase in (_P.WAITING, _P.TRAINING, _P.GIVEN)},
    **{(phase, _C.BEHIND): _P.WAITING for phase in (_P.WAITING, _P.TRAINING, _P.GIVEN)},
    **{(phase, _C.MAY_TRAIN): _P.TRAINING for phase in (_P.WAITING, _P.TRAINING, _P.GIVEN)},
    **{(phase, _C.LEAVES): _P.LEAVING for phase in (_P.WAITING, _P.TRAINING, _P.GIVEN, _P.LEAVING)},
    **{(phase, _C.APPLIED): phase for phase in (_P.OUTSIDE, _P.WAITING, _P.TRAINING, _P.LEAVING)},
    (_P.OUTSIDE, _C.GREETED): _P.WAITING,
    (_P.OUTSIDE, _C.LOADED): _P.OUTSIDE,
    (_P.LEAVING, _C.LOADED): _P.LEAVING,
    (_P.LEAVING, _C.BEHIND): _P.LEAVING,
    (_P.TRAINING, _C.GAVE): _P.GIVEN,
    (_P.GIVEN, _C.APPLIED): _P.TRAINING,
}


class Kept(Enum):
    """What a site's workers have of the state."""

    ALL = "all of it"
    PART = "the rest is brought forward, and what is missing comes from other sites"
    NOTHING = "other sites are asked for the whole state"


class Standing(Enum):
    """What the workers are at, all together."""

    DOWN = "no plan is executed"
    COMPUTING = "they compute a step"
    REDUCED = "all have the sums of a step"
    HOLDING = "they hold"
    MEASURING = "they say the squares of a result"
    UPDATING = "they apply a result"
    WRITING = "they write their state"
    TAKING = "they take a state over"
    OVER = "their training is complete: they copy the state for a last checkpoint, and compute no more"


STILL = frozenset({Standing.REDUCED, Standing.HOLDING})
