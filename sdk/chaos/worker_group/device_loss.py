"""A device that has failed: nothing in the process that used it can mend that, and half a worker helps nobody."""

from __future__ import annotations

import os
from typing import NoReturn

import torch

from chaos.saying import say
from chaos.worker_group.line import ControlLine
from chaos_protocols.worker_group.messages import DeviceLost

DEVICE_LOST_EXIT = 74
"""The code that systems use for an error of input or output."""

SAID_BY_DEVICES = ("CUDA error:", "CUDNN_STATUS_", "CUBLAS_STATUS_", "HIP error:", "NPU error", "NPU function error")
"""How errors of a device begin, or what they have in them, where torch has no type for them."""

ASSERTED = "device-side assert"
"""A kernel has refused its input (an index that is too large): the script's mistake, which every worker would make."""


def is_device_loss(error: BaseException) -> bool:
    """Whether an error says that this process's device is of no use any more. Too little memory does not say so.

    What failed stands in the first line; below it torch gives hints on every error, on device-side assertions too."""
    first = (str(error).strip().splitlines() or [""])[0]
    if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError) or ASSERTED in first:
        return False
    kind = getattr(torch, "AcceleratorError", None)  # since torch 2.8
    if kind is not None and isinstance(error, kind):
        return True
    return any(words in str(error) for words in SAID_BY_DEVICES)


def end(line: ControlLine, error: BaseException) -> NoReturn:
    """Say so and end this process at once: tidying up would wait for the device."""
    text = f"{type(error).__name__}: {error}"
    line.send(DeviceLost(text=(text.strip().splitlines() or [""])[0][:1000]))
    say(f"worker {line.worker} ends: its device failed: {text}")
    os._exit(DEVICE_LOST_EXIT)
