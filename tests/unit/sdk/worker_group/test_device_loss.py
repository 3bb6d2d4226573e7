"""Which errors say that a device is of no use any more, and on which one a script computes."""

from __future__ import annotations

import pytest
import torch

from chaos import Coordinator
from chaos.worker_group.device_loss import is_device_loss

ERROR_OF_A_DEVICE: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
"""Since torch 2.8."""

HINTS = """
Search for `cudaErrorIllegalAddress' in the documentation of CUDA for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
"""What torch 2.11 puts below what has failed, whatever that is: seen on a real device."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"CUDA error: an illegal memory access was encountered{HINTS}"),
        ERROR_OF_A_DEVICE(f"CUDA error: an illegal memory access was encountered{HINTS}"),
        RuntimeError("HIP error: unspecified launch failure"),
        RuntimeError("ACL stream synchronize failed: NPU error, error code is 107020"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)
def test_an_error_of_the_device_ends_the_worker(error: Exception) -> None:
    assert is_device_loss(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 7x3)"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(f"CUDA error: device-side assert triggered{HINTS}"),
        ValueError("CUDA error: said by a script"),
    ],
)
def test_an_error_that_another_worker_would_meet_as_well_is_the_scripts(error: Exception) -> None:
    assert not is_device_loss(error)


def test_a_script_computes_on_the_device_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        monkeypatch.setenv("CHAOS_DEVICE", "cuda:3")
        assert coordinator.device == "cuda:3"
        monkeypatch.delenv("CHAOS_DEVICE")
        here = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
        assert coordinator.device == here
