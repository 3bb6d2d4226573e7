"""torch modules, optimizers and schedulers as one training: what is averaged, how a result is applied, what the state
is.

Averaged in a round are the gradients of all parameters that an optimizer trains (a parameter without a gradient
contributes zeros) and the persistent buffers, such as the statistics of BatchNorm. Buffers change in the forward pass
already, before the round is complete; the state of the last completed round is therefore kept in a copy, which is what
a snapshot takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chaos.adapter import Bytes, StateItem, fact_item
from chaos.torch_state import OptimizerState, dtype_name, load_bytes, scheduler_items, tensor_bytes, tensor_item
from chaos_protocols.state_spec import Item, contribution_spec, fact
from chaos_protocols.worker import ContributionSpec

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """Where one parameter or buffer lies in the vector of a round (bytes)."""

    source: torch.Tensor | _Buffer
    offset: int
    count: int
    dtype: torch.dtype

    def of(self, vector: Bytes, shape: Sequence[int]) -> torch.Tensor:
        size = self.count * self.dtype.itemsize
        return torch.from_numpy(vector[self.offset : self.offset + size]).view(self.dtype).reshape(tuple(shape))


class TorchAdapter:
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
        self._slices = self._lay_out(trained)
        self.items: Sequence[StateItem] = list(self._items(names, trained))
        self.contribution: ContributionSpec = contribution_spec(
            sum(s.count for s in self._slices if s.dtype == torch.float64),
            sum(s.count for s in self._slices if s.dtype == torch.float32),
        )

    def write_contribution(self, vector: Bytes) -> None:
        """Raises ValueError where a frozen parameter has a gradient, or an integer buffer has no exact float64."""
        for name, parameter in self._frozen:
            if parameter.grad is not None and parameter.requires_grad:
                raise ValueError(
                    f"{name!r} has a gradient but is not trained by a registered optimizer (or was frozen when it was "
                    "registered); freeze it with requires_grad_(False), or register the model as it is to be trained"
                )
        with torch.no_grad():
            for part in self._slices:
                source = part.source
                if isinstance(source, _Buffer):
                    part.of(vector, source.live.shape).copy_(_checked(source))
                elif source.grad is None:
                    part.of(vector, source.shape).zero_()
                else:
                    gradient = source.grad
                    part.of(vector, source.shape).copy_(gradient.to_dense() if gradient.is_sparse else gradient)

    def apply(self, vector: Bytes, round: int) -> None:
        with torch.no_grad():
            for part in self._slices:
                source = part.source
                if isinstance(source, _Buffer):
                    _write_buffer(source, part.of(vector, source.live.shape))
                    continue
                if source.grad is None or source.grad.is_sparse:
                    source.grad = torch.empty_like(source)
                source.grad.copy_(part.of(vector, source.shape))
        self._update()

    def apply_alone(self, round: int) -> None:
        """A round without others: the same update from this site's own gradients, without a vector."""
        with torch.no_grad():
            for part in self._slices:
                if not isinstance(part.source, _Buffer) and part.source.grad is None:
                    part.source.grad = torch.zeros_like(part.source)
        self._update()

    def _update(self) -> None:
        for optimizer in self._optimizers.values():
            optimizer.step()
        for scheduler in self._schedulers.values():
            scheduler.step()
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=self._set_to_none)
        with torch.no_grad():
            for buffer in self._buffers:
                buffer.commit()

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

    def _lay_out(self, trained: set[str]) -> list[_Slice]:
        """float64 first (chaos_protocols.worker.ContributionSpec): float64 parameters, buffers, then everything
        else."""
        parameters = [p for n, p in self._parameters.items() if n in trained]
        wide: list[torch.Tensor | _Buffer] = [p for p in parameters if p.dtype == torch.float64]
        wide += self._buffers
        slices: list[_Slice] = []
        offset = 0
        narrow = [p for p in parameters if p.dtype != torch.float64]
        for sources, dtype in ((wide, torch.float64), (narrow, torch.float32)):
            for source in sources:
                count = (source.live if isinstance(source, _Buffer) else source).numel()
                slices.append(_Slice(source=source, offset=offset, count=count, dtype=dtype))
                offset += count * dtype.itemsize
        return slices

    def _items(self, names: dict[int, str], trained: set[str]) -> Iterator[StateItem]:
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
        for name, optimizer in self._optimizers.items():
            yield from OptimizerState(name, optimizer, names).items()
        for name, scheduler in self._schedulers.items():
            yield from scheduler_items(name, scheduler)


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
