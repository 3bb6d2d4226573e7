"""Registered arrays that `apply` never changes: an estimator may put a new array in the place of its own at each step,
and nobody is told. Then this site trains what no other sees, and no digest shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from blake3 import blake3
from numpy.typing import NDArray

LOOKED_AT = 10
"""So many times `apply` is looked at; of an array that it has changed once nothing more is asked."""


class Unchanged:
    """Of one registered training. `names`: arrays that have a gradient."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], names: Iterable[str]) -> None:
        self._arrays = {name: arrays[name] for name in names if name in arrays and arrays[name].size}
        self._times = 0

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Around `apply`."""
        before = {name: _digest(array) for name, array in self._arrays.items()} if self._times < LOOKED_AT else {}
        yield
        if before:
            self._arrays = {n: array for n, array in self._arrays.items() if _digest(array) == before[n]}
            self._times += 1

    def told(self) -> str:
        """What the user should hear, once; empty: nothing."""
        if self._times < LOOKED_AT or not self._arrays:
            return ""
        name, more = next(iter(self._arrays)), len(self._arrays) - 1
        self._arrays = {}
        which = f"the array {name!r}" + (f" and {more} more" if more else "")
        return (
            f"apply() has been called {LOOKED_AT} times and has not changed {which}, of which rounds average what it "
            "makes of them: where it computes with another array since (an estimator that makes a new one at each "
            "step, w = w - ...), this site trains what no other site sees, and gets nothing of theirs; at the end of "
            f"apply() write it into the registered one (arrays[{name!r}][...] = model.it) and have the estimator use "
            f"that (model.it = arrays[{name!r}]). Whoever wants it to stay as it is may ignore this"
        )


def _digest(array: NDArray[Any]) -> bytes:
    return blake3(array.reshape(-1).view("u1").data).digest()
