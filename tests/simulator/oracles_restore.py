"""Invariant 10: no state older than one that a member still has is taken without an operator's word.

Judged when the run takes over a state: what every site of the run really has then, on its disk or in a worker that
lives, whether its daemon does or not. A state counts if it belongs to the run's history as it stood; one round is no
loss (spec 13.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from chaos_protocols.agreement.commands import SetRestorePoint
from chaos_protocols.agreement.roster import Roster

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.node import Node
    from tests.simulator.oracles_rounds import Era, RoundsOracle

    Fail = Callable[[int, str], NoReturn]

TORN = "torn"
Held = tuple[int, str]
"""Round and content of a state."""


class RestoreOracle:
    """See the module."""

    def __init__(self, fail: Fail, nodes: dict[str, Node], rounds: RoundsOracle) -> None:
        self._fail, self._nodes, self._rounds = fail, nodes, rounds

    def committed(self, index: int, command: SetRestorePoint, before: Roster) -> None:
        """`before`: the roster to which the command is applied."""
        if command.operator or before.model is None:
            return
        chosen = command.round if self._is_of_the_run(command) else 0
        for node in self._members(before):
            for number, state in self._held(node):
                if number > chosen + 1 and self._state(number) == state:
                    self._fail(
                        10,
                        f"entry {index} goes back to round {command.round} of {command.record.site}, and nobody "
                        f"decided that; {node.name} has the state of round {number}",
                    )

    def _state(self, number: int) -> str | None:
        """Of the run's history as it stands. A round that was resolved by sites that had all forgotten it may still be
        known to a worker or a disk; what came after a state that the run went back to is void."""
        era: Era | None = self._rounds.eras[-1]
        while era is not None:
            if number in era.states:
                return era.states[number]
            if era.adopted and number > era.resolved_round:
                return None
            era = era.previous
        return None

    def _is_of_the_run(self, command: SetRestorePoint) -> bool:
        """Where the worker that offered it has died since, its word was as good."""
        states = {state for number, state in self._held(self._nodes[command.record.site]) if number == command.round}
        return not states or self._state(command.round) in states

    def _members(self, roster: Roster) -> Iterator[Node]:
        """Those of the roster that want to stay, and those that failed and did not come back."""
        away = {gone.site for gone in roster.departed if gone.cause == "failed"}
        for node in self._nodes.values():
            leaves = node.machine is not None and node.machine.leaving
            if not leaves and (roster.record(node.site) is not None or node.site in away):  # type: ignore[arg-type]
                yield node

    def _held(self, node: Node) -> Iterator[Held]:
        for checkpoint, kept in node.keeper.files.items():
            if kept is not None and kept[1] != TORN:
                yield checkpoint.round, kept[1]
        if node.worker is not None and node.worker.round and not node.worker.updating:
            yield node.worker.round, node.worker.state
