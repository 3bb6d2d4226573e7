"""torch modules, optimizers and schedulers as one training: its trained parameters and buffers, and what the state is.

Parameters are those that an optimizer trains; buffers are the persistent ones, such as the statistics of BatchNorm.
Buffers change in the forward pass already, before the round is complete; the state of the last completed round is
therefore kept in a copy, which is what a snapshot takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chaos.frameworks.base import Bytes, Slot, SlotKind, StateItem, What, fact_item
from chaos.frameworks.torch_state import (
    OptimizerState,
    dtype_name,
    load_bytes,
    scheduler_items,
    tensor_bytes,
    tensor_item,
)
from chaos_protocols.wire.state_spec import Item, fact

EXACT_INTEGER_MAX = 1 << 53
"""Integers beyond this have no exact float64, in which buffers are averaged."""


@dataclass(slots=True, kw_only=True)
class _Buffer:
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

    def load(self, data: Bytes) -> None:
        load_bytes(self.committed, data)
        with torch.no_grad():
            self.live.copy_(self.committed)


class TorchFramework:
    """See `Coordinator.register`."""

    def __init__(
        self,
        models: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedulers: Mapping[str, Any],
        *,
        set_to_none: bool,
    ) -> None:
        """Raises ValueError on what cannot be averaged, naming it."""
        self._optimizers = dict(sorted(optimizers.items()))
        self._schedulers = dict(schedulers)
        self._set_to_none = set_to_none
        self._parameters: dict[str, torch.Tensor] = {}
        self._buffers: list[_Buffer] = []
        names: dict[int, str] = {}
        for name, model in sorted(models.items()):
            self._collect(name, model, names)
        trained = self._trained(names)
        self._frozen = [(n, p) for n, p in self._parameters.items() if n not in trained]
        self._sources: dict[str, torch.Tensor | _Buffer] = {n: p for n, p in self._parameters.items() if n in trained}
        self._sources.update((buffer.name, buffer) for buffer in self._buffers)
        self.slots: Sequence[Slot] = [_slot(name, source) for name, source in self._sources.items()]
        self._states = [OptimizerState(name, optimizer, names) for name, optimizer in self._optimizers.items()]
        self.items: Sequence[StateItem] = list(self._items(trained))

    def read(self, what: What, slots: Sequence[Slot], out: Bytes) -> None:
        """Raises ValueError where a frozen parameter has a gradient, or an integer buffer has no exact float64."""
        if what is What.GRADIENT:
            self._check_frozen()
        with torch.no_grad():
            for source, part in self._parts(slots, out):
                if isinstance(source, _Buffer):
                    part.copy_(_checked(source))
                elif what is What.VALUE:
                    part.copy_(source)
                elif source.grad is None:
                    part.zero_()
                else:
                    part.copy_(source.grad.to_dense() if source.grad.is_sparse else source.grad)

    def write(self, what: What, slots: Sequence[Slot], data: Bytes) -> None:
        with torch.no_grad():
            for source, part in self._parts(slots, data):
                if isinstance(source, _Buffer):
                    _write_buffer(source, part)
                elif what is What.VALUE:
                    source.copy_(part)
                else:
                    if source.grad is None or source.grad.is_sparse:
                        source.grad = torch.empty_like(source)
                    source.grad.copy_(part)

    def discard(self) -> None:
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=self._set_to_none)
        with torch.no_grad():
            for buffer in self._buffers:
                buffer.live.copy_(buffer.committed)

    def optimizer_step(self, round: int) -> None:
        """Every optimizer, then every scheduler, once; then the gradients are cleared and the buffers committed."""
        with torch.no_grad():
            for source in self._sources.values():
                if not isinstance(source, _Buffer) and source.grad is None:
                    source.grad = torch.zeros_like(source)
        for state in self._states:
            state.forget_spare()
        for optimizer in self._optimizers.values():
            optimizer.step()
        for scheduler in self._schedulers.values():
            scheduler.step()
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=self._set_to_none)
        with torch.no_grad():
            for buffer in self._buffers:
                buffer.commit()

    def _parts(self, slots: Sequence[Slot], vector: Bytes) -> Iterator[tuple[torch.Tensor | _Buffer, torch.Tensor]]:
        """Each slot's source, and where it lies in the vector, in the source's present shape."""
        offset = 0
        for slot in slots:
            source = self._sources[slot.name]
            data = vector[offset : offset + slot.size_bytes]
            offset += slot.size_bytes
            shape = source.live.shape if isinstance(source, _Buffer) else source.shape
            yield source, torch.from_numpy(data).view(_SUMMED_AS[slot.summed_as]).reshape(tuple(shape))

    def _check_frozen(self) -> None:
        for name, parameter in self._frozen:
            if parameter.grad is not None and parameter.requires_grad:
                raise ValueError(
                    f"{name!r} has a gradient but is not trained by a registered optimizer (or was frozen when it was "
                    "registered); freeze it with requires_grad_(False), or register the model as it is to be trained"
                )

    # ---- collecting

    def _collect(self, prefix: str, model: torch.nn.Module, names: dict[int, str]) -> None:
        for name, parameter in model.named_parameters():  # a tied parameter comes once, under its first name
            if id(parameter) not in names:
                names[id(parameter)] = f"{prefix}.{name}"
                self._parameters[f"{prefix}.{name}"] = parameter
        seen = {id(buffer.live) for buffer in self._buffers}
        for path, module in model.named_modules():
            transient = module._non_persistent_buffers_set
            for key, tensor in module._buffers.items():
                if tensor is None or key in transient or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                name = ".".join(part for part in (prefix, path, key) if part)
                if tensor.is_complex():
                    raise ValueError(f"the buffer {name!r} is complex; only real and integer buffers can be averaged")
                committed = tensor.detach().clone()
                self._buffers.append(_Buffer(name=name, owner=module, key=key, committed=committed))

    def _trained(self, names: dict[int, str]) -> set[str]:
        trained: set[str] = set()
        for optimizer_name, optimizer in self._optimizers.items():
            for group_index, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    if id(parameter) not in names:  # trained, but in no registered model (a learnt temperature)
                        name = f"{optimizer_name}.group{group_index}.parameter{index}"
                        names[id(parameter)] = name
                        self._parameters[name] = parameter
                    if not parameter.requires_grad:
                        continue
                    name = names[id(parameter)]
                    if parameter.is_complex():
                        raise ValueError(f"the parameter {name!r} is complex; only real parameters can be averaged")
                    trained.add(name)
        if not trained:
            raise ValueError("there is nothing to average: the registered optimizers train no parameter")
        return trained

    def _items(self, trained: set[str]) -> Iterator[StateItem]:
        for name, parameter in self._parameters.items():
            yield tensor_item(name, lambda parameter=parameter: parameter)  # type: ignore[misc]
            if name not in trained:
                yield fact_item(fact(f"{name} is frozen"))
        for buffer in self._buffers:
            yield StateItem(
                item=Item(buffer.name, dtype_name(buffer.committed.dtype), tuple(buffer.committed.shape)),
                get=lambda buffer=buffer: tensor_bytes(buffer.committed),  # type: ignore[misc]
                put=buffer.load,
            )
        for state in self._states:
            yield from state.items()
        for name, scheduler in self._schedulers.items():
            yield from scheduler_items(name, scheduler)


_SUMMED_AS = {"float64": torch.float64, "float32": torch.float32}


def _slot(name: str, source: torch.Tensor | _Buffer) -> Slot:
    buffer = isinstance(source, _Buffer)
    now = source.live if isinstance(source, _Buffer) else source
    return Slot(
        name=name,
        shape=tuple(now.shape),
        kind=SlotKind.BUFFER if buffer else SlotKind.PARAMETER,
        summed_as="float64" if buffer or now.dtype == torch.float64 else "float32",
    )


def _checked(buffer: _Buffer) -> torch.Tensor:
    live = buffer.live
    if live.dtype in (torch.int64, torch.uint64) and live.numel() and int(live.abs().max()) > EXACT_INTEGER_MAX:
        raise ValueError(
            f"the integer buffer {buffer.name!r} holds values beyond 2**53, which an average cannot keep exactly; "
            "register it with persistent=False if it is the same on all sites"
        )
    return live


def _write_buffer(buffer: _Buffer, average: torch.Tensor) -> None:
    live = buffer.live
    if live.dtype == torch.bool:
        live.copy_(average >= 0.5)
    elif live.is_floating_point():
        live.copy_(average)
    else:
        live.copy_(average.round())
