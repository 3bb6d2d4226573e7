"""Random numbers of a layer as a function of (run, step, micro-batch, layer): the same whoever runs it, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_of(run: int, step: int, micro_batch: int, layer: int) -> int:
    """A 63-bit seed; BLAKE2b of the four numbers."""
    data = b"".join(value.to_bytes(8, "big", signed=True) for value in (run, step, micro_batch, layer))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's default generator begins at this seed inside, and goes on afterwards as if nothing had been."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
