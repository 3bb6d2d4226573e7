"""Invariant 10: no state older than one that a member still has, and none of a site that never was in the run, is taken
without an operator's word.

Judged when the run takes over a state: what every site of the run really has then, on its disk or in a worker that
lives, whether its daemon does or not. A state counts if it belongs to the run's history as it stood; one round is no
loss (spec 13.4). Beginning anew takes an operator's word, too, but for a run of ANEW_ROUNDS_MAX rounds (decision 0018),
and one more that its sites may not have noted yet; and for one of which no checkpoint was ever whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from chaos_protocols.agreement.commands import SetRestorePoint
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.rounds.reached import ANEW_ROUNDS_MAX
from tests.simulator.oracles_given import ROUNDS_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.node import Node
    from tests.simulator.oracles_operators import OperatorsOracle
    from tests.simulator.oracles_rounds import Era, RoundsOracle

    Fail = Callable[[int, str], NoReturn]

TORN = "torn"
Held = tuple[int, str]
"""Round and content of a state."""


class RestoreOracle:
    """See the module."""

    def __init__(
        self, fail: Fail, nodes: dict[str, Node], rounds: RoundsOracle, operators: OperatorsOracle | None = None
    ) -> None:
        self._fail, self._nodes, self._rounds, self._operators = fail, nodes, rounds, operators
        self.began_anew = False
        """By itself: nobody had a state of the run's first rounds."""
        self._decided = 0
        """The last entry that rests on an operator's word."""
        self._taken: dict[int, str | None] = {}
        """Which state the run went on from with each entry; None: it is not known which of two."""

    def committed(self, index: int, command: SetRestorePoint, before: Roster) -> None:
        """`before`: the roster to which the command is applied."""
        if before.model is None:
            return
        self._taken[index] = self._chosen(command)
        if command.operator and command.operator != before.restored_by:
            self._decided = index
            return  # an operator's word; where it is heeded still, the rules have taken what they may
        site = command.record.site
        if not before.knows(site):
            self._fail(10, f"entry {index} goes on from the state of {site}, which never was in the run")
        if before.restored_by and command.round:
            self._is_not_given_up(index, command, before)
        history = self._rounds.eras[-1]
        done = max(history.newest, history.resolved_round)
        if not command.round and done:
            self.began_anew = True
            if done > ANEW_ROUNDS_MAX + 1 and self._was_saved(before):
                self._fail(10, f"entry {index} begins anew after round {done}, and nobody decided that")
        chosen = self._worth(command)
        for node in self._members(before):
            for number, state in self._held(node):
                if number > chosen + 1 and self._state(number) == state:
                    self._fail(
                        10,
                        f"entry {index} goes back to round {command.round} of {command.record.site}, and nobody "
                        f"decided that; {node.name} has the state of round {number}",
                    )

    def is_given_up(self, roster: Roster, number: int, state: str) -> bool:
        """An operator has decided against it, as far as the roster tells: it came after the state that he has chosen,
        or is of a history that began since that was made (spec 13.7)."""
        if not roster.restored_by or self._state(number) == state:
            return False
        former = [era for era in self._rounds.eras if era.index < self._decided and era.states.get(number) == state]
        if not former or number > roster.resolved_round:
            return bool(former)
        return 0 < roster.restored_lineage < min(map(_lineage, former))

    def _chosen(self, command: SetRestorePoint) -> str | None:
        """The state that its site has of that round: its worker's, and of its files the one of the newest history (spec
        13.3)."""
        node = self._nodes[command.record.site]
        files = [
            (one.lineage, kept[1]) for one, kept in node.keeper.offered.items() if kept and one.round == command.round
        ]
        states = {state for _, state in sorted(files)[-1:] if state != TORN}
        if node.worker is not None and node.worker.round == command.round and not node.worker.updating:
            states.add(node.worker.state)
        return states.pop() if len(states) == 1 else None

    def _is_not_given_up(self, index: int, command: SetRestorePoint, before: Roster) -> None:
        """An operator had the run go back, and nothing of what came of that is taken up: not again what he has given
        up, as far as the roster tells how far the run has come since (spec 13.7)."""
        held = [one for one in self._offered(command) if one[0] == command.round]
        if held and all(self.is_given_up(before, *one) for one in held):
            self._fail(
                10,
                f"entry {index} goes on from round {command.round} of {command.record.site}, which the operator of "
                f"{before.restored_by} has given up",
            )

    def _was_saved(self, before: Roster) -> bool:
        """A checkpoint of the run's history was whole once, or some site keeps none."""
        return any(
            node.world.settings.keep.checkpoint == "off" or max(node.keeper.wrote, default=0) >= before.restore_epoch
            for node in self._members(before)
        )

    def _state(self, number: int, era: Era | None = None) -> str | None:
        """Of the run's history as it stands, or stood in that era. A round that was resolved by sites that had all
        forgotten it may still be known to a worker or a disk; what came after a state that the run went back to is
        void, and so is what it had of that round before, whether or not anybody has loaded the one that was taken."""
        era = era or self._rounds.eras[-1]
        while era is not None:
            if number in era.states:
                return era.states[number]
            if era.adopted and number >= era.resolved_round:
                return self._taken.get(era.index) if number == era.resolved_round else None
            era = era.previous
        return None

    def _worth(self, command: SetRestorePoint) -> int:
        """The newest round of the run's history that the chosen state is made of: its own where that is of the run, and
        where the worker that offered it has died since, whose word was as good; otherwise that at which they part.

        A site that was cut off may have done one round more than the others knew, which they did again (spec 10.5). Its
        state has everything up to that round: it is not older than what parted from there, so it is measured by the
        round before, and not as if it had nothing. What others did beyond that still counts against it."""
        states = {state for number, state in self._offered(command) if number == command.round}
        if not states or self._state(command.round) in states:
            return command.round
        return max((self._parted(era, command.round) for era in self._rounds.eras if self._has(era, states)), default=0)

    def _has(self, era: Era, states: set[str]) -> bool:
        return any(state in states for state in era.states.values())

    def _parted(self, era: Era, newest: int) -> int:
        """The last round at which the run as it stands and as that era had it have the same state; 0: none that is
        remembered."""
        for number in range(newest, max(0, newest - ROUNDS_KEPT), -1):
            known = self._state(number, era)
            if known is not None and known == self._state(number):
                return number
        return 0

    def _members(self, roster: Roster) -> Iterator[Node]:
        """Those of the roster that want to stay, and those that failed, or left with what nobody else had, and did not
        come back; but for whom most want out."""
        away = {one.site for one in roster.departed if one.cause == "failed" or (one.lineage and one.cause != "banned")}
        for node in self._nodes.values():
            leaves = node.machine is not None and node.machine.leaving
            if self._operators is not None and self._operators.is_wanted_out(node.site, roster):
                continue
            if not leaves and (roster.record(node.site) is not None or node.site in away):  # type: ignore[arg-type]
                yield node

    def _offered(self, command: SetRestorePoint) -> Iterator[Held]:
        """What the chosen site has, with the file that it is writing."""
        node = self._nodes[command.record.site]
        yield from self._held(node)
        if node.keeper.writing is not None and (copy := node.keeper.writing[1]) is not None:
            yield copy

    def _held(self, node: Node) -> Iterator[Held]:
        for checkpoint, kept in node.keeper.files.items():
            if kept is not None and kept[1] != TORN:
                yield checkpoint.round, kept[1]
        if node.worker is not None and node.worker.round and not node.worker.updating:
            yield node.worker.round, node.worker.state


def _lineage(era: Era | None) -> int:
    """The entry by which the run took over the state that this era goes on from."""
    while era is not None and not era.adopted:
        era = era.previous
    return era.index if era is not None else 0
