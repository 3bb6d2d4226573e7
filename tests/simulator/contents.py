"""What stands for bytes in the simulator: chunks of a round and the state of a worker, as words of what is in them.

A chunk knows whose parts were added up in it, each as often as it was added: a part that is missing, doubled or of
another round shows in its hash. A state region knows which state each of its bytes is of. Hashes are real (SHA-256, 32
bytes, where the daemon uses BLAKE3), over these words; that hashing takes time is modelled where it is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from chaos_protocols.wire.bulk import CELL_BYTES
from chaos_protocols.wire.plans import Tag

Part = tuple[str, float, Any, int]
"""Site, weight, a token that says what its part was computed from, index of the chunk in the vector."""

FROZEN_BYTES = CELL_BYTES
"""The first cell is the same in all states, as frozen layers are: a joiner that holds an older state is not sent it."""
FROZEN = "frozen"

Owed = tuple[str, Tag | None]
"""A site that has encoded what it sends, and under which tag it had lost what it added (None: nothing)."""

TAINT = "not finite"
"""In a token: what was computed is no number."""

Run = tuple[int, int, str]
"""Bytes [start, stop), and the state that they are of."""


def digest_of(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


class Numbers:
    """A chunk: the sum of these parts, divided by `total` (0: not divided). `spoilt`: has so many wrong bytes. `owed`:
    what was added to it by those who encoded it, in the order in which they did."""

    def __init__(
        self, parts: tuple[Part, ...], total: float = 0.0, spoilt: int = 0, owed: tuple[Owed, ...] = ()
    ) -> None:
        self.parts, self.total, self.spoilt, self.owed = parts, total, spoilt, owed
        self._hash = b""

    @property
    def hash(self) -> bytes:
        """Of its bytes, which never change: computed once, whoever asks."""
        if not self._hash:
            words = (self.parts, self.total, self.spoilt, *self.owed)
            self._hash = hashlib.sha256(repr(words).encode()).digest()
        return self._hash

    def with_a_wrong_byte(self) -> Numbers:
        return Numbers(self.parts, self.total, self.spoilt + 1, self.owed)

    def divided(self, total: float) -> Numbers:
        return Numbers(self.parts, total, self.spoilt, self.owed)

    def encoded(self, site: str, lost: Tag | None) -> Numbers:
        return Numbers(self.parts, self.total, self.spoilt, (*self.owed, (site, lost)))

    def exact(self) -> Numbers:
        """What it would be without an encoding."""
        return Numbers(self.parts, self.total, self.spoilt) if self.owed else self

    @property
    def finite(self) -> bool:
        """No part in it is tainted: a number that is none stays one, whatever is added."""
        return all(TAINT not in part[2] for part in self.parts)


def added(own: Part | None, children: Sequence[Numbers]) -> Numbers:
    """weight * own + child + child ...; what is in it, not in which order."""
    parts = [part for child in children for part in child.parts]
    if own is not None:
        parts.append(own)
    owed = tuple(one for child in children for one in child.owed)
    spoilt = sum(child.spoilt for child in children)
    return Numbers(tuple(sorted(parts, key=lambda part: part[0])), spoilt=spoilt, owed=owed)


def vector_digest(chunks: Sequence[Numbers]) -> str:
    """Over the hashes of its chunks, as the daemon's."""
    return hashlib.sha256(b"".join(chunk.hash for chunk in chunks)).hexdigest()


def runs_of(state: str, size_bytes: int) -> tuple[Run, ...]:
    """All bytes of one state."""
    return (0, FROZEN_BYTES, FROZEN), (FROZEN_BYTES, size_bytes, state)


def hash_of(runs: tuple[Run, ...]) -> bytes:
    return hashlib.sha256(repr(runs).encode()).digest()


class Region:
    """The state region of a worker's arena. `version` counts writes."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.version = 0
        self._runs: tuple[Run, ...] = ((0, size_bytes, "zeros"),)

    def put(self, state: str) -> None:
        """The whole of a state, by the worker or from its daemon's copies."""
        self.version += 1
        self._runs = runs_of(state, self.size_bytes)

    def write(self, runs: tuple[Run, ...]) -> None:
        """A block, in its place."""
        if not runs:
            return
        self.version += 1
        start, stop = runs[0][0], runs[-1][1]
        made: list[Run] = []
        for run in (*self.read(0, start), *runs, *self.read(stop, self.size_bytes)):
            if made and made[-1][2] == run[2]:
                made[-1] = (made[-1][0], run[1], run[2])
            else:
                made.append(run)
        self._runs = tuple(made)

    def read(self, start: int, stop: int) -> tuple[Run, ...]:
        return tuple(
            (max(start, at), min(stop, until), word) for at, until, word in self._runs if at < stop and start < until
        )

    @property
    def state(self) -> str:
        """Whose bytes these are; a text that is no state where they are of several, or wrong."""
        word = self._runs[-1][2]
        return word if self._runs == runs_of(word, self.size_bytes) else f"a mixture: {self._runs}"
