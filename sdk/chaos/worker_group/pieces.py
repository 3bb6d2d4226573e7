"""What a process of a device group has of the vector of a round and of the whole state: its rows of each tensor.

The library (FSDP2) cuts each parameter along its first dimension into one run of rows for each process, and an
optimizer that works on the pieces keeps pieces. Rows that follow each other lie in one range of bytes, so each process
reads and writes its own ranges of the memory that all processes of a site share with the daemon, and nobody puts a
tensor together. What has the same shape in a piece as in the whole (step counters, options, buffers) all processes have
alike, and write alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.worker_group.layers import Layer
from chaos.worker_group.layout import ItemBytes, ModelLayout, VectorSpan
from chaos_protocols.wire.state_spec import Item

Shape = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePieces:
    """For each layer, as in a `ModelLayout`: where what this process has of its items lies, and of its gradients."""

    runs: Sequence[Sequence[Sequence[ItemBytes]]]
    gradients: Sequence[Sequence[VectorSpan]]


def rows_of(rows: int, lane: int, lanes: int) -> tuple[int, int]:
    """From which row on, up to which one: as `torch.chunk` cuts, which leaves the last ones less, or nothing."""
    each = -(-rows // lanes)
    return min(lane * each, rows), min((lane + 1) * each, rows)


def pieces_of(
    layout: ModelLayout, wholes: Sequence[Layer], layers: Sequence[Layer], lane: int, lanes: int
) -> LanePieces:
    """Of process `lane` of `lanes`. `wholes`: the layers of the layout; `layers`: the same, in this process's pieces.
    Raises ValueError, naming the layer, where a tensor is not cut into rows."""
    runs, gradients = [], []
    for whole, layer, places, spans in zip(wholes, layers, layout.runs, layout.gradients, strict=True):
        items = zip(whole.items, layer.items, places, strict=True)
        runs.append([_own_runs(layer, one.item, own.item, found, lane, lanes) for one, own, found in items])
        tensors = zip(whole.parameters, layer.parameters, spans, strict=True)
        gradients.append([_own_span(layer, one.shape, own.shape, span, lane, lanes) for one, own, span in tensors])
    return LanePieces(runs=runs, gradients=gradients)


def _own_runs(
    layer: Layer, whole: Item, own: Item, places: Sequence[ItemBytes], lane: int, lanes: int
) -> list[ItemBytes]:
    if whole.shape == own.shape or not places:
        return list(places)
    first, last = _rows(layer, whole.name, whole.shape, own.shape, lane, lanes)
    (place,) = places
    row_bytes = place.size // whole.shape[0]
    return [ItemBytes(place.item, 0, place.at + first * row_bytes, (last - first) * row_bytes)]


def _own_span(layer: Layer, whole: Shape, own: Shape, span: VectorSpan, lane: int, lanes: int) -> VectorSpan:
    if tuple(whole) == tuple(own):
        return span
    first, last = _rows(layer, "a parameter", whole, own, lane, lanes)
    row_bytes = (span.stop - span.start) // whole[0]
    return VectorSpan(span.start + first * row_bytes, span.start + last * row_bytes, span.dtype)


def _rows(layer: Layer, name: str, whole: Shape, own: Shape, lane: int, lanes: int) -> tuple[int, int]:
    first, last = rows_of(whole[0], lane, lanes) if whole else (0, 0)
    if len(whole) != len(own) or tuple(own) != (last - first, *whole[1:]) or not math.prod(whole):
        raise ValueError(
            f"of {name!r} of layer {layer.name}, {list(whole)}, this process has {list(own)}, which are not its rows; "
            "in a run of institutions device_group= must leave out shard_placement_fn=, and the optimizer must keep "
            "what it keeps for each element (SGD, Adam and their like)"
        )
    return first, last
