"""Random numbers as a function of (run, step, micro-batch, layer): the same whoever draws them, and when. The loss is
a layer after the last one, the reading of samples one before the first."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.worker_group.exchange.devices import HOST, Device

DATA = -1
"""In the place of a layer: what is drawn while samples are read."""

_FOUR = struct.Struct(">4q")


def seed_of(run: int, step: int, micro_batch: int, layer: int) -> int:
    """A 63-bit seed; BLAKE2b of the four numbers."""
    data = _FOUR.pack(run, step, micro_batch, layer)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


@contextmanager
def seeded(seed: int, device: Device = HOST) -> Iterator[None]:
    """The default generators of torch and of the device begin at this seed inside, and go on afterwards as if nothing
    had been."""
    before = device.drawn()
    device.seed(seed)
    try:
        yield
    finally:
        device.draw_from(before)
