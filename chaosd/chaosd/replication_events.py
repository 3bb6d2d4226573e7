"""What the replication engine tells the driver."""

from __future__ import annotations

from typing import Protocol

from chaos_protocols.names import SiteId

PROGRESS_INTERVAL_S = 0.1
"""Between two reports of progress."""


class ReplicationEvents(Protocol):
    """What the driver implements. Called on the loop, never from inside a method of the engine."""

    def transfer_finished(self, transfer: str, digest: str) -> None:
        """The whole state lies verified in the destination; BLAKE3 of all of it (hexadecimal)."""

    def transfer_failed(self, transfer: str, reason: str) -> None:
        """No source is left. A later `fetch` of the same round with `resume` keeps what is verified."""

    def transfer_progress(self, transfer: str, verified_bytes: int, rates: dict[SiteId, float]) -> None:
        """At most every PROGRESS_INTERVAL_S; rates in bytes a second for each source, as seen lately."""

    def source_dropped(self, transfer: str, site: SiteId, reason: str, wrong: bool) -> None:
        """A source is not used any more, or (`wrong`) sent bytes that fail their hash."""

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        """Close its link."""
