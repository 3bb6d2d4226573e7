"""On which device the trainings of tests with real processes compute: that of TESTS_DEVICE, the CPU by default.

`npu` is made up (`fake_device`), `cuda` is a real one, which all processes of a test share. Device groups compute on
the CPU in any case. What a test expects is computed on the same device: bits are compared, as on the CPU.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, TypeVar

import torch

from chaosd.worker_group.devices import CPU, Placement

fake_device: Any = importlib.import_module("tests.rigs.fake_device")
"""By its name: what it does to torch has no types."""

Model = TypeVar("Model", bound=torch.nn.Module)

NAME = os.environ.get("TESTS_DEVICE", CPU)
REAL = NAME not in (CPU, fake_device.NAME)
"""Then processes are not forked: torch refuses a device in a process whose parent has asked for it."""

FAILS = 'extern "C" __global__ void fails() { *(float *)16 = 1.0f; }'
"""Writes where no memory is: from then on every call of this process on this device is an error."""


def placed(model: Model) -> Model:
    """The model, on the device."""
    if NAME == fake_device.NAME:
        fake_device.install()
    return model if NAME == CPU else model.to(NAME)


def placement() -> Placement | None:
    """For workers; None: the CPU, which the fake device needs as well."""
    return Placement([NAME if ":" in NAME else f"{NAME}:0"]) if REAL else None


def fail() -> None:
    """The error of a device that has failed: a real one, or in its words."""
    if REAL:
        compiled: Any = torch.cuda._compile_kernel(FAILS, "fails")
        compiled(grid=(1, 1, 1), block=(1, 1, 1), args=())
        torch.cuda.synchronize()
    hints = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    raise RuntimeError(f"CUDA error: unspecified launch failure\n{hints}")
