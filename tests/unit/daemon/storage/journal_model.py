"""What the journal must hold after a history of `Persist` effects: a plain model, and lawful histories to feed it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from chaos_protocols.agreement.raft.effects import HardState, Persist
from chaos_protocols.agreement.raft.messages import Configuration, LogEntry, Snapshot
from chaos_protocols.names import SiteId
from chaosd.storage.journal.journal import Recovered

A, B, C = SiteId("a" * 32), SiteId("b" * 32), SiteId("c" * 32)
CONFIGURATION = Configuration(voters=(A, B), learners=(C,))
NEVER_VOTED = HardState(term=0, vote=None)


def entry(index: int, term: int, command: bytes = b"command") -> LogEntry:
    return LogEntry(index=index, term=term, command=command, configuration=None)


def effect(
    hard_state: HardState | None = None,
    truncate_from: int | None = None,
    entries: tuple[LogEntry, ...] = (),
    snapshot: Snapshot | None = None,
) -> Persist:
    return Persist(hard_state=hard_state, truncate_from=truncate_from, entries=entries, snapshot=snapshot)


@dataclass
class Model:
    """Term, vote, snapshot and the log as a dictionary by index."""

    hard_state: HardState = NEVER_VOTED
    snapshot: Snapshot | None = None
    log: dict[int, LogEntry] = field(default_factory=dict)

    def after(self, change: Persist) -> Model:
        log = dict(self.log)
        if change.snapshot is not None:
            log = {index: old for index, old in log.items() if index > change.snapshot.index}
        if change.truncate_from is not None:
            log = {index: old for index, old in log.items() if index < change.truncate_from}
        log.update({new.index: new for new in change.entries})
        return Model(change.hard_state or self.hard_state, change.snapshot or self.snapshot, log)

    def equals(self, found: Recovered) -> bool:
        entries = tuple(self.log[index] for index in sorted(self.log))
        return (self.hard_state, self.snapshot, entries) == (found.hard_state, found.snapshot, found.entries)

    @classmethod
    def of(cls, found: Recovered) -> Model:
        return cls(found.hard_state, found.snapshot, {old.index: old for old in found.entries})

    @property
    def base(self) -> int:
        return self.snapshot.index if self.snapshot else 0

    @property
    def last(self) -> int:
        return max(self.log, default=self.base)


def lawful(rng: random.Random, model: Model) -> Persist:
    """One effect that can follow: a vote, entries, a truncation and entries, a snapshot, our own or another's."""
    term = model.hard_state.term + rng.randint(0, 1)
    vote = HardState(term=term, vote=rng.choice([None, A, B]))
    kind = rng.random()
    if kind < 0.2:
        return effect(hard_state=vote)
    if kind < 0.65 or not model.log:
        return effect(
            hard_state=rng.choice([None, vote]),
            entries=tuple(
                LogEntry(
                    index=model.last + 1 + place,
                    term=term,
                    command=rng.randbytes(rng.choice([0, 5, 300])),
                    configuration=rng.choice([None, CONFIGURATION]),
                )
                for place in range(rng.randint(1, 4))
            ),
        )
    if kind < 0.8:
        cut = rng.randint(model.base + 1, model.last)
        return effect(truncate_from=cut, entries=tuple(entry(cut + place, term) for place in range(rng.randint(0, 3))))
    if kind < 0.95:
        covered = model.log[rng.choice(sorted(model.log))]
        own = Snapshot(index=covered.index, term=covered.term, configuration=CONFIGURATION, state=rng.randbytes(200))
        return effect(snapshot=own)
    index = model.last + rng.randint(1, 5)
    other = Snapshot(index=index, term=term, configuration=CONFIGURATION, state=rng.randbytes(200))
    return effect(hard_state=vote, snapshot=other, entries=(entry(index + 1, term),))
