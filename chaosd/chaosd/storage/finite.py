"""Whether a state holds only numbers that training can go on with: a checkpoint of any other would be of no use.

A NaN is one anywhere. An infinity may be meant (a mask that is a buffer): an array that had one when this daemon first
looked may have them. Called on a thread by `storage/checkpoint_keeper.py`; reads in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np
from numpy.typing import NDArray

from chaos_protocols.wire.state_spec import DTYPE_BYTES
from chaos_protocols.wire.worker import StateSpec, TensorSpec

PIECE_BYTES = 4 << 20
"""Between two looks at whether the daemon ends; as much as fits into a cache."""

Found = tuple[bool, bool]
"""Whether there is a NaN, whether there is an infinity."""


def _of_numpy(name: str) -> Callable[[NDArray[np.uint8]], Found]:
    def look(data: NDArray[np.uint8]) -> Found:
        numbers = data.view(name)
        if np.isfinite(numbers).all():
            return False, False
        return bool(np.isnan(numbers).any()), bool(np.isinf(numbers).any())

    return look


def _of_bits(kind: str, exponent: int, mantissa: int) -> Callable[[NDArray[np.uint8]], Found]:
    """All bits of the exponent set: an infinity without a bit of the mantissa, else a NaN."""

    def look(data: NDArray[np.uint8]) -> Found:
        bits = data.view(kind)
        special = bits[(bits & exponent) == exponent] & mantissa
        return bool((special != 0).any()), bool((special == 0).any())

    return look


def _of_codes(mask: int, code: int) -> Callable[[NDArray[np.uint8]], Found]:
    """A type without infinities, and one code for NaN."""
    return lambda data: (bool(((data & mask) == code).any()), False)


LOOKS: dict[str, Callable[[NDArray[np.uint8]], Found]] = {
    "float16": _of_numpy("float16"),
    "float32": _of_numpy("float32"),
    "float64": _of_numpy("float64"),
    "complex64": _of_numpy("float32"),
    "complex128": _of_numpy("float64"),
    "bfloat16": _of_bits("uint16", 0x7F80, 0x007F),
    "float8_e5m2": _of_bits("uint8", 0x7C, 0x03),
    "float8_e4m3fn": _of_codes(0x7F, 0x7F),
    "float8_e4m3fnuz": _of_codes(0xFF, 0x80),
    "float8_e5m2fnuz": _of_codes(0xFF, 0x80),
}
"""By the types of `state_spec.DTYPE_BYTES`; all others are whole numbers."""


def infinite_arrays(state: memoryview, spec: StateSpec, stopped: Callable[[], bool]) -> frozenset[str]:
    """Names of the arrays that hold an infinity."""
    return frozenset(one.name for one in spec.tensors if _look(state, one, stopped)[1])


def holds_nan(data: bytes, dtype: str) -> bool:
    """Whether there is one among numbers of that type."""
    look = LOOKS.get(dtype)
    return look is not None and look(np.frombuffer(data, dtype=np.uint8))[0]


def not_finite(state: memoryview, spec: StateSpec, usual: Set[str], stopped: Callable[[], bool]) -> str:
    """What is wrong with the first array that is not finite; empty: nothing. `usual`: may have infinities."""
    for tensor in spec.tensors:
        nan, infinite = _look(state, tensor, stopped)
        if nan or (infinite and tensor.name not in usual):
            return f"{tensor.name} holds {'NaN' if nan else 'an infinity'}"
    return ""


def _look(state: memoryview, tensor: TensorSpec, stopped: Callable[[], bool]) -> Found:
    look = LOOKS.get(tensor.dtype)
    if look is None or not tensor.size_bytes:
        return False, False
    nan = infinite = False
    step = PIECE_BYTES - PIECE_BYTES % max(8, DTYPE_BYTES[tensor.dtype])
    for start in range(0, tensor.size_bytes, step):
        if nan or stopped():
            break
        begin = tensor.offset + start
        piece = np.frombuffer(state[begin : begin + min(step, tensor.size_bytes - start)], dtype=np.uint8)
        found = look(piece)
        nan, infinite = nan or found[0], infinite or found[1]
    return nan, infinite
