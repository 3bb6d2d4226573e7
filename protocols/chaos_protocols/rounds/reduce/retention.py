"""Which finished results a site keeps: for its worker, and the newest few for neighbours that lag.

Pure bookkeeping of rounds, driven by whoever holds the bytes (the reduce engine, the simulator): each call says which
results have to go.
"""

from __future__ import annotations

from collections.abc import Iterator


class RetainedRounds:
    """Always the newest `kept_min` rounds, more until they are dropped, `count_max` at most."""

    def __init__(self, *, kept_min: int, count_max: int) -> None:
        self._kept_min = kept_min
        self._count_max = max(kept_min, count_max)
        self._rounds: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._rounds))

    def add(self, round_number: int) -> list[int]:
        """The result of this round is here. Returns the rounds that have to go for it."""
        self._rounds.add(round_number)
        return self._remove(sorted(self._rounds)[: max(0, len(self._rounds) - self._count_max)])

    def drop(self, before_round: int, after_round: int | None = None) -> list[int]:
        """Rounds below are not needed by the worker any more, but the newest stay for neighbours; those above
        `after_round` are void. Returns the rounds that have to go."""
        rounds = sorted(self._rounds)
        void = [one for one in rounds if after_round is not None and one > after_round]
        spared = {*rounds[-self._kept_min :], *void}
        return self._remove(void + [one for one in rounds if one < before_round and one not in spared])

    def clear(self) -> list[int]:
        """All have to go."""
        return self._remove(sorted(self._rounds))

    def _remove(self, rounds: list[int]) -> list[int]:
        self._rounds.difference_update(rounds)
        return rounds
