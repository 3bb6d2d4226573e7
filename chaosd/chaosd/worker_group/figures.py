"""What the script of a worker group logs (`Coordinator.log`), for its operator: shown by `chaosd workers`, and handed
on to the site's daemon, as a script of one process tells it. Nothing is decided from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chaos_protocols.wire.worker import FIGURES_MAX, FiguresLogged

HANDED_ON_EVERY_S = 0.2
"""However often the script logs: the daemon keeps the newest of each name."""


class LoggedFigures:
    """The newest of each name, with its round. `hand_on`: tells the daemon; False where there is none, or it
    cannot be told now."""

    def __init__(self, hand_on: Callable[[FiguresLogged], bool]) -> None:
        self.newest: dict[str, tuple[int, float | None]] = {}
        self._hand_on = hand_on
        self._untold: dict[str, float | None] = {}
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, logged: FiguresLogged) -> None:
        """Of the worker that speaks. Of names beyond the limit those that were told longest ago go."""
        self._round = logged.round
        for name, value in logged.figures.items():
            self.newest.pop(name, None)
            self.newest[name] = (logged.round, value)
            self._untold.pop(name, None)
            self._untold[name] = value
        for kept in (self.newest, self._untold):
            while len(kept) > FIGURES_MAX:
                del kept[next(iter(kept))]
        if self._timer is None:
            self._tell()

    def close(self) -> None:
        """What is not told yet is told now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush()

    def _tell(self) -> None:
        self._timer = None
        if self._untold:
            self._flush()
            self._timer = asyncio.get_running_loop().call_later(HANDED_ON_EVERY_S, self._tell)

    def _flush(self) -> None:
        if self._untold and self._hand_on(FiguresLogged(round=self._round, figures=self._untold)):
            self._untold = {}
