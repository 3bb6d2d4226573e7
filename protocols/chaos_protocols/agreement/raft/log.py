"""The log of one site: a snapshot, the entries after it, and the configuration at each point. Knows nothing of terms
in force or roles.

Index 0 with term 0 precedes every log; a site that never had anything starts there, with nobody in its configuration.
"""

from __future__ import annotations

from chaos_protocols.agreement.raft.config import NOBODY, fault_of
from chaos_protocols.agreement.raft.messages import MANDATES_MAX, Configuration, LogEntry, Mandate, Snapshot

ENTRY_BYTES = 64
SITE_BYTES = 36
"""What an entry, and a site in a configuration, cost on the wire besides the command (msgpack with field names)."""


class Log:
    """Entries from `base_index + 1` to `last_index`; what came before is in `snapshot`, whose index is `base_index`."""

    __slots__ = (
        "_configurations",
        "_entries",
        "base_index",
        "configuration",
        "configuration_index",
        "last_index",
        "mandates",
        "snapshot",
    )

    def __init__(self, snapshot: Snapshot | None, entries: tuple[LogEntry, ...]) -> None:
        """Raises ValueError if the entries do not follow the snapshot without a gap, or a term goes back."""
        self.snapshot = snapshot
        self.base_index = 0 if snapshot is None else snapshot.index
        base = NOBODY if snapshot is None else snapshot.configuration
        self._configurations: list[tuple[int, Configuration]] = [(self.base_index, base)]
        self._entries: list[LogEntry] = []
        self.mandates: list[Mandate] = [] if snapshot is None else list(snapshot.mandates)
        """Of those who changed the voters, in the order of their entries."""
        self.configuration, self.configuration_index = base, self.base_index
        self.last_index = self.base_index
        follow = tuple(entry for entry in entries if entry.index > self.base_index)
        fault = fault_of_entries(follow, self.base_index, self.last_term)
        if fault is not None:
            raise ValueError(f"the stored log is damaged: {fault}; restore the journal or join anew")
        self.append(follow)

    @property
    def last_term(self) -> int:
        if self._entries:
            return self._entries[-1].term
        return 0 if self.snapshot is None else self.snapshot.term

    def term_at(self, index: int) -> int | None:
        """None: this site does not know (it lies before the snapshot, or after the end)."""
        position = index - self.base_index - 1
        if 0 <= position < len(self._entries):
            return self._entries[position].term
        if position == -1:
            return 0 if self.snapshot is None else self.snapshot.term
        return None

    def first_index_of_term_at(self, index: int, floor: int) -> int:
        """First index, at or after `floor`, of the run of equal terms that contains `index`."""
        position = index - self.base_index - 1
        term = self._entries[position].term
        while index > floor and self._entries[position - 1].term == term:
            index, position = index - 1, position - 1
        return index

    def entries(self, start: int, stop: int) -> tuple[LogEntry, ...]:
        """Entries with start <= index < stop; all of them must be here."""
        base = self.base_index + 1
        return tuple(self._entries[start - base : stop - base])

    def batch(self, start: int, entries_max: int, bytes_max: int) -> tuple[LogEntry, ...]:
        """Entries from `start` on, within both limits, but at least one if there is one."""
        position = start - self.base_index - 1
        last = min(len(self._entries), position + entries_max)
        stop, size_bytes = position, 0
        while stop < last:
            size_bytes += entry_bytes(self._entries[stop])
            if size_bytes > bytes_max and stop > position:
                break
            stop += 1
        return tuple(self._entries[position:stop])

    def append(self, entries: tuple[LogEntry, ...]) -> None:
        self._entries.extend(entries)
        self.last_index += len(entries)
        for entry in entries:
            if entry.configuration is not None:
                self._configurations.append((entry.index, entry.configuration))
                self.configuration, self.configuration_index = entry.configuration, entry.index
            if entry.mandate is not None:
                self.mandates.append(entry.mandate)

    def truncate(self, index: int) -> None:
        """Drops the entries from `index` on; the configuration falls back to the one before (thesis 4.1)."""
        del self._entries[index - self.base_index - 1 :]
        self.last_index = index - 1
        while self._configurations[-1][0] >= index:
            self._configurations.pop()
        self.configuration_index, self.configuration = self._configurations[-1]
        while self.mandates and self.mandates[-1].index >= index:
            self.mandates.pop()

    def in_force(self, committed: int) -> list[tuple[int, Configuration]]:
        """Configurations that may be the one that was agreed, with their indices: the newest, and the one before where
        that is not known to be committed. None older: no change is proposed before the one before is committed."""
        newest, before = self._configurations[-1], self._configurations[-2:-1]
        return [newest] if newest[0] <= committed else [newest, *before]

    def mandates_between(self, after: int, until: int) -> tuple[Mandate, ...]:
        """The first and the last one of each leader: the first has the votes that elected it, of which some may count
        no more by the time of the last; who follows it believes what it said of its own term between."""
        found = [one for one in self.mandates if after < one.index <= until]
        by = [(one.term, one.leader) for one in found]
        ends = [one for at, one in enumerate(found) if by[max(0, at - 1) : at + 2] != [by[at]] * 3]
        return tuple(ends)[-MANDATES_MAX:]

    def configuration_at(self, index: int) -> Configuration:
        """The one in force after `index`, which must not lie before the snapshot."""
        for start, configuration in reversed(self._configurations):
            if start <= index:
                return configuration
        raise ValueError(f"index {index} lies before the snapshot at {self.base_index}")

    def configurations_since(self, index: int) -> list[Configuration]:
        """The one in force at `index` and all later ones."""
        later = [configuration for start, configuration in self._configurations if start > index]
        return [self.configuration_at(index), *later]

    def replace_prefix(self, snapshot: Snapshot) -> bool:
        """The snapshot takes the place of the entries up to its index. False: what followed did not follow from it and
        is dropped."""
        kept = self.term_at(snapshot.index) == snapshot.term
        if kept:
            del self._entries[: snapshot.index - self.base_index]
            later = [pair for pair in self._configurations if pair[0] > snapshot.index]
        else:
            self._entries.clear()
            later = []
            self.last_index = snapshot.index
        self.snapshot, self.base_index = snapshot, snapshot.index
        self._configurations = [(snapshot.index, snapshot.configuration), *later]
        since = [one for one in self.mandates if one.index > snapshot.index] if kept else []
        self.mandates = [*snapshot.mandates, *since]
        self.configuration_index, self.configuration = self._configurations[-1]
        return kept


def entry_bytes(entry: LogEntry) -> int:
    """An upper estimate of its size on the wire."""
    size_bytes = ENTRY_BYTES + len(entry.command)
    if entry.configuration is not None:
        size_bytes += SITE_BYTES * (len(entry.configuration.voters) + len(entry.configuration.learners))
    return size_bytes


def fault_of_entries(entries: tuple[LogEntry, ...], previous_index: int, previous_term: int) -> str | None:
    """Why these cannot follow (previous_index, previous_term) in any log, or None."""
    for entry in entries:
        if entry.index != previous_index + 1:
            return f"entry {entry.index} follows entry {previous_index}"
        if entry.term < previous_term:
            return f"entry {entry.index} has term {entry.term}, the one before it {previous_term}"
        if entry.configuration is not None:
            fault = fault_of(entry.configuration)
            if fault is not None:
                return f"entry {entry.index} has an impossible configuration: {fault}"
        previous_index, previous_term = entry.index, entry.term
    return None
