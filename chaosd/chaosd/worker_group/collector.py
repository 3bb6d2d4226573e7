"""No search for reference cycles while a worker group recovers.

The interpreter begins one whenever some hundred objects were made, and every so often it looks at all that there are:
the plans of thousands of workers. A recovery makes objects by the ten thousand, none of them in a cycle, and everybody
waits for it. The search is made up for as soon as training runs.
"""

from __future__ import annotations

import gc

from chaos_protocols.worker_group.phases import GroupPhase

RECOVERING = frozenset({GroupPhase.STOPPING, GroupPhase.DECIDING, GroupPhase.BUILDING})


class CyclesLater:
    """Of a process whose work one worker group is."""

    def __init__(self) -> None:
        self._wanted = gc.isenabled()
        self._phase: GroupPhase | None = None

    def follow(self, phase: GroupPhase) -> None:
        """The worker group is in this phase now."""
        if phase is self._phase or not self._wanted:
            return
        self._phase = phase
        if phase in RECOVERING:
            gc.disable()
        else:
            gc.enable()

    def close(self) -> None:
        """As it was."""
        if self._wanted:
            gc.enable()
