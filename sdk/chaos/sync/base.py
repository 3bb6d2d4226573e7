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
from collections.abc import Sequence
from typing import Protocol

from chaos.frameworks.base import Bytes, Framework, StateItem
from chaos_protocols.wire.worker import ContributionSpec


class Due(enum.Enum):
    """What follows on a step of the user's training."""

    NOTHING = "nothing"  # a local step: go on computing
    ROUND = "round"  # contribute, wait for the result, apply it


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

    def stepped(self, samples: float) -> Due:
        """The user's step is done, with so many samples behind its gradients (1.0 where the user does not count)."""
        ...

    def contribute(self, vector: Bytes) -> float:
        """Write what this site gives to the next round (`contribution.size_bytes` bytes). Its weight in the average,
        above 0. Changes nothing of the shared state: the round may be decided without it, or be done again. Raises
        ValueError on what cannot be averaged."""
        ...

    def apply(self, vector: Bytes, round: int) -> None:
        """Apply the result of `round`: the shared state becomes that of its end. Depends on nothing but the vector and
        the shared state, since a joiner applies results to which it gave nothing."""
        ...

    def skip(self, round: int) -> None:
        """Round `round` is over, or begins again, and nothing is applied for it: the shared state stays as it is. What
        this site had computed for it is void."""
        ...

    def name_at(self, start: int) -> str:
        """What lies at this byte of the vector, for people (`the gradient of 'layer.weight'`)."""
        ...

    def apply_alone(self, round: int) -> None:
        """The same for a round without others, from this site's own contribution, without a vector."""
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

    def start(self, framework: Framework) -> SyncSession:
        """At `register`. Raises ValueError where this training cannot be averaged in this way."""
        ...
