"""Invariant 3, of what goes into a round: each site gives once under one tag, and clips as all others do.

Of a machine that was copied there are two daemons, and each gives to what its own journal has come to. The older one's
journal may have come to an entry otherwise than the run, or before it: with its own vote alone as a majority it leads
what is another run by then, and names its rounds as this one does (docs/security.md). What it gives there is kept
apart. It is a part of the run's round only where the run comes to the same entry later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from chaos_protocols import effects
from chaos_protocols.wire.plans import Tag
from tests.simulator.piecewise import Given, ready_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.node import Node

    Fail = Callable[[int, str], NoReturn]

ROUNDS_KEPT = 512


class GivenParts:
    """See the module."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self.given: dict[Tag, dict[str, Given]] = {}
        """What each site has given to a round of the run."""
        self._apart: dict[Tag, dict[str, tuple[Node, Given]]] = {}
        self._centres: dict[Tag, str | None] = {}

    is_apart: Callable[[Node, int], bool]
    """Whether the journal of this daemon has not come to that entry as the run has."""

    def gives(self, node: Node, effect: effects.Contribute) -> Given | None:
        """What it begins to give to a round of the run, to be judged by the state that it was computed from; None: it
        goes on with a part, or its round is not the run's (yet)."""
        assert node.machine is not None
        tag = effect.tag
        token = node.contribution if effect.has_bytes else None
        ready = ready_chunks(effect, node.world.chunk_count)
        if ready is not None:
            token = node.odd.pieces.token
        apart = self.is_apart(node, tag.epoch)
        before = self._before(node, tag, apart=apart)
        if before is not None:
            if why := before.wrong(effect, token, ready):
                self._fail(3, f"{node.name} gives to round {tag.round} of epoch {tag.epoch} twice: {why}")
            self._keep(node, tag, before.gone_on(effect, ready), apart=apart)
            return None
        given = Given(node.machine.incarnation, effect.weight, token, ready)
        self._keep(node, tag, given, apart=apart)
        if (effect.weight > 0) != effect.has_bytes:
            self._fail(3, f"{node.name} gives weight {effect.weight:g} to round {tag.round}, bytes: {effect.has_bytes}")
        if token is None or apart:
            return None
        self._is_clipped_as_elsewhere(node, tag)
        return given

    def _before(self, node: Node, tag: Tag, *, apart: bool) -> Given | None:
        found = self._apart.get(tag, {}).get(node.site)
        if apart:
            return found[1] if found is not None else None
        if found is not None and found[0] is node:
            self._settle(tag)  # the run has come to that entry since it began
        return self.given.get(tag, {}).get(node.site)

    def _keep(self, node: Node, tag: Tag, given: Given, *, apart: bool) -> None:
        if apart:
            self._apart.setdefault(tag, {})[node.site] = (node, given)
        else:
            self.given.setdefault(tag, {})[node.site] = given
        if len(self.given) > ROUNDS_KEPT:
            self.given.pop(next(iter(self.given)))
        if len(self._apart) > ROUNDS_KEPT:
            self._apart.pop(next(iter(self._apart)))

    def _settle(self, tag: Tag) -> list[tuple[Node, Given]]:
        """Of what was kept apart all that the run's round has by now."""
        apart = self._apart.get(tag, {})
        settled = [one for one in apart.values() if not self.is_apart(one[0], tag.epoch)]
        for node, given in settled:
            del apart[node.site]
            if self.given.setdefault(tag, {}).setdefault(node.site, given) is not given:
                self._fail(3, f"both daemons of {node.site} give to round {tag.round} of epoch {tag.epoch}")
        return settled

    def late(self, tag: Tag) -> list[tuple[Node, Given]]:
        """A round is done: what the older daemon of a copied machine gave to it before the run had come to its entry,
        and was not judged by its state yet."""
        return [(node, given) for node, given in self._settle(tag) if given.token is not None]

    def _is_clipped_as_elsewhere(self, node: Node, tag: Tag) -> None:
        """Spec 19.6: who gives clips its part around the same as all others that give to this tag."""
        assert node.bulk is not None and node.machine is not None
        if not node.machine.roster.bounds_of(tag.round).clip_radius or node.bulk.averaging.open_tag != tag:
            return
        centre = node.bulk.averaging.centre(tag)
        if centre == "":
            self._fail(3, f"{node.name} gives to round {tag.round}, clipped around a result that it has not")
        if self._centres.setdefault(tag, centre) != centre:
            self._fail(
                3, f"{node.name} clips its part of round {tag.round} around {centre}, others {self._centres[tag]}"
            )
        while len(self._centres) > ROUNDS_KEPT:
            self._centres.pop(next(iter(self._centres)))
