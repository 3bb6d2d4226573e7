"""The door between the local API and the daemon: what may be asked of a running daemon from outside its loop's own
parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from chaosd.status import EventRecord, Outcome, Status


class Control(Protocol):
    """Implemented by the daemon, called by `api.py` on the daemon's loop."""

    def status(self) -> Status: ...

    def events(self, after_id: int, limit: int) -> list[EventRecord]:
        """History after `after_id`, oldest first."""
        ...

    def follow_events(self) -> AsyncIterator[EventRecord]:
        """Every new record from now on, until the daemon stops."""
        ...

    async def change_link(self, site: str, *, add: bool) -> Outcome:
        """Connect-link or disconnect-link between this site and `site` (id, unique prefix of it, or name)."""
        ...

    async def leave(self, reason: str) -> Outcome:
        """Leave gracefully and stop the daemon."""
        ...
