"""How a worker that got the state of an earlier round catches up with the run, and what happens when it does not.

It applies the results since, one after the other. Each lap (from where it stands to what is here when the lap begins)
must leave less to do than the one before; where two laps in a row do not, or far more arrives in a lap than is applied,
or more results wait than may be kept, the worker cannot get level by results alone. Then it takes the state once more,
a shorter transfer of what changed; and if that does not help either, the run waits for it: the round from which it is
promoted needs its contribution, and nobody goes further until it is level, or the deadline has passed. That happens
once in a worker's life, for one round. A worker that is slower than the run for ever would slow it down as a member
anyhow: whoever lets it in decides that.

Driven by `Standing`. Source: protocols.md sections 3 and 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos_protocols.commands import Command, PromoteSite
from chaos_protocols.messages import LevelReport

if TYPE_CHECKING:
    from chaos_protocols.standing import Standing

LAPS_IN_VAIN_MAX = 2
GROWTH_MAX = 8
"""So many results more than at the beginning of a lap are no chance."""

LAG_SMALL = 2
"""So few results behind, another transfer would leave it further behind than it is."""


class Leveling:
    """See the module. `transfers`: begun in this worker's life; `waits`: the run is asked to wait for it."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._machine = standing.machine
        self.transfers = 0
        self.waits = False
        self._asked = False
        self._target: int | None = None
        self._lag = 0
        self._in_vain = 0
        self._round: int | None = None
        self._deadline_s: float | None = None
        self._rests = False

    def new_worker(self) -> None:
        """Nothing was tried with this one."""
        self.transfers = 0
        self.waits = self._asked = self._rests = False
        self._target = self._round = self._deadline_s = None

    def fetching(self) -> None:
        self.transfers += 1
        self.waits = False
        self._target = None

    def loaded(self, round_number: int) -> None:
        """Its worker has a state: the first lap begins."""
        rounds = self._machine.rounds
        self._target, self._lag, self._in_vain = rounds.done, rounds.done - round_number, 0
        if self.transfers > 2 and self._lag > 0:
            self._ask_to_wait()

    def applied(self, round_number: int) -> None:
        rounds = self._machine.rounds
        if self._rests and rounds.level and not self._standing.leaving:
            self._rests = False
            self._machine.emit(rounds.activate())
        lag = rounds.done - round_number
        outrun = lag >= self._lag + GROWTH_MAX
        if self._target is None or self._standing.transfer is None or (round_number < self._target and not outrun):
            return
        self._in_vain = self._in_vain + 1 if lag >= self._lag else 0
        self._target, self._lag = rounds.done, lag
        if lag > 0 and (outrun or self._in_vain >= LAPS_IN_VAIN_MAX):
            if self.transfers < 2 and lag > LAG_SMALL:
                rounds.fall_behind("results arrive faster than its worker applies them")
            else:
                self._ask_to_wait()

    def _ask_to_wait(self) -> None:
        self.waits = not self._asked
        self._asked = True

    def report(self) -> None:
        """Tell the scheduler that this site can be promoted: it is level, or asks to be waited for."""
        machine, transfer = self._machine, self._standing.transfer
        if transfer is None or not self._standing.in_roster:
            return
        level = machine.rounds.level
        if level or (self.waits and machine.rounds.worker_round is not None):
            machine.tell_scheduler(LevelReport(round=machine.rounds.done, transfer=transfer.transfer, waits=not level))

    # -- the one round

    def promoted(self, command: Command | None) -> None:
        """Every site notes for whom a round waits; the one that is waited for, how long."""
        machine = self._machine
        if not isinstance(command, PromoteSite) or not command.waits:
            return
        record = machine.roster.record(command.site)
        first, limit_s = command.views[-1].first_round, machine.settings.transfer_stall_s
        reason = f"round {first} waits for it, {limit_s:g} s at most"
        name = record.name if record is not None else command.site
        machine.record("scale-out", name, "it could not get level with the run by itself", "", None, reason)
        if command.site == machine.site:
            self._round, self._deadline_s = first, None
            machine.rounds.waited_for = first

    def beat(self) -> None:
        """Not longer than the deadline."""
        machine, rounds, number = self._machine, self._machine.rounds, self._round
        if number is None or rounds.done < number - 1:
            return
        if rounds.level or rounds.worker_round is None:
            self._round = None
        elif self._deadline_s is None:
            self._deadline_s = machine.now_s + machine.settings.transfer_stall_s
        elif machine.now_s >= self._deadline_s:
            self._round, self._rests = None, True
            reason = f"round {rounds.done + 1} goes on without it; it contributes when it is level"
            machine.record("scale-out", machine.facts.name, "not level in time", "failed", None, reason)
            machine.emit(rounds.worker_leaves())
