"""What nothing in a worker's process can mend: it ends, and the others go on, since half a worker helps nobody."""

from __future__ import annotations

import os
import traceback

import torch

from chaos.errors import TooFewFiles
from chaos.saying import say
from chaos.telling import traceback_wanted
from chaos.worker_group.exchange.lacks import lacks_files, told
from chaos.worker_group.exchange.line import ControlLine
from chaos_protocols.worker_group.messages import EndsItself

DEVICE_LOST_EXIT = 74
"""The code that systems use for an error of input or output."""

NO_FILES_EXIT = 71
"""The code that systems use for what the system does not give."""

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


def end_if_beyond_mending(line: ControlLine, error: BaseException, *, begun: bool) -> None:
    """Say so and end this process at once, where its device has failed: tidying up would wait for it. And where it may
    open no further file or socket: what holds them has come together here; others may be far from their limit, and one
    that is started anew is. `begun`: a step has ended here; before the first one all have the same, and end."""
    if is_device_loss(error):
        text = f"{type(error).__name__}: {error}"
        first = (text.strip().splitlines() or [""])[0][:1000]
        line.send(EndsItself(text=f"its device failed: {first}", device=True))
        say(f"worker {line.worker} ends: its device failed: {text}")
        os._exit(DEVICE_LOST_EXIT)
    known = isinstance(error, TooFewFiles)
    if (known or lacks_files(error)) and (begun or line.generation > 1):
        text = str(error) if known else told(error)
        line.send(EndsItself(text=text, device=False))
        if not known or traceback_wanted():
            traceback.print_exception(error)
        say(f"worker {line.worker} ends: {text}")
        os._exit(NO_FILES_EXIT)
