"""Which samples of the epoch are given out, and to whom: shared state, the same on all sites at the end of a round.

Each site that takes part holds a *place* of a table, under a token that it drew, and in it a *lease*: positions of the
epoch, in the order in which it will train on them. With every round a site says in its place how many positions from
the head of its lease are done, and how many came to nothing. These notes are float64 numbers of the round's vector, so
all sites read the same from the result, and so does a joiner: what is done is forgotten, what came to nothing is free
again, and every lease is filled up with the lowest free positions. A sample is done exactly when a round was applied in
which its site said so; where the round was not applied, nobody has heard of it.

With weights w of the sites a number of a place becomes sum(w x) / sum(w), and only its holder writes into it, so its
quotient with the first number, which the holder sets to 1, is what it wrote. Two that claim the same place at once are
seen by their tokens, whose mean square is not the square of their mean; neither gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos.frameworks.base import Bytes, MadeItem, StateItem
from chaos_protocols.wire.state_spec import Item

Numbers = NDArray[np.float64]
Token = tuple[int, int]

NUMBERS_A_PLACE = 8
"""1; both halves of the token and their squares; done before what came to nothing; came to nothing; done after it."""

TOKEN_MAX = 1 << 20
"""A half of a token is below this, so that its square is exact enough to tell one claimant from two."""

TOKEN_TOLERANCE = 0.1

ABSENT_ROUNDS_MAX = 4
"""So many rounds without a word, and a lease is free again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseNote:
    """What a site says of the head of its lease: `seen` positions are done, then `lost` came to nothing, then `done`
    are done with this round."""

    token: Token
    seen: int = 0
    lost: int = 0
    done: int = 0

    @property
    def count(self) -> int:
        return self.seen + self.lost + self.done


class Ledger:
    """samples: of an epoch. lease: positions that a site may hold at once; near the end of the epoch, where there
    are fewer, all hold as many, at least `least`. places: sites at once."""

    def __init__(self, *, samples: int, lease: int, least: int, places: int) -> None:
        self._samples, self._lease, self._least, self._places = samples, lease, least, places
        self._epoch = np.zeros(1, dtype=np.int64)
        self._free_count = np.full(1, samples, dtype=np.int64)
        self._given = np.zeros(-(-samples // 8), dtype=np.uint8)
        self._tokens = np.zeros((places, 2), dtype=np.int64)
        self._absent = np.zeros(places, dtype=np.int64)
        self._popped = np.zeros(places, dtype=np.int64)
        self._counts = np.zeros(places, dtype=np.int64)
        self._leases = np.zeros((places, lease), dtype=np.int64)

    @property
    def items(self) -> Sequence[StateItem]:
        """What a joiner gets: one bit for each sample, and the table."""
        named: dict[str, NDArray[Any]] = {
            "epoch": self._epoch,
            "free": self._free_count,
            "given": self._given,
            "tokens": self._tokens,
            "absent": self._absent,
            "popped": self._popped,
            "counts": self._counts,
            "leases": self._leases,
        }
        return [_array_item(f"sampler.{name}", array) for name, array in named.items()]

    @property
    def numbers(self) -> int:
        """How many a round carries."""
        return NUMBERS_A_PLACE * self._places

    @property
    def epoch(self) -> int:
        return int(self._epoch[0])

    def place_of(self, token: Token) -> int | None:
        found = np.flatnonzero((self._tokens == token).all(axis=1))
        return int(found[0]) if found.size else None

    def free_places(self) -> list[int]:
        return [int(place) for place in np.flatnonzero(~self._tokens.any(axis=1))]

    def lease(self, place: int) -> NDArray[np.int64]:
        """The positions that its holder trains on, in order."""
        return self._leases[place, : self._counts[place]].copy()

    def popped(self, place: int) -> int:
        """How many positions have left the head of this lease since the place was taken."""
        return int(self._popped[place])

    def write(self, note: LeaseNote, place: int, numbers: Numbers) -> None:
        """`numbers`: of a whole contribution."""
        table = numbers.reshape(self._places, NUMBERS_A_PLACE)
        table[...] = 0.0
        first, second = note.token
        table[place] = (1.0, first, first**2, second, second**2, note.seen, note.lost, note.done)

    def settle(self, numbers: Numbers) -> int:
        """Take over what the averaged numbers say, and fill the leases. How many samples are done with it."""
        table = numbers.reshape(self._places, NUMBERS_A_PLACE)
        done = 0
        for place in range(self._places):
            share = float(table[place, 0])
            if share <= 0:
                self._miss(place)
                continue
            first, first_squared, second, second_squared, *counts = (float(n) / share for n in table[place, 1:])
            token = (round(first), round(second))
            if not self._tokens[place].any():
                alone = abs(first_squared - first**2) < TOKEN_TOLERANCE
                if alone and abs(second_squared - second**2) < TOKEN_TOLERANCE and min(token) > 0:
                    self._tokens[place] = token
                    self._absent[place] = self._popped[place] = 0
            elif tuple(self._tokens[place]) == token:
                done += self._pop(place, *(round(count) for count in counts))
            else:
                self._miss(place)
        self._fill()
        return done

    # ---- within

    def _miss(self, place: int) -> None:
        if not self._tokens[place].any():
            return
        self._absent[place] += 1
        if self._absent[place] >= ABSENT_ROUNDS_MAX:
            self._release(place)

    def _release(self, place: int) -> None:
        self._free(self.lease(place))
        self._tokens[place] = 0
        self._counts[place] = self._absent[place] = self._popped[place] = 0

    def _pop(self, place: int, seen: int, lost: int, done: int) -> int:
        held, count = int(self._counts[place]), seen + lost + done
        if min(seen, lost, done) < 0 or count > held:  # nothing that a site of this release says
            self._release(place)
            return 0
        lease = self._leases[place]
        self._free(lease[seen : seen + lost].copy())
        lease[: held - count] = lease[count:held].copy()
        self._counts[place] -= count
        self._popped[place] += count
        self._absent[place] = 0
        return seen + done

    def _free(self, positions: NDArray[np.int64]) -> None:
        self._free_count += positions.size
        np.bitwise_and.at(self._given, positions >> 3, ~(1 << (positions & 7)).astype(np.uint8))

    def _fill(self) -> None:
        holders = [int(place) for place in np.flatnonzero(self._tokens.any(axis=1))]
        free = int(self._free_count[0])
        if not free and not self._counts.any():
            self._epoch += 1
            self._given[...] = 0
            self._free_count[...] = free = self._samples
        if not holders or not free:
            return
        even = -(-(free + int(self._counts.sum())) // len(holders))
        target = min(self._lease, max(self._least, even))
        wanted = [max(0, target - int(self._counts[place])) for place in holders]
        if not any(wanted):
            return
        found = self._lowest_free(min(free, sum(wanted)))
        self._free_count -= found.size
        np.bitwise_or.at(self._given, found >> 3, (1 << (found & 7)).astype(np.uint8))
        for place, count in zip(holders, wanted, strict=True):
            mine, found = found[:count], found[count:]
            held = int(self._counts[place])
            self._leases[place, held : held + mine.size] = mine
            self._counts[place] += mine.size

    def _lowest_free(self, count: int) -> NDArray[np.int64]:
        """So many, ascending; there are as many."""
        found: list[NDArray[np.int64]] = []
        open_bytes = np.flatnonzero(self._given != 0xFF)
        for start in range(0, open_bytes.size, LOOKED_AT_ONCE):
            some = open_bytes[start : start + LOOKED_AT_ONCE]
            bits = np.unpackbits(self._given[some], bitorder="little").reshape(-1, 8)
            rows, columns = np.nonzero(bits == 0)
            positions = some[rows] * 8 + columns
            positions = positions[positions < self._samples][:count]
            found.append(positions)
            count -= positions.size
            if not count:
                break
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


LOOKED_AT_ONCE = 4096
"""Bytes of the map."""


def _array_item(name: str, array: NDArray[Any]) -> StateItem:
    data: Bytes = array.reshape(-1).view(np.uint8)

    def put(new: Bytes) -> None:
        data[...] = new

    return MadeItem(
        item=Item(name, str(array.dtype), tuple(array.shape)), get=lambda: data, put=put, memory=lambda: data
    )
