"""What the machine of a worker group has decided while it took one event, in order."""

from __future__ import annotations

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group.messages import ControllerMessage


class ToBeDone:
    """Collects effects."""

    def __init__(self) -> None:
        self._effects: list[ev.Effect] = []

    def taken(self) -> list[ev.Effect]:
        """All of them; the next one begins anew."""
        effects, self._effects = self._effects, []
        return effects

    def do(self, effect: ev.Effect) -> None:
        """Have this done."""
        self._effects.append(effect)

    def note(self, kind: str, reason: str, **fields: object) -> None:
        """An entry of the history."""
        self.do(ev.NoteEvent(kind=kind, reason=reason, fields=fields))

    def _tell(self, worker: int, message: ControllerMessage) -> None:
        self.do(ev.TellWorker(worker=worker, message=message))
