"""How a worker that got the state of an earlier round catches up with the run, and what happens when it does not.

It applies the results since, one after the other. Each lap (from where it stands to what is here when the lap begins)
must leave less to do than the one before; where two laps in a row do not, or far more arrives in a lap than is applied,
or more results wait than may be kept, the worker cannot catch up by results alone. Then it takes the state once more,
a shorter transfer of what changed; and if that does not help either, the run waits for it: the round from which it is
promoted needs its contribution, and nobody goes further until it has caught up, or the deadline has passed. That
happens once in a worker's life, for one round; where it does not help either, the rounds wait while it gets the state
(`state.outrun`). A worker that is slower than the run for ever slows it down as a member: whoever lets it in decides
that.

Driven by `Participation`. Source: spec 12.4 to 12.6; learners that catch up in rounds: Raft thesis, 4.2.1.
"""

from __future__ import annotations

from chaos_protocols.agreement.commands import Command, PromoteSite
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.state.fetch import StateFetch
from chaos_protocols.wire.control import CaughtUp

LAPS_WITHOUT_GAIN_MAX = 2
GROWTH_MAX = 8
"""So many results more than at the beginning of a lap are no chance."""

LAG_SMALL = 2
"""So few results behind, another transfer would leave it further behind than it is."""

TRANSFERS_MAX = 2
"""Begun in a worker's life; after so many the run is asked to wait for it."""


class CatchUp:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        membership: Membership,
        client: SchedulerClient,
        rounds: RoundMachine,
        fetch: StateFetch,
    ) -> None:
        self.needs_round_held = False
        """The run is asked to wait for this worker."""
        self._outbox = outbox
        self._replica = replica
        self._membership = membership
        self._client = client
        self._rounds = rounds
        self._fetch = fetch
        self._transfers = 0
        """Begun in this worker's life."""
        self._asked = False
        """The run was asked to wait, once in this worker's life."""
        self._target: int | None = None
        """Where the present lap ends; None: there is none."""
        self._lag = 0
        """Results behind when it began."""
        self._laps_without_gain = 0
        self._held_round: int | None = None
        """The round that waits for this worker."""
        self._deadline_s: float | None = None
        """By `Outbox.awake_s`; None: it does not run."""
        self._rests = False
        """That round went on without it: it contributes when it has caught up."""

    def new_worker(self) -> None:
        """Nothing was tried with this one."""
        self._transfers = 0
        self.needs_round_held = self._asked = self._rests = False
        self._target = self._held_round = self._deadline_s = None

    def fetching(self) -> None:
        """A transfer begins."""
        self._transfers += 1
        self.needs_round_held = False
        self._target = None

    def loaded(self, round_number: int) -> None:
        """Its worker has a state: the first lap begins."""
        completed = self._rounds.completed_round
        self._target, self._lag, self._laps_without_gain = completed, completed - round_number, 0
        if self._transfers > TRANSFERS_MAX and self._lag > 0:
            self._ask_to_wait()

    def applied(self, round_number: int) -> None:
        """Its worker has done one more: whether the lap is over, and was worth it."""
        rounds = self._rounds
        if self._rests and rounds.caught_up and not self._membership.leaving:
            self._rests = False
            self._outbox.emit(rounds.activate())
        lag = rounds.completed_round - round_number
        outrun = lag >= self._lag + GROWTH_MAX
        if self._target is None or self._fetch.plan is None or (round_number < self._target and not outrun):
            return
        self._laps_without_gain = self._laps_without_gain + 1 if lag >= self._lag else 0
        self._target, self._lag = rounds.completed_round, lag
        if lag > 0 and (outrun or self._laps_without_gain >= LAPS_WITHOUT_GAIN_MAX):
            if self._transfers < TRANSFERS_MAX and lag > LAG_SMALL:
                rounds.fall_behind("results arrive faster than its worker applies them", outrun=True)
            else:
                self._ask_to_wait()

    def _ask_to_wait(self) -> None:
        self.needs_round_held = not self._asked
        self._asked = True

    def report(self) -> None:
        """Tell the scheduler that this site can be promoted: it has caught up, or asks to be waited for. A transfer
        that is agreed ends so, too, when the worker has got its state elsewhere since, or a member's is gone: the next
        one asks anew, and until then nobody has to keep a state for it."""
        rounds, membership = self._rounds, self._membership
        is_over = rounds.caught_up or (membership.is_member and not self._fetch.has_worker)
        plan = self._fetch.plan or (membership.awaited_transfer() if is_over else None)
        if plan is None or not membership.in_roster:
            return
        if is_over or (self.needs_round_held and rounds.worker_round is not None):
            self._client.tell(CaughtUp(round=rounds.completed_round, transfer=plan.transfer, waits=not is_over))

    # -- the one round

    def promoted(self, command: Command | None) -> None:
        """Every site notes for whom a round waits, once; the one that is waited for, how long."""
        if not isinstance(command, PromoteSite) or not command.waits or not command.views:
            return
        outbox, replica = self._outbox, self._replica
        first, limit_s = command.views[-1].first_round, outbox.settings.transfer_stall_s
        reason = f"round {first} waits for it, {limit_s:g} s at most{replica.late}"
        if not replica.known:
            name = self._membership.roster.called(command.site)
            outbox.record("scale-out", name, "it could not catch up with the run by itself", "", None, reason)
        if command.site == outbox.facts.site and self._rounds.worker_round is not None:  # or the state was lost since
            self._held_round, self._deadline_s = first, None
            self._rounds.needed_in(first)

    def beat(self) -> None:
        """Not longer than the deadline."""
        outbox, rounds, number = self._outbox, self._rounds, self._held_round
        if number is None or rounds.completed_round < number - 1:
            return
        if rounds.caught_up or rounds.worker_round is None:
            self._held_round = None
        elif self._deadline_s is None:
            self._deadline_s = outbox.awake_s + outbox.settings.transfer_stall_s
        elif outbox.awake_s >= self._deadline_s:
            self._held_round, self._rests = None, True
            reason = f"round {rounds.completed_round + 1} goes on without it; it contributes when it has caught up"
            outbox.record("scale-out", outbox.facts.name, "not caught up in time", "failed", None, reason)
            outbox.emit(rounds.worker_leaves())
