"""Shared memory that a device of CUDA copies from and to by itself.

A round goes from the device into the memory that a worker shares with its daemon, and back. CUDA takes such memory in
pieces through a buffer of its own, unless it has been told that its pages stay where they are. NPUs have no such call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos.saying import say


def pin(memory: NDArray[np.uint8]) -> Callable[[], None]:
    """Pin it, if this process computes on CUDA, and give what undoes that: to be called before the memory is unmapped,
    since what is mapped there next would be taken for these pages. Where it cannot be pinned, copies are slower, and a
    line says so."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not memory.size or not torch.cuda.is_initialized():
        return _nothing
    runtime, address = torch.cuda.cudart(), memory.ctypes.data
    error = int(runtime.cudaHostRegister(address, memory.size, 0))
    if error:
        say(
            f"{memory.size:,} bytes that are shared with the daemon could not be pinned (CUDA error {error}; "
            "limits of locked memory?): copies between them and the device are slower"
        )
        return _nothing

    def unpin() -> None:
        runtime.cudaHostUnregister(address)

    return unpin


def _nothing() -> None:
    """It was not pinned."""
