"""The disks of simulated sites: what survives a crash is what a `Persist` was executed for, and nothing else must.

`Disk` is a model; `JournalDisk` is the daemon's own journal on a disk in memory that tears writes at any byte, loses
what was not synced, and refuses syncs. Both can be told to lose power in the next write, or to fail.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from chaos_protocols.agreement.raft import HardState, Persist
from chaos_protocols.effects import KeyAgreed, NoteReached, StartOver
from chaos_protocols.wire.keys import KeyChain
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.recovered import Origin
from chaosd.storage.journal.journal import Journal, JournalError
from tests.unit.daemon.storage.journal_faults import FaultyFolder, PowerLost

OPERATIONS_OF_A_PERSIST = 3
"""Write, sync, and the return: power may go at each (a rewrite with a snapshot has more)."""


class DiskFailed(Exception):
    """The disk does not take it: the daemon must stop, and answer nothing."""


@dataclass
class Disk:
    """`power_fails` and `fails` hold for the next write; `open` is the start of a daemon, and mends what was wrong."""

    incarnation: int = 0
    hard_state: HardState = field(default_factory=lambda: HardState(0, None))
    snapshot: Any = None
    entries: tuple[Any, ...] = ()
    reached: Reached = field(default_factory=Reached)
    origin: Origin | None = None
    tear: random.Random | None = None
    failing: bool = False
    key_number: int = 0
    """Of the key in `site.key`: 0 is the first."""
    key_chain: KeyChain | None = None
    """What stands there of its changes."""
    next_number: int = 0
    """Of the key in `site.key.new`; 0: there is none."""
    next_chain: KeyChain | None = None
    """What stands there, once the run has agreed on it."""

    def take_next_key(self) -> None:
        """At the start of a daemon: the file is renamed if the run has agreed on the key in it."""
        if self.next_number and self.next_chain is not None:
            self.key_number, self.key_chain = self.next_number, self.next_chain
            self.next_number, self.next_chain = 0, None

    def open(self) -> None:
        self.calm()

    def calm(self) -> None:
        """Nothing will be wrong with the next write."""
        self.tear, self.failing = None, False

    def count_start(self) -> None:
        """The number of this start, durable."""
        self.incarnation += 1

    def move_journal_away(self) -> None:
        """An operator has, while the daemon is down. A start counts on all the same: a daemon's number is at least the
        time."""
        self.hard_state, self.snapshot, self.entries = HardState(0, None), None, ()
        self.reached, self.origin = Reached(), None

    def power_fails(self, rng: random.Random) -> None:
        """Within the next write: what was not synced may be cut at any byte, or vanish."""
        self.tear = rng

    def fails(self) -> None:
        """The next writes are refused, until the daemon is started again."""
        self.failing = True

    def keep(self, effect: Persist | NoteReached | KeyAgreed | StartOver) -> None:
        """Raises PowerLost or DiskFailed, where that was asked for."""
        if isinstance(effect, StartOver):
            self.start_over(effect)
        elif isinstance(effect, KeyAgreed):
            self._note_key(effect.chain)
        elif isinstance(effect, NoteReached):
            self.note(effect.reached)
        else:
            self.persist(effect)

    def _note_key(self, chain: KeyChain) -> None:
        """Beside the key in `site.key.new`, if that is the one."""
        lost = self.tear is not None and self.tear.random() < 0.5
        if not lost and not self.failing and self.next_number:
            self.next_chain = chain
        if self.failing:
            raise DiskFailed("Input/output error")
        if self.tear is not None:
            raise PowerLost

    def persist(self, effect: Persist) -> None:
        """Raises PowerLost or DiskFailed, where that was asked for."""
        if self.failing:
            raise DiskFailed("Input/output error")
        if self.tear is not None:
            if self.tear.random() < 0.5:
                self._take(effect)
            raise PowerLost
        self._take(effect)

    def note(self, reached: Reached) -> None:
        """How far the run has come. Raises PowerLost or DiskFailed, where that was asked for."""
        if self.failing:
            raise DiskFailed("Input/output error")
        if self.tear is not None:
            if self.tear.random() < 0.5:
                self.reached = reached
            raise PowerLost
        self.reached = reached

    def start_over(self, start: StartOver) -> None:
        """Another run in place of the one that is there. Raises PowerLost or DiskFailed, where that was asked for."""
        if self.failing:
            raise DiskFailed("Input/output error")
        if self.tear is None or self.tear.random() < 0.5:
            self._take_run(start)
        if self.tear is not None:
            raise PowerLost

    def _take_run(self, start: StartOver) -> None:
        self.hard_state, self.snapshot, self.entries = start.hard_state, start.snapshot, ()
        self.reached, self.origin = start.reached, start.origin

    def _take(self, effect: Persist) -> None:
        if effect.hard_state is not None:
            self.hard_state = effect.hard_state
        if effect.snapshot is not None:
            self.snapshot = effect.snapshot
            self.entries = tuple(entry for entry in self.entries if entry.index > effect.snapshot.index)
        if effect.truncate_from is not None:
            self.entries = tuple(entry for entry in self.entries if entry.index < effect.truncate_from)
        self.entries += effect.entries


class JournalDisk(Disk):
    """The same through `chaosd.storage.journal.journal`: its frames, its syncs, its rewriting, its reading of a torn
    end."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = FaultyFolder()
        self._journal: Journal | None = None

    def open(self) -> None:
        if self.tear is not None:
            self._folder = FaultyFolder(self._folder.after_power_loss(self.tear))
        else:
            self._folder = FaultyFolder({name: bytes(one.current) for name, one in self._folder.names.items()})
        super().open()
        self._journal = Journal.open("/data", folder=self._folder, incarnation_floor=self.incarnation + 1)
        known = self._journal.recovered
        self.hard_state, self.snapshot, self.entries = known.hard_state, known.snapshot, known.entries
        self.reached, self.origin = known.reached, known.origin

    def calm(self) -> None:
        super().calm()
        self._folder.stop_at_step, self._folder.sync_errors = None, 0

    def count_start(self) -> None:
        assert self._journal is not None
        self.incarnation = self._journal.incarnation

    def move_journal_away(self) -> None:
        super().move_journal_away()
        self._folder = FaultyFolder()

    def power_fails(self, rng: random.Random) -> None:
        super().power_fails(rng)
        self._folder.stop_at_step = self._folder.steps + rng.randint(1, OPERATIONS_OF_A_PERSIST)

    def fails(self) -> None:
        super().fails()
        self._folder.sync_errors = 1

    def persist(self, effect: Persist) -> None:
        assert self._journal is not None
        try:
            self._journal.persist(effect)
        except JournalError as error:
            raise DiskFailed(str(error)) from error
        self._take(effect)
        self._power_may_go()

    def note(self, reached: Reached) -> None:
        assert self._journal is not None
        try:
            self._journal.note_reached(reached)
        except JournalError as error:
            raise DiskFailed(str(error)) from error
        self.reached = reached
        self._power_may_go()

    def start_over(self, start: StartOver) -> None:
        assert self._journal is not None
        try:
            self._journal.start_over(start)
        except JournalError as error:
            raise DiskFailed(str(error)) from error
        self._take_run(start)
        self._power_may_go()

    def _power_may_go(self) -> None:
        if self.tear is not None and self._folder.steps + 1 >= (self._folder.stop_at_step or 0):
            raise PowerLost  # all was synced, and nobody was told
