"""What the reduce engine is asked before any worker has said what is averaged: it waits for that, in order.

At most one round waits, with this site's part of it, and one fetch: a newer one takes the place of the one before.
"""

from __future__ import annotations

from collections.abc import Callable

from chaos_protocols.wire.plans import Tag

Call = Callable[[], None]


class Deferred:
    """See the module. Driven by `ReduceEngine`."""

    def __init__(self) -> None:
        self._calls: list[tuple[Tag | None, Call]] = []
        """Those of a round have its tag; a fetch has none."""

    def open(self, tag: Tag, call: Call) -> None:
        """That round waits, and no other does any more."""
        self._calls = [(waiting, one) for waiting, one in self._calls if waiting is None]
        self._calls.append((tag, call))

    def is_open(self, tag: Tag) -> bool:
        """Whether that round waits."""
        return any(waiting == tag for waiting, _ in self._calls)

    def contribute(self, tag: Tag, call: Call) -> None:
        """A part of the round that waits, or a piece of one."""
        self._calls.append((tag, call))

    def stop(self, tag: Tag) -> None:
        """Nothing of that round waits any more."""
        self._calls = [(waiting, one) for waiting, one in self._calls if waiting != tag]

    def fetch(self, call: Call) -> None:
        """That fetch waits, and no other does any more."""
        self._calls = [(waiting, one) for waiting, one in self._calls if waiting is not None]
        self._calls.append((None, call))

    def take(self) -> list[Call]:
        """What waited, in order; nothing is left."""
        calls, self._calls = self._calls, []
        return [call for _, call in calls]
