"""What a process of a device group has of the vector of a round and of the whole state: its part of each tensor.

The library cuts a parameter along one dimension into one part for each process (FSDP2 along the first, tensor
parallelism along any), and an optimizer that works on the pieces keeps pieces. Rows that follow each other lie in one
range of bytes; parts along a further dimension are columns of a matrix whose rows are the dimensions before it. So each
process reads and writes its own places in the memory that all processes of a site share with the daemon, and nobody
puts a tensor together. What has the same shape in a piece as in the whole (step counters, options, buffers, what tensor
parallelism leaves whole) all processes have alike, and write alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.layout import Columns, ItemBytes, ModelLayout, VectorSpan
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
    Raises ValueError, naming the layer, where a tensor is not cut along one dimension."""
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
    (place,) = places
    found = _cut(layer, whole.name, whole.shape, own.shape, lane, lanes)
    each = place.size // math.prod(whole.shape)
    first, last = found.first * each, found.last * each
    if found.rows == 1:
        return [ItemBytes(place.item, 0, place.at + first, last - first)]
    return [place._replace(columns=Columns(found.rows, first, last))] if first < last else []


def _own_span(layer: Layer, whole: Shape, own: Shape, span: VectorSpan, lane: int, lanes: int) -> VectorSpan:
    if tuple(whole) == tuple(own):
        return span
    found = _cut(layer, "a parameter", whole, own, lane, lanes)
    if found.rows > 1:
        return span._replace(columns=found)
    each = (span.stop - span.start) // math.prod(whole)
    return VectorSpan(span.start + found.first * each, span.start + found.last * each, span.dtype)


def _cut(layer: Layer, name: str, whole: Shape, own: Shape, lane: int, lanes: int) -> Columns:
    """Which numbers of a whole tensor a piece is; its rows are the dimensions before the one that is cut."""
    unlike = [at for at, (one, other) in enumerate(zip(whole, own, strict=False)) if one != other]
    if len(whole) == len(own) and len(unlike) == 1 and 0 not in whole:
        (at,) = unlike
        first, last = rows_of(whole[at], lane, lanes)
        if own[at] == last - first:
            each = math.prod(whole[at + 1 :])
            return Columns(math.prod(whole[:at]), first * each, last * each)
    raise ValueError(
        f"of {name!r} of layer {layer.name}, {list(whole)}, this process has {list(own)}, which is not its part along "
        "one dimension; in a run of institutions device_group= must cut tensors so, and the optimizer must keep what "
        "it keeps for each element (SGD, Adam and their like)"
    )
