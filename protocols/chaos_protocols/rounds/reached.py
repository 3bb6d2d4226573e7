"""What the journal of this site knows of how far the run has come, for the time after a loss of power.

A note says: in this history of the run (*lineage*: the epoch in which it last took over a state) this round was done
here, and this site's worker trained, or did not; or that its worker was given the state of that round. Notes are made
with the first round of a history, with each state that is given, and else at most every NOTE_EVERY_S, so they may lag
behind by the rounds of that time; nothing is promised to anybody by them. Two
things in a note are exact. The first: whether the run has come beyond its first ANEW_ROUNDS_MAX rounds, which are
noted each; and, of a site that was there in these, or came later and never was in the run before, whether a
checkpoint of that history may have been whole on its disk. The second: that the worker trains. It is taken back,
durably, before this site gives to a round without its worker. So where a note says so, and the worker
outlives its daemon, nobody has a state that is more than a round newer: no round is done without its part.

It also says of which history the state is that the worker has: a worker outlives its daemon, and knows no more of its
state than the round. That history need not be the one of which a round was last done here: that may have been without
the worker, or before it got its state. And, from before the worker is told to load a state of another history until it
has said that it did, of which round and history that is.

Driven by `Participation`. Source: spec 13.8.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import NoteReached
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine

NOTE_EVERY_S = 1.0
"""One write and one sync of about a hundred bytes in so long, and never more than one a round."""

ANEW_ROUNDS_MAX = 3
"""A run of which no more rounds were done begins anew by itself when nobody has a state of it: that is before any
checkpoint can be whole. These rounds, and the one after them, are noted each (decision 0018)."""

FIRST_CHECKPOINT_S_MAX = 3600.0
"""A run whose first checkpoint is not whole after that begins anew on an operator's word only: what was trained since
is worth a look at why none is."""


class ReachedRound:
    """See the module."""

    def __init__(self, outbox: Outbox, rounds: RoundMachine) -> None:
        self.noted = noted = outbox.facts.reached
        """As the journal has it."""
        self._outbox = outbox
        self._rounds = rounds
        self._noted_s = float("-inf")
        self._unsaved_s = outbox.now_s
        """Since when this daemon knows that there is no checkpoint yet."""
        self._outlived = noted if noted.active else None
        """What was noted of a worker that trained until the daemon before this one ended; None: nothing, or a round was
        done since, or a state loaded."""
        self._without = 0
        """The newest round that was open here while the worker did not train: others may have done it."""

    def of(self, roster: Roster) -> int:
        """The newest round of the roster's history that the journal knows; 0: none."""
        return self.noted.round if self.noted.lineage == roster.restore_epoch else 0

    def outlived_training(self, roster: Roster, worker_round: int) -> bool:
        """Whether a worker with the state of that round trained until the daemon ended: nobody has more than one round
        more."""
        noted = self._outlived
        if noted is None or noted.lineage != roster.restore_epoch:
            return False
        return noted.round <= worker_round and self._without <= worker_round + 1

    @property
    def _held(self) -> int:
        return self.noted.held or self.noted.lineage  # a journal of a release before has no other word

    def held(self, worker_round: int) -> int:
        """The lineage of the state that this site's worker has, which is that of the end of this round; 0: not
        known."""
        told = worker_round == self.noted.told_round > 0
        return self.noted.told_lineage if told else self._held

    def before_load(self, lineage: int, round_number: int, *, had: int) -> None:
        """The worker, whose state is that of round `had`, will be told to load one of that history. It may do so, and
        this daemon end before it hears that. Where both are of one round the next daemon could not tell them apart."""
        told = (round_number, lineage) if lineage != self._held and round_number != had else (0, 0)
        if told != (self.noted.told_round, self.noted.told_lineage):
            self.noted = msgspec.structs.replace(self.noted, told_round=told[0], told_lineage=told[1])
            self._outbox.emit([NoteReached(reached=self.noted)])

    def holds(self, lineage: int, round_number: int, roster: Roster) -> None:
        """This site's worker has the state of that round of that history from now on, which it was given: the run has
        come so far, though no round may be done here. That says nothing any more of one that trained until the daemon
        ended."""
        self._outlived = None
        noted = msgspec.structs.replace(self.noted, held=lineage, active=False, told_round=0, told_lineage=0)
        if lineage == roster.restore_epoch and round_number > self.of(roster):
            unsaved = self._still_unsaved(roster, round_number + 1)  # the first one that can be done here
            noted = msgspec.structs.replace(
                noted, lineage=lineage, round=round_number, unsaved=unsaved, applied=roster.epoch
            )
        if noted != self.noted:
            self.noted = noted
            self._outbox.emit([NoteReached(reached=self.noted)])

    def done_before(self, index: int, lineage: int) -> int:
        """The newest round of that lineage which the journal knows to have been done here before this entry of the log
        was agreed, as far as was known here; 0: none. A daemon that was started since applies every entry anew, and
        has forgotten what was done."""
        noted = self.noted
        return noted.round if noted.lineage == lineage and 0 < noted.applied < index else 0

    def completed(self, roster: Roster, round_number: int, *, applied: int) -> None:
        """A round is done here: it is noted now and then. `applied`: up to which entry commands are applied here."""
        outbox, active = self._outbox, self._rounds.active
        self._outlived = None
        news = roster.restore_epoch != self.noted.lineage or active is not self.noted.active
        if news or round_number <= ANEW_ROUNDS_MAX + 1 or outbox.now_s >= self._noted_s + NOTE_EVERY_S:
            unsaved = self._still_unsaved(roster, round_number)
            self.noted = msgspec.structs.replace(
                self.noted,
                lineage=roster.restore_epoch,
                round=round_number,
                active=active,
                held=self._held,
                unsaved=unsaved,
                applied=applied,
            )
            self._noted_s = outbox.now_s
            outbox.emit([NoteReached(reached=self.noted)])

    def _still_unsaved(self, roster: Roster, round_number: int) -> bool:
        """Whether the history of this round has no checkpoint here yet, and never had: this site was there from its
        first rounds on, or it is new in the run. Where none is kept that says nothing."""
        outbox = self._outbox
        if roster.restore_epoch != self.noted.lineage:
            self._unsaved_s = outbox.now_s
            from_the_start = round_number <= ANEW_ROUNDS_MAX or self._never_was_in_the_run(roster)
            return from_the_start and outbox.settings.keep.checkpoint != "off"
        return self.noted.unsaved and outbox.now_s - self._unsaved_s <= FIRST_CHECKPOINT_S_MAX

    def _never_was_in_the_run(self, roster: Roster) -> bool:
        """It never was in the run: neither its journal nor the roster knows of it. Who is back without its journal is
        named in the roster as long as that names it."""
        return not self.noted.lineage and roster.gone(self._outbox.facts.site) is None

    @property
    def unsaved_in(self) -> int:
        """The lineage of which no checkpoint was ever whole on this site's disk, since its first rounds or since it
        came; 0: there is none."""
        return self.noted.lineage if self.noted.unsaved else 0

    def checkpoint_ended(self) -> None:
        """A checkpoint is whole, or could not be written: from now on this is a run like any other."""
        if self.noted.unsaved:
            self.noted = msgspec.structs.replace(self.noted, unsaved=False)
            self._outbox.emit([NoteReached(reached=self.noted)])

    def before_effects(self, roster: Roster) -> None:
        """At the end of every event. A round is open here, and this site's worker does not train: that is noted before
        anything is given to it. And that rules were agreed."""
        noted, rounds = self.noted, self._rounds
        if rounds.running is not None and not rounds.active:
            self._without = max(self._without, rounds.running.round)
        idle = noted.active and not rounds.active and rounds.running is not None
        if idle or roster.rules > noted.rules:
            known = max(noted.rules, roster.rules)
            self.noted = msgspec.structs.replace(noted, active=noted.active and not idle, rules=known)
            self._outbox.emit_first(NoteReached(reached=self.noted))
