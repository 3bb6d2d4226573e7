"""Persistent buffers of a torch model: they change in the forward pass, and are averaged as float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from chaos.frameworks.base import Bytes
from chaos.frameworks.torch_state import load_bytes

EXACT_INTEGER_MAX = 1 << 53
"""Integers beyond this have no exact float64, in which buffers are averaged."""


@dataclass(slots=True, kw_only=True)
class ModelBuffer:
    """A persistent buffer: its owner (modules may replace the tensor) and its value at the end of the last round."""

    name: str
    owner: torch.nn.Module
    key: str
    committed: torch.Tensor

    @property
    def live(self) -> torch.Tensor:
        tensor = getattr(self.owner, self.key)
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def commit(self) -> None:
        self.committed.copy_(self.live)

    def restore(self) -> None:
        self.live.copy_(self.committed)

    def load(self, data: Bytes) -> None:
        load_bytes(self.committed, data)
        with torch.no_grad():
            self.restore()


def checked(buffer: ModelBuffer) -> torch.Tensor:
    live = buffer.live
    if live.dtype in (torch.int64, torch.uint64) and live.numel() and int(live.abs().max()) > EXACT_INTEGER_MAX:
        raise ValueError(
            f"the integer buffer {buffer.name!r} holds values beyond 2**53, which an average cannot keep exactly; "
            "register it with persistent=False if it is the same on all sites"
        )
    return live


def write_buffer(buffer: ModelBuffer, average: torch.Tensor) -> None:
    live = buffer.live
    if live.dtype == torch.bool:
        live.copy_(average >= 0.5)
    elif live.is_floating_point():
        live.copy_(average)
    else:
        live.copy_(average.round())


def odd_buffer(buffers: Iterable[ModelBuffer]) -> str:
    """The first that holds a number that is none, for people; empty: all are."""
    floating = (buffer for buffer in buffers if buffer.live.is_floating_point())
    return next((repr(each.name) for each in floating if not torch.isfinite(each.live.double()).all()), "")
