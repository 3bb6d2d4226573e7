"""Invariant 3, of rounds that travel in an encoding: what a site adds of its own to a sum is what it lost in the last
round that counts, once (spec 9.32). Not what it lost under a tag that was stopped, or in a history that was given up.

The bytes are not there, so that little is lost is shown elsewhere; here is shown of which round it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from chaos_protocols.wire.plans import Tag

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulator.averaging import Result
    from tests.simulator.node import Node
    from tests.simulator.oracles_rounds import Era

    Fail = Callable[[int, str], NoReturn]

Life = tuple[str, int]


class OwedOracle:
    """See the module. Told of each result that was averaged, at each site."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._judged: Tag | None = None
        self._held: dict[Life, tuple[Tag, Era, frozenset[int]]] = {}
        """What a life of a site has averaged last: which chunks it encoded in it. Nothing of one that is not finite."""

    def counted(self, node: Node, tag: Tag, result: Result, era: Era, lives: Mapping[str, int]) -> None:
        """`lives`: of those that gave something, by site."""
        if not any(chunk.owed for chunk in result.chunks):
            return
        if tag != self._judged:  # of the same tag all have the same, or another oracle has failed
            self._judged = tag
            for index, chunk in enumerate(result.chunks):
                self._is_owed(index, chunk.owed, tag, era, lives)
        if node.site in lives:
            mine = frozenset(
                index for index, chunk in enumerate(result.chunks) if any(site == node.site for site, _ in chunk.owed)
            )
            life = (node.site, lives[node.site])
            self._held.pop(life, None)
            if result.finite:
                self._held[life] = (tag, era, mine)

    def _is_owed(
        self, index: int, owed: tuple[tuple[str, Tag | None], ...], tag: Tag, era: Era, lives: Mapping[str, int]
    ) -> None:
        if len({site for site, _ in owed}) < len(owed):
            self._fail(3, f"chunk {index} of round {tag.round} was encoded twice by one site: {owed}")
        for site, lost in owed:
            if lost is not None:
                owner = era.owner(lost.round)
                standing = owner.tags.get(lost.round) if owner is not None else None  # None: of a state taken over
                if lost.round >= tag.round or (standing is not None and lost not in standing):
                    self._fail(
                        3, f"{site} adds to chunk {index} of {tag} what it lost under {lost}; there stands {standing}"
                    )
            held = self._held.get((site, lives.get(site, -1)))
            if held is None or held[0].round != tag.round - 1 or held[1] is not era or index not in held[2]:
                continue
            if lost != held[0]:
                self._fail(3, f"{site} adds to chunk {index} of {tag} what it lost under {lost}, not under {held[0]}")
