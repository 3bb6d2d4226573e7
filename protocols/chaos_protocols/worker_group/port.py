"""What a part of the worker group's machine asks of the whole."""

from __future__ import annotations

from typing import Protocol

from chaos_protocols.worker_group.events import Effect
from chaos_protocols.worker_group.messages import CommitStep, ControllerMessage
from chaos_protocols.worker_group.round_steps import RoundSteps
from chaos_protocols.worker_group.tags import Step


class Group(Protocol):
    """The worker group's machine."""

    @property
    def step(self) -> Step: ...

    @property
    def rounds(self) -> RoundSteps:
        """Which steps make a round of the run."""

    def tell_all(self, message: ControllerMessage) -> None:
        """To all workers with layers."""

    def commit(self, commit: CommitStep) -> None:
        """From now on this step counts."""

    def commit_own(self, *, vain: bool = False) -> None:
        """The step under way counts by what this site's own gradients come to; or the training ends with it. `vain`:
        and its round is still to come."""

    def took_state(self, step: Step) -> None:
        """All workers have the state of this step."""

    def do(self, effect: Effect) -> None: ...

    def note(self, kind: str, reason: str, **fields: object) -> None: ...

    def end(self, failed: str) -> None: ...
