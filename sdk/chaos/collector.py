"""Python's collector of cycles, held back while very many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Registering makes a few objects for each tensor. The collector would look at all of them, and at all of torch's,
    again and again while they are made: with 200,000 tensors that took longer than making them. Afterwards they are
    among the oldest objects at once, which it looks at least often; where a script has frozen some of its own, those
    stay as they are."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
