"""Where the layers of a model lie in the state and in the vector of a round that an ordinary script of the model has.

Each layer has an optimizer of its own; an ordinary script has one for all. What a layer keeps under its own names is
found in the whole state under the names there: parameters, buffers and what an optimizer keeps for a parameter each as
they are; options of the optimizer and the state of its scheduler, which all layers have alike, once; the flags that say
for which parameters an optimizer has begun as one array. So a site of stages, a site of replicas and an ordinary script
can train one model together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from chaos.frameworks.base import Bytes, MadeItem, Slot, StateItem, fact_item, in_vector_order
from chaos.frameworks.torch import TorchFramework
from chaos.frameworks.torch_names import NamedTensor, buffers_of, parameters_of
from chaos.sync.every_step import EveryStep, EveryStepSession
from chaos.sync.local_steps import DiLoCo
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.making import MakeOptimizer, MakeScheduler, scheduled
from chaos_protocols.wire.state_spec import FACT_SHAPE, Item, fact

OWN, WHOLE = "layer", "model"
"""Under which names a layer and the whole model are registered."""

STARTED = "optimizer.started"


class Columns(NamedTuple):
    """Of what lies in `rows` rows of equal length the columns from `first` up to `last`."""

    rows: int
    first: int
    last: int


class ItemBytes(NamedTuple):
    """`size` bytes from byte `at` of item `item` of the whole state on; or, of these, some columns. In the item of a
    layer they lie from byte `own` on, without a gap."""

    item: int
    own: int
    at: int
    size: int
    columns: Columns | None = None


class VectorSpan(NamedTuple):
    """Numbers of one tensor in the vector of a round; or, of these, some columns."""

    start: int
    stop: int
    dtype: torch.dtype
    columns: Columns | None = None

    def view(self, vector: Bytes) -> torch.Tensor:
        """Flat; of columns the rows."""
        flat = torch.from_numpy(vector[self.start : self.stop]).view(self.dtype)
        cut = self.columns
        return flat if cut is None else flat.view(cut.rows, -1)[:, cut.first : cut.last]


class ModelLayout:
    """Of a model that is held as a whole now; nothing of it is kept.

    `runs`: for each layer, where each of its items lies. `gradients`, `buffers`: for each layer, where its trained
    parameters and its buffers lie in the vector. Raises ValueError where the optimizer of a layer is not that of the
    whole model. `alike`: what else must be equal on all sites.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        layers: Sequence[Layer],
        make: MakeOptimizer,
        clip_norm: float | None,
        schedule: MakeScheduler | None = None,
        mode: DiLoCo | EveryStep | None = None,
        alike: Sequence[str] = (),
    ) -> None:
        tensors = [_tensors(OWN, layer) for layer in layers]
        names = _names(WHOLE, module)
        if any(id(each.tensor) not in names for found in tensors for each in found):
            module = torch.nn.ModuleList([layer.module for layer in layers])  # they have more than the model does
            names = _names(WHOLE, module)
        optimizer = make([p for p in module.parameters() if p.requires_grad])
        schedulers = scheduled(optimizer, schedule)
        framework = TorchFramework({WHOLE: module}, {"optimizer": optimizer}, schedulers, set_to_none=True, facts=alike)
        try:
            # a script of one process clips in on_average, with a norm whose last bits are its own
            facts = () if clip_norm is None else (f"clip_norm: {clip_norm}",)
            session = EveryStepSession(framework, facts=facts) if mode is None else mode.start(framework)
            self.items: list[Item] = [each.item for each in session.items]
            if isinstance(mode, EveryStep):
                self.items += [fact(text) for text in facts]
            self.contribution = session.contribution
            self.slots: list[Slot] = in_vector_order(framework.slots)
            self.notes_bytes = self.contribution.size_bytes - sum(slot.size_bytes for slot in self.slots)
            self._options = {each.item.name: each.get().tobytes() for each in session.items if _is_option(each.item)}
        finally:
            framework.release()
        self._at = {item.name: index for index, item in enumerate(self.items)}
        self._order = {id(p): at for at, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
        self.spans = spans = self._spans()
        self.called = called = [{each.name: names[id(each.tensor)] for each in found} for found in tensors]
        self.runs = [
            [list(self._runs(layer, each, of)) for each in layer.common]
            for layer, of in zip(layers, called, strict=True)
        ]
        self.gradients = [[spans[names[id(p)]] for p in layer.parameters] for layer in layers]
        self.buffers = [[spans[names[id(each.live)]] for each in layer.buffers()] for layer in layers]

    def whole(self, layers: Sequence[Layer]) -> list[StateItem]:
        """The items of the whole state, of layers that are all held."""
        parts: list[list[tuple[StateItem, list[ItemBytes]]]] = [[] for _ in self.items]
        for layer, places in zip(layers, self.runs, strict=True):
            for entry, runs in zip(layer.common, places, strict=True):
                for index in dict.fromkeys(run.item for run in runs):
                    parts[index].append((entry, runs))
        return [_composed(item, found) for item, found in zip(self.items, parts, strict=True)]

    def name_at(self, start: int) -> str:
        """Whose number lies at this byte of the vector."""
        end = self.notes_bytes
        for slot in self.slots:
            end += slot.size_bytes
            if start < end:
                return slot.name
        raise ValueError(f"the vector has {end} bytes, and none at {start}")

    def _spans(self) -> dict[str, VectorSpan]:
        found: dict[str, VectorSpan] = {}
        start = self.notes_bytes
        for slot in self.slots:
            dtype = torch.float64 if slot.summed_as == "float64" else torch.float32
            found[slot.name] = VectorSpan(start, start + slot.size_bytes, dtype)
            start += slot.size_bytes
        return found

    def _runs(self, layer: Layer, entry: StateItem, called: dict[str, str]) -> Iterator[ItemBytes]:
        """Where one item of a layer lies. `called`: names of its tensors to those in the whole model."""
        own, size = entry.item.name, entry.get().size
        if entry.item.shape == FACT_SHAPE:
            if own.startswith(("optimizer", "scheduler")) and ".params: " not in own and own not in self._at:
                raise _unlike(layer, own)
        elif own == STARTED:
            for at, parameter in enumerate(layer.stepped):
                yield ItemBytes(self._at[STARTED], at, self._order[id(parameter)], 1)
        elif _is_option(entry.item):
            if self._options.get(own) != entry.get().tobytes():
                raise _unlike(layer, own)
            yield ItemBytes(self._at[own], 0, 0, size)
        else:
            kept = own.removeprefix("optimizer.")
            tensor = max((name for name in called if kept == name or kept.startswith(f"{name}.")), key=len)
            yield ItemBytes(self._at[own.replace(tensor, called[tensor], 1)], 0, 0, size)


def _unlike(layer: Layer, what: str) -> ValueError:
    kind = "scheduler" if what.startswith("scheduler") else "optimizer"
    return ValueError(
        f"the {kind} that {kind}= makes for layer {layer.name} has {what!r}, and the one for the whole model has "
        "not: in a run of institutions its kind and options must not depend on the parameters"
    )


def _tensors(prefix: str, layer: Layer) -> list[NamedTensor]:
    return [*parameters_of(prefix, layer.module), *buffers_of(prefix, layer.module)]


def _names(prefix: str, module: torch.nn.Module) -> dict[int, str]:
    """By the identity of the tensor; of several names the first."""
    found: dict[int, str] = {}
    for each in (*parameters_of(prefix, module), *buffers_of(prefix, module)):
        found.setdefault(id(each.tensor), each.name)
    return found


def _is_option(item: Item) -> bool:
    """Of the optimizer, its scheduler or the mode as a whole, with a number."""
    return item.shape != FACT_SHAPE and item.name.startswith(("optimizer.group", "scheduler.", "sync."))


def _composed(item: Item, parts: Sequence[tuple[StateItem, list[ItemBytes]]]) -> StateItem:
    """An item of the whole state from those of layers. Where several layers have the same bytes the last one's count,
    and all are loaded."""
    if item.shape == FACT_SHAPE:
        return fact_item(item)
    if len(parts) == 1 and len(parts[0][1]) == 1:
        only = parts[0][0]
        return MadeItem(item=item, get=only.get, put=only.put, memory=only.memory)
    size = max(run.at + run.size for _, runs in parts for run in runs)

    def get() -> Bytes:
        whole = np.zeros(size, dtype=np.uint8)
        for entry, runs in parts:
            data = entry.get()
            for run in runs:
                whole[run.at : run.at + run.size] = data[run.own : run.own + run.size]
        return whole

    def put(whole: Bytes) -> None:
        for entry, runs in parts:
            data = np.zeros(sum(run.size for run in runs), dtype=np.uint8)
            for run in runs:
                data[run.own : run.own + run.size] = whole[run.at : run.at + run.size]
            entry.put(data)

    return MadeItem(item=item, get=get, put=put)
