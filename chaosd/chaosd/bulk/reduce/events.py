"""What the engine of averaging reports."""

from __future__ import annotations

from typing import Protocol

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import Tag


class ReduceEvents(Protocol):
    """What the engine reports. Called on the loop, never from inside a method of the engine."""

    def reduce_finished(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> None:
        """`result(tag.round)` is there."""

    def round_came_up_empty(self, tag: Tag) -> None:
        """All members gave weight 0."""

    def result_fetched(self, round_number: int, digest: str) -> None:
        """`result(round_number)` is there and has the digest that was asked for."""

    def result_lost(self, tag: Tag, reason: str) -> None:
        """The result of the open round cannot be had any more: this site's state must be replaced."""

    def peer_broke_rules(self, site: SiteId, reason: str) -> None:
        """Close its link."""
