"""Generations that break though nobody has died: something between the workers is wrong. Owned by the machine."""

from __future__ import annotations

from typing import Protocol

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group.phases import GroupPhase
from chaos_protocols.worker_group.settings import BROKEN_MAX


class BreakingGroup(Protocol):
    """The worker group's machine."""

    phase: GroupPhase

    def do(self, effect: ev.Effect) -> None: ...

    def note(self, kind: str, reason: str, **fields: object) -> None: ...


class BrokenGenerations:
    """In a row, without a step done."""

    def __init__(self, group: BreakingGroup, failure_timeout_s: float) -> None:
        self._group, self._failure_timeout_s = group, failure_timeout_s
        self._count = 0
        self._last = ""
        """What was said of it last, and by whom."""

    def heard(self, worker: int, text: str) -> None:
        """A hint: if nobody is found dead soon, the generation is broken all the same."""
        if self._group.phase in (GroupPhase.BUILDING, GroupPhase.TRAINING):
            self._group.note("peer-lost", text, worker=worker)
            self._last = f"worker {worker}: {text}"
            self._group.do(ev.SetGroupTimer(timer=ev.GroupTimer.BROKEN, after_s=self._failure_timeout_s))

    def stepped(self) -> None:
        """A step was done."""
        self._count = 0

    def once_more(self) -> str:
        """Nobody was found dead. Why the group ends with that; empty: it does not."""
        self._count += 1
        if self._count <= BROKEN_MAX:
            return ""
        found = f"groups between live workers failed {self._count} times in a row without a step done"
        return f"{found}; the last words of {self._last}"
