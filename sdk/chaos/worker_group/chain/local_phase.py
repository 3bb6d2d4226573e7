"""A phase of local steps of what several workers of a site train: a layer, or the whole model of a replica.

What is trained has the mode's session of its own, as an ordinary script has one for its whole model: the anchor and
what the outer optimizer keeps, beside live parameters and the inner optimizer. Who gets it from a peer gets all of it,
so a phase goes on where it stood; what comes from other sites is the common part, with which a phase begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaos.frameworks.base import Bytes, StateItem
from chaos.frameworks.local import CommittedItem
from chaos.frameworks.torch import TorchFramework
from chaos.sync.base import Part
from chaos.sync.local_session import LocalStepsSession
from chaos.sync.local_steps import DiLoCo
from chaos_protocols.worker_group.round_steps import RoundSteps


class LocalPhase:
    """`mode`: local steps without delay and pace by time. `heard`: what all sites said in the last round; None: nobody
    asks."""

    def __init__(self, mode: DiLoCo, framework: TorchFramework, heard: StateItem | None = None) -> None:
        self.session: LocalStepsSession = mode.start(framework)
        self.facts = tuple(mode.facts())
        self.rounds = RoundSteps(mode.plan.steps)
        flags = [each.flag for each in self.common if isinstance(each, CommittedItem)]
        self.marks: Sequence[StateItem] = [*flags, self.session.behind, *(() if heard is None else (heard,))]
        """Of what is common by its value at the end of a round: whether the live value is this site's alone. And how
        many steps are in what is given next, and what was heard."""
        self.behind = 0.0
        """In what was given last: local steps that have changed something."""

    @property
    def common(self) -> Sequence[StateItem]:
        """What all sites have alike at the end of a round."""
        return self.session.items

    def step(self) -> None:
        """A step of the inner optimizer, on the gradients as they stand."""
        self.session.stepped(Part())

    def leave_out(self) -> None:
        """A step whose gradient is not finite: it counts, and only the schedule goes on."""
        self.session.stepped(Part(skip=True))

    def goes_on(self, round: int, steps: int) -> None:
        """The state, wherever it came from, is that of so many local steps after the end of `round`."""
        self.session.go_on(round, steps)

    def begins_anew(self, round: int) -> None:
        """The common part of the end of `round` came from other sites. With a fresh inner optimizer, as where nobody
        has it any more: so all holders have the same."""
        self.session.begin_afresh(round)

    def end_alone(self, round: int) -> None:
        """The result of a round is what is here alone."""
        if self.session.apply_alone(round):
            self.void(round)

    def void(self, round: int) -> None:
        """This round has no result: the phase begins anew."""
        self.session.reset(round)

    def _contribute(self, vector: Bytes) -> None:
        self.behind = self.session.contribute(vector, self.session.round + 1)
