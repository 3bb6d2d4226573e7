"""What a part of the worker group's machine asks of the whole."""

from __future__ import annotations

from typing import Protocol

from chaos_protocols.worker_group.events import Effect
from chaos_protocols.worker_group.messages import CommitStep, ControllerMessage
from chaos_protocols.worker_group.tags import Step


class Group(Protocol):
    """The worker group's machine."""

    @property
    def step(self) -> Step: ...

    def tell_all(self, message: ControllerMessage) -> None:
        """To all workers with layers."""

    def commit(self, commit: CommitStep) -> None:
        """From now on this step counts."""

    def commit_own(self) -> None:
        """The step under way counts by what this site's own gradients come to; or the training ends with it."""

    def took_state(self, step: Step) -> None:
        """All workers have the state of this step."""

    def do(self, effect: Effect) -> None: ...

    def note(self, kind: str, reason: str, **fields: object) -> None: ...

    def end(self, failed: str) -> None: ...
