"""What a sync mode is: the policy between a training and the rounds of a run. No framework, no socket, no shared
memory.

A *round* is one averaged vector, applied by all sites or by none. A mode says what goes into the vector, and what the
result does to the **shared state**: that which is bit-identical on all sites at the end of the same round, which a
joiner gets, and which the digests compare. Whatever else a site has (gradients of a running step, parameters between
two rounds of a mode with local steps) is its own.

`SyncMode` is what a user chooses and may compare between sites; `SyncSession` is that mode at work on one registered
training. Driven by the Coordinator (`stepped`, `apply_alone`) and by the conversation with the daemon (the rest), in
the user's thread.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chaos.frameworks.base import Bytes, Framework, StateItem
from chaos.sync.notes import Agreed
from chaos_protocols.wire.worker import ContributionSpec


class Due(enum.Enum):
    """What follows on a step of the user's training."""

    NOTHING = "nothing"  # a local step: go on computing
    ROUND = "round"  # contribute, wait for the result, apply it
    GIVE = "give"  # contribute, and go on computing: the result is applied between two steps when it comes
    RESULT = "result"  # wait for the result of the round to which was given, if it has not come yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the user's step says of itself. `samples`: behind its gradients, 1.0 where the user does not count.
    `optimizers`: names of those that the gradients are for; None: all. `skip`: nothing is given. `counted`: how many
    samples of shared data it is about. `idle`: there is nothing to compute, and a round is due. A mode that cannot do
    what is asked for raises ValueError."""

    samples: float = 1.0
    optimizers: tuple[str, ...] | None = None
    skip: bool = False
    counted: int = 0
    idle: bool = False
    wants_to_end: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class SharedData(Protocol):
    """Data that sites share, as a mode sees it: float64 numbers of each round, from which all learn the same
    (`chaos.data`)."""

    @property
    def items(self) -> Sequence[StateItem]:
        """What of it is shared state."""
        ...

    @property
    def count(self) -> int:
        """How many numbers a round carries."""
        ...

    def facts(self) -> Sequence[str]: ...

    def stepped(self, samples: int) -> bool:
        """The user's step is about so many samples. Whether its gradient counts."""
        ...

    def write(self, numbers: NDArray[np.float64]) -> None:
        """What this site says in the next round."""
        ...

    def withheld(self) -> None:
        """What was written is not given."""
        ...

    def settle(self, numbers: NDArray[np.float64]) -> int:
        """A round was applied, in which all said this, averaged. How many samples are done with it."""
        ...

    def resolve(self) -> None:
        """The shared state was loaded from elsewhere, or the round under way is void."""
        ...


IDLE_WEIGHT = 2.0**-10
"""Of a site that gives no gradients, but says something of shared data. What others give is divided by their share of
the weight, so nothing is lost by it."""


class SyncSession(Protocol):
    """One mode at work on one training."""

    @property
    def items(self) -> Sequence[StateItem]:
        """The shared state in canonical order, the mode's own (anchors, momenta, facts) included."""
        ...

    @property
    def contribution(self) -> ContributionSpec:
        """The vector of a round."""
        ...

    @property
    def agreed(self) -> Agreed | None:
        """What the notes of the last round said; None: rounds carry no notes, or none was applied yet."""
        ...

    @property
    def notice(self) -> str:
        """What the user should hear of the last round; empty: nothing."""
        ...

    def check(self, part: Part) -> None:
        """Raises ValueError for what this mode cannot do, with what to write instead."""
        ...

    def stepped(self, part: Part) -> Due:
        """The user's step is done. Raises ValueError for what this mode cannot do."""
        ...

    def contribute(self, vector: Bytes, round: int) -> float:
        """Write what this site gives to `round`, the next one (`contribution.size_bytes` bytes). Its weight in the
        average; 0: nothing is given. Changes nothing of the shared state: the round may be decided without it, or be
        done again. Raises ValueError on what cannot be averaged."""
        ...

    def average(self, vector: Bytes) -> None:
        """Show the user what the result of the round says, as far as this mode has something to show; nothing of the
        state changes, and `apply` comes all the same."""
        ...

    def apply(self, vector: Bytes, round: int) -> None:
        """Apply the result of `round`: the shared state becomes that of its end. Depends on nothing but the vector and
        the shared state, since a joiner applies results to which it gave nothing."""
        ...

    def skip(self, round: int) -> None:
        """Round `round` is over, or begins again, and nothing is applied for it: the shared state stays as it is. What
        this site had computed for it is void."""
        ...

    def averaged_over(self, weight: float) -> None:
        """What was behind the round that was just applied or skipped; 0: this site does not know."""
        ...

    def withheld(self) -> None:
        """What `contribute` wrote holds a number that is not finite, and is not given."""
        ...

    def name_at(self, start: int) -> str:
        """What lies at this byte of the vector, for people (`the gradient of 'layer.weight'`)."""
        ...

    def apply_alone(self, round: int) -> str:
        """The same for a round without others, from this site's own contribution. Why it was not done: this site has
        nothing to give, and the round is still to come; empty: it was."""
        ...

    def reset(self, round: int) -> None:
        """The shared state of the end of `round` was loaded from elsewhere: whatever this site had of its own since a
        former round is void."""
        ...


class SyncMode(Protocol):
    """A way to train together. All sites of a run use the same one: its `facts` are part of the state spec, so a site
    with another mode is refused with the first difference."""

    def facts(self) -> Sequence[str]:
        """What must be equal on all sites, in words (`sync: DiLoCo every=50 ...`); none for `EveryStep`."""
        ...

    def start(self, framework: Framework, data: SharedData | None = None) -> SyncSession:
        """At `register`; `data`: what sites share of it. Raises ValueError where this training cannot be averaged
        in this way."""
        ...
