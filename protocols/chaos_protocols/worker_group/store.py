"""The rendezvous of one generation's groups: keys that a worker sets and others wait for, in the controller's memory.

No worker hosts it, so no worker's death takes it along; keys of a former generation are gone with it.
"""

from __future__ import annotations

from chaos_protocols.worker_group.messages import StoreGet, StoreSet, StoreValue

KEYS_MAX = 1 << 20


class GroupStore:
    """Answers `StoreGet` as soon as the key is there."""

    def __init__(self) -> None:
        self._generation = 0
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[int]] = {}

    def begin(self, generation: int) -> None:
        """A new generation: everything from before is forgotten."""
        self._generation = generation
        self._values.clear()
        self._waiting.clear()

    def take(self, worker: int, message: StoreSet | StoreGet) -> list[tuple[int, StoreValue]]:
        """What is to be sent to whom now. Messages of another generation change nothing."""
        if message.generation != self._generation:
            return []
        if isinstance(message, StoreGet):
            value = self._values.get(message.key)
            if value is None:
                self._waiting.setdefault(message.key, []).append(worker)
                return []
            return [(worker, StoreValue(generation=self._generation, key=message.key, value=value))]
        if len(self._values) >= KEYS_MAX:
            raise ValueError(f"the groups of generation {self._generation} use more than {KEYS_MAX} keys")
        self._values[message.key] = message.value
        answer = StoreValue(generation=self._generation, key=message.key, value=message.value)
        return [(waiter, answer) for waiter in self._waiting.pop(message.key, [])]
