"""The order of an epoch as a permutation that nobody has to store: position k is sample `shuffled(k)`.

A Feistel network of four rounds over the next power of four, walked along until it falls into the range (Black and
Rogaway, Ciphers with arbitrary finite domains, 2002). It shuffles; it hides nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

ROUNDS = 4

Positions = NDArray[np.int64]


def shuffled(positions: Positions, count: int, *, seed: int, epoch: int) -> Positions:
    """Samples from 0 to `count` - 1 at these positions of the epoch: each exactly once over all positions."""
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    keys = np.frombuffer(blake3(f"{seed}:{epoch}".encode()).digest(length=8 * ROUNDS), dtype=np.uint64)
    found = positions.astype(np.uint64)
    outside = np.ones(found.shape, dtype=bool)
    while outside.any():
        found[outside] = _network(found[outside], half, keys)
        outside = found >= count
    return found.astype(np.int64)


def _network(values: NDArray[np.uint64], half: np.uint64, keys: NDArray[Any]) -> NDArray[np.uint64]:
    mask = np.uint64((1 << int(half)) - 1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    mixed: NDArray[np.uint64] = (left << half) | right
    return mixed


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64; overflow is meant."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
