"""Persistent buffers of a torch model: they change in the forward pass, and are averaged as float64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from chaos.errors import ChangedOutside
from chaos.frameworks.base import Bytes
from chaos.frameworks.torch_gradients import is_expanded
from chaos.frameworks.torch_names import Part, buffers_in, parts_of
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

    def check(self, round: int) -> None:
        """Raises ChangedOutside where it is none any more that can be averaged with those of other sites."""
        if self._fits:
            return
        there = getattr(self.owner, self.key, None)
        now = f"has the shape {list(there.shape)}" if isinstance(there, torch.Tensor) else f"is {there!r:.40}"
        raise ChangedOutside(
            f"the buffer {self.name!r} {now} after round {round}, and had the shape {list(self.committed.shape)} when "
            "it was registered: what all sites average keeps its shape; give it its last one before register(), or "
            "register_buffer(..., persistent=False) where it is each site's own"
        )

    @property
    def _fits(self) -> bool:
        there = getattr(self.owner, self.key, None)
        return isinstance(there, torch.Tensor) and there.shape == self.committed.shape

    @property
    def live(self) -> torch.Tensor:
        tensor = getattr(self.owner, self.key)
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def commit(self) -> None:
        self.committed.copy_(self.live)

    def restore(self) -> None:
        """What does not fit any more stays until `check` tells of it."""
        if self._fits:
            self.live.copy_(self.committed)

    def load(self, data: Bytes) -> None:
        load_bytes(self.committed, data)
        with torch.no_grad():
            self.restore()


def new_buffers(prefix: str, model: torch.nn.Module, known: Sequence[ModelBuffer]) -> Iterator[ModelBuffer]:
    """See `new_buffers_in`."""
    return new_buffers_in(parts_of(prefix, model), known)


def new_buffers_in(parts: Iterable[Part], known: Sequence[ModelBuffer]) -> Iterator[ModelBuffer]:
    """The persistent ones of a model that are none of these. Raises ValueError for what cannot be averaged."""
    seen = {id(buffer.live) for buffer in known}
    for found in buffers_in(parts):
        if id(found.tensor) in seen:
            continue
        seen.add(id(found.tensor))
        if found.tensor.is_complex():
            raise ValueError(
                f"the buffer {found.name!r} is complex; only real and integer buffers can be averaged: keep it as "
                "torch.view_as_real(tensor), or register_buffer(..., persistent=False) where it is each site's own"
            )
        check_writable(found.name, found.tensor)
        committed = found.tensor.detach().clone()
        yield ModelBuffer(name=found.name, owner=found.module, key=found.key, committed=committed)


def checked(buffer: ModelBuffer) -> torch.Tensor:
    live = buffer.live
    if live.dtype in (torch.int64, torch.uint64) and live.numel() and _largest(live) > EXACT_INTEGER_MAX:
        raise ValueError(
            f"the integer buffer {buffer.name!r} holds values beyond 2**53, which an average cannot keep exactly; "
            "register it with persistent=False if it is the same on all sites"
        )
    return live


def _largest(integers: torch.Tensor) -> int:
    """By numpy: torch has no least or largest uint64, and the absolute value of the least int64 is negative."""
    values = integers.detach().cpu().numpy()
    return max(abs(int(values.min())), abs(int(values.max())))


def check_writable(name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError for a buffer whose numbers have no place in memory each."""
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"the buffer {name!r} is sparse ({tensor.layout}), and only dense ones can be averaged: "
            "register_buffer(..., persistent=False), if it is the same on all sites, or tensor.to_dense()"
        )
    if tensor.is_quantized:
        raise ValueError(
            f"the buffer {name!r} is quantized ({tensor.dtype}), and its numbers cannot be averaged: register_buffer("
            "..., persistent=False), if it is the same on all sites, or keep tensor.int_repr() and its scale"
        )
    check_places("the buffer", name, tensor, "register_buffer(..., tensor.clone())")


def check_places(what: str, name: str, tensor: torch.Tensor, instead: str) -> None:
    """Raises ValueError for a tensor of which several numbers lie in one place."""
    if tensor.layout is torch.strided and is_expanded(tensor):
        raise ValueError(
            f"{what} {name!r} was made by expand(), so that several of its numbers lie in one place, and neither an "
            f"average nor a state can be written into it: {instead}"
        )


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
