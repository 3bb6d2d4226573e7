"""Python's collector of cycles, held back while very many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 100_000
"""Objects that the collector has not looked at yet, from which on to spare it the walk is worth asking what is frozen,
which takes longer the more that is."""


@contextmanager
def held_back() -> Iterator[None]:
    """Registering makes a few objects for each tensor. The collector would look at all of them, and at all of torch's,
    again and again while they are made: with 200,000 tensors that took longer than making them. Afterwards so many are
    among the oldest objects at once, which it looks at least often; where a script has frozen some of its own, those
    stay as they are."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > MANY and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
