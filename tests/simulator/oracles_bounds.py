"""What a site may give (spec 19): all that open a round judge it alike, and nobody changes that alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from chaos_protocols import effects
from chaos_protocols.agreement.commands import SetBounds
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.plans import Tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.node import Node
    from tests.simulator.world import World

TAGS_KEPT = 512


class BoundsOracle:
    """See the module. `changes`: that were agreed on."""

    def __init__(self, fail: Callable[[int, str], NoReturn], world: World) -> None:
        self._fail, self._world = fail, world
        self._of: dict[Tag, Bounds] = {}
        self.changes = 0

    def committed(self, index: int, command: Any, roster: Roster) -> None:
        """Invariant 11: a change was wanted by more than half of the members' operators; who lies says anything."""
        if not isinstance(command, SetBounds):
            return
        self.changes += 1
        wished = self._world.wished.get(command.bounds, set()) | {self._world.liar}
        members = roster.member_ids()
        if 2 * len(wished.intersection(members)) <= len(members):
            self._fail(11, f"entry {index} sets {command.bounds}, which only {sorted(wished)} of {members} have wanted")

    def opened(self, node: Node, effect: effects.OpenRound) -> None:
        """Invariant 2: whoever opens a round under a tag allows and clips the same."""
        held = self._of.setdefault(effect.tag, effect.bounds)
        if held != effect.bounds:
            self._fail(2, f"{node.name} opens {effect.tag} with {effect.bounds}, others with {held}")
        while len(self._of) > TAGS_KEPT:
            self._of.pop(next(iter(self._of)))

    def contributed(self, node: Node, effect: effects.Contribute) -> None:
        """Invariant 3: a site gives what the run allows."""
        most = self._of[effect.tag].weight_max
        if most and effect.weight > most:
            self._fail(3, f"{node.name} gives weight {effect.weight:g} to round {effect.tag.round}, {most:g} is agreed")
