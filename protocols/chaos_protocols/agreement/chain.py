"""One number for all that this site's log holds, so that two sites can tell whether they have agreed on the same.

Raft takes two entries of one index and term for the same one. They are, as long as every voter votes once a term, and
whoever leads proposes one entry an index. With a voter that does not, two sites may agree on different things, and
neither sees it. So each entry that is agreed is hashed together with all before it, from the entry on with which the
run agreed on that (spec 5.25); neighbours tell each other the newest number, and one that differs for an index is told.

Driven by `RosterReplica`. Nothing is decided by it: a neighbour may have made its number up.
"""

from __future__ import annotations

import msgspec
from blake3 import blake3

from chaos_protocols.agreement.raft.messages import HEAD_BYTES, LogEntry, Snapshot

HEADS_KEPT = 256
"""The newest; a neighbour is seldom more than a few entries behind."""

LABEL = b"chaos log 1\0"
NOBODYS_HEAD = bytes(HEAD_BYTES)
"""Of a snapshot that should have one, and has none: whoever made it is found out by the first neighbour."""


def linked(before: bytes, entry: LogEntry) -> bytes:
    """The number after this entry, HEAD_BYTES long. `before`: that of the entry before it; empty for the first one."""
    configuration, mandate = entry.configuration, entry.mandate
    voters = None if configuration is None else (configuration.voters, configuration.learners)
    signed = b"" if mandate is None else mandate.signature
    said = msgspec.msgpack.encode((before, entry.index, entry.term, entry.command, voters, signed))
    return blake3(LABEL + said).digest(length=HEAD_BYTES)


class LogChain:
    """See the module. `snapshot`: what the log begins with."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.index = 0
        """Of the newest entry that has a number; 0: none has."""
        self.head = b""
        """Its number."""
        self._heads: dict[int, bytes] = {}
        if snapshot is not None:
            self.restored(snapshot, begun=False)

    def restored(self, snapshot: Snapshot, *, begun: bool) -> None:
        """The log up to there is that of who made the snapshot. `begun`: by then the run had agreed to number it."""
        self._heads.clear()
        self._know(snapshot.index, snapshot.chain or (NOBODYS_HEAD if begun else b""))

    def agreed(self, entry: LogEntry, *, begins: bool) -> None:
        """The next entry is agreed. `begins`: with it the run agrees to number them."""
        if self.head or begins:
            self._know(entry.index, linked(self.head, entry))

    def _know(self, index: int, head: bytes) -> None:
        self.index, self.head = (index, head) if head else (0, b"")
        if head:
            self._heads[index] = head
        while len(self._heads) > HEADS_KEPT:
            del self._heads[next(iter(self._heads))]

    def differs(self, index: int, head: bytes) -> bool:
        """Whether who has this number for that entry has agreed on something else; False where it cannot be told."""
        known = self._heads.get(index)
        return known is not None and bool(head) and head != known
