"""Changes asked for over HTTP, run to their end even if the asker goes away: half a change helps nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from chaosd.api.answers import refusal
from chaosd.api.status import Outcome


class Changes:
    """Those under way, at most `most` at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: set[asyncio.Task[Outcome]] = set()

    async def run(self, change: Coroutine[Any, Any, Outcome], name: str) -> Outcome:
        """Its outcome. A refusal with 503 where too many run already, or the daemon ends meanwhile."""
        if len(self._running) >= self._most:
            change.close()
            raise refusal(503, f"{self._most} changes are under way already; try again when they are done")
        task = asyncio.create_task(change, name=f"api {name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # the asker went away; the change goes on
            raise refusal(503, f"the daemon has ended before the {name} was done") from None

    async def close(self) -> None:
        """Cancel what still runs, but for the change that is closing us."""
        unfinished = [task for task in self._running if task is not asyncio.current_task()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
