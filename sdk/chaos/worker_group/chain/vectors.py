"""A chain of layers in a run of institutions: where each layer lies in the vector of a round and in the whole state.

The same on all sites, however many workers a site has and whichever of them holds a layer: state and vector of an
ordinary script of one process that registers the same model with the same optimizer (`layout`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from chaos.encoding import encoded, facts
from chaos.frameworks.base import Bytes
from chaos.frameworks.torch_buffers import checked, write_buffer
from chaos.worker_group.chain.held import HeldPart
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.layout import Columns, ItemBytes, ModelLayout, VectorSpan
from chaos.worker_group.chain.pieces import LanePieces
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.state_spec import Item, state_spec
from chaos_protocols.wire.worker import ContributionSpec

HOST = torch.device("cpu")


class Vectors(ABC):
    """What is given to a round, and the state, for parts of a model. `state`, `contribution`: their layouts."""

    left_out = 0
    """Bytes in front of the vector of a round that are no affair of the parts: its notes."""

    def __init__(
        self,
        items: Sequence[Item],
        places: Sequence[Sequence[Sequence[ItemBytes]]],
        contribution: ContributionSpec,
        encoding: str,
    ) -> None:
        """`items`: the whole state. `places`: for each part, where each of its items lies. `encoding`: in which the
        vector travels between sites; here it is of float32 numbers as ever. Raises ValueError on names that are too
        long, on an encoding that would change nothing."""
        self.contribution = encoded(contribution, encoding)
        said = [each.item for each in facts(encoding)]
        self.state = state_spec([*said, *items])
        starts = [tensor.offset for tensor in self.state.tensors[len(said) :]]
        self._places = [
            [
                [_Place(run.own, starts[run.item] + run.at, run.size, run.columns) for run in runs if run.size]
                for runs in part
            ]
            for part in places
        ]
        """For each part and item."""

    @abstractmethod
    def give(self, vector: Bytes, part: HeldPart, mean: torch.Tensor | None) -> None:
        """Write what a part gives to a round into the vector. `mean`: its mean gradient, flat; None: nothing of it is
        trained."""

    @abstractmethod
    def gradient(self, vector: Bytes, part: int, device: torch.device = HOST) -> torch.Tensor:
        """The gradient that the vector has of a part, flat, on this device."""

    def whole_gradient(self, vector: Bytes, part: int) -> torch.Tensor:
        """The same of all processes that share the part."""
        return self.gradient(vector, part)

    def update(self, vector: Bytes, part: HeldPart, factor: float, round: int) -> None:
        """Apply what the vector has of a part: its state becomes that of the end of `round`."""
        if part.parameters:
            part.update(self.gradient(vector, part.index, part.device) * factor, round)

    def write(self, region: Bytes, part: HeldPart) -> None:
        """Copy a part's state into the region of the whole one."""
        for entry, runs in zip(part.common, self._places[part.index], strict=True):
            data = entry.get() if runs else region[:0]
            for run in runs:
                view = run.view(region)
                view[...] = data[run.own : run.own + view.size].reshape(view.shape)

    def load(self, region: Bytes, part: HeldPart) -> None:
        """Take a part's state over from the region of the whole one."""
        for entry, runs in zip(part.common, self._places[part.index], strict=True):
            if len(runs) == 1:
                entry.put(runs[0].view(region).reshape(-1))
            elif runs:
                data = np.empty(sum(run.size for run in runs), dtype=np.uint8)
                for run in runs:
                    data[run.own : run.own + run.size] = run.view(region)
                entry.put(data)

    def copy(self, piece: Bytes, start: int, stop: int, part: HeldPart) -> None:
        """Copy what a part has of bytes [start, stop) of the whole state into `piece`, which begins with byte
        `start`."""
        for entry, runs in zip(part.common, self._places[part.index], strict=True):
            data: Bytes | None = None
            for own, at, size in (each for run in runs for each in run.ranges(start, stop)):
                first, last = max(start, at), min(stop, at + size)
                if first < last:
                    data = entry.get() if data is None else data
                    piece[first - start : last - start] = data[own + first - at : own + last - at]


class _Place(NamedTuple):
    """Where a run of bytes of an item lies: from byte `own` of it on, and in the whole state; `ItemBytes` says how."""

    own: int
    at: int
    size: int
    columns: Columns | None

    def view(self, region: Bytes) -> Bytes:
        """These bytes of the whole state."""
        whole, cut = region[self.at : self.at + self.size], self.columns
        return whole if cut is None else whole.reshape(cut.rows, -1)[:, cut.first : cut.last]

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(own, at, size) without gaps, those at least that have something of bytes [start, stop) of the state."""
        cut = self.columns
        if cut is None:
            yield self.own, self.at, self.size
            return
        width, row = cut.last - cut.first, self.size // cut.rows
        for number in range(max(0, (start - self.at) // row), min(cut.rows, -(-(stop - self.at) // row))):
            yield self.own + number * width, self.at + number * row + cut.first, width


class LayerVectors(Vectors):
    """Of a chain. `own`: what this process has of it, one of several that share the layers; None: all."""

    def __init__(self, layout: ModelLayout, encoding: str = FP32, own: LanePieces | None = None) -> None:
        super().__init__(layout.items, layout.runs if own is None else own.runs, layout.contribution, encoding)
        self._layout = layout
        self._gradients = layout.gradients if own is None else own.gradients

    def give(self, vector: Bytes, part: HeldPart, mean: torch.Tensor | None) -> None:
        """A layer's mean gradient, and its buffers as they are."""
        assert isinstance(part, Layer)
        at = 0
        for span in self._gradients[part.index] if mean is not None else ():
            view = span.view(vector)
            assert mean is not None
            view.copy_(mean[at : at + view.numel()].view(view.shape))
            at += view.numel()
        for span, buffer in zip(self._layout.buffers[part.index], part.buffers(), strict=True):
            span.view(vector).copy_(checked(buffer).reshape(-1))

    def gradient(self, vector: Bytes, part: int, device: torch.device = HOST) -> torch.Tensor:
        return _together(vector, self._gradients[part], device)

    def whole_gradient(self, vector: Bytes, part: int) -> torch.Tensor:
        return _together(vector, self._layout.gradients[part], HOST)

    def update(self, vector: Bytes, part: HeldPart, factor: float, round: int) -> None:
        assert isinstance(part, Layer)
        with torch.no_grad():
            for span, buffer in zip(self._layout.buffers[part.index], part.buffers(), strict=True):
                write_buffer(buffer, span.view(vector).view_as(buffer.live))
        super().update(vector, part, factor, round)

    def name_at(self, start: int) -> str:
        """Whose number lies at this byte of the vector."""
        return self._layout.name_at(start)


class LocalVectors(LayerVectors):
    """Of a chain with local steps: differences from the anchor in place of gradients, behind the notes of a round."""

    def __init__(self, layout: ModelLayout, encoding: str = FP32) -> None:
        super().__init__(layout, encoding)
        self._spans, self._called = layout.spans, layout.called
        self._notes = layout.notes_bytes

    def give(self, vector: Bytes, part: HeldPart, mean: torch.Tensor | None) -> None:
        assert isinstance(part, Layer)
        if part.phase is None:
            super().give(vector, part, None)
            return
        given = part.phase.give()
        vector[: self._notes] = given[: self._notes]  # the same of each layer
        for here, there in self._pairs(part):
            vector[there] = given[here]

    def update(self, vector: Bytes, part: HeldPart, factor: float, round: int) -> None:
        assert isinstance(part, Layer)
        if part.phase is None:
            super().update(vector, part, factor, round)
            return
        result = part.phase.room
        result[: self._notes] = vector[: self._notes]
        for here, there in self._pairs(part):
            result[here] = vector[there]
        part.phase.apply(round)

    def _pairs(self, layer: Layer) -> Iterator[tuple[slice, slice]]:
        """Where each tensor lies in the layer's own vector, and in that of the model."""
        assert layer.phase is not None
        for name, at in layer.phase.places.items():
            span = self._spans[self._called[layer.index][name]]
            yield at, slice(span.start, span.stop)


def _together(vector: Bytes, spans: Sequence[VectorSpan], device: torch.device) -> torch.Tensor:
    """Copied part by part: where the vector is pinned, that is how a device takes it fastest."""
    parts = [span.view(vector).reshape(-1).to(device) for span in spans]
    return torch.cat(parts) if parts else torch.empty(0, device=device)
