"""Layers whose parameters are cut over the devices of a device group (FSDP2; `tensor_parallel` for DTensor alone).

The library's module computes: it gathers a layer's parameters before a pass and deals the gradient afterwards.
Everything else (optimizer, sums, state that moves, digests) is done with this process's own pieces, as with a small
layer of its own: plain tensors that lie in the same memory as the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.chain.room import give_back


class ShardedLayer(Layer):
    """`module`: the pieces of this process; `whole`: what computes."""

    def __init__(self, index: int, whole: torch.nn.Module) -> None:
        super().__init__(index, _pieces_of(whole))
        self.adds = False
        self.whole = whole
        self._gathered = [part for part in whole.modules() if isinstance(part, FSDPModule)]
        """Those that put their parameters together for a pass, and part them again after the backward one."""
        self._cut_here = list(whole.parameters())
        self._cut = dict(zip(self.module.parameters(), self._cut_here, strict=True))

    @property
    def name(self) -> str:
        return f"{self.index} {type(self.whole).__name__}"

    def _compute(self, entered: torch.Tensor) -> Any:
        return self.whole(entered)

    def gradients(
        self,
        entered: torch.Tensor,
        left: torch.Tensor,
        gradient: torch.Tensor,
        onto: Sequence[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor | None, Sequence[torch.Tensor | None]]:
        """The library deals gradients where a backward pass leaves them, so they are taken from there."""
        assert onto is None
        torch.autograd.backward(left, gradient)
        found = [self._piece_of(self._cut[piece]) for piece in self.parameters]
        for parameter in self._cut.values():
            parameter.grad = None
        into, entered.grad = entered.grad, None
        return into, found

    def _piece_of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """This process's piece of the gradient that a backward pass has left."""
        return _piece(parameter.grad)

    def update(self, gradient: torch.Tensor, round: int) -> None:
        self._part()
        super().update(gradient, round)

    def loaded(self) -> None:
        self._part()
        super().loaded()

    def take_parameters(self, data: torch.Tensor) -> None:
        self._part()
        super().take_parameters(data)

    def _part(self) -> None:
        """Its pieces change. After a pass that ended before its backward half, as where another worker died in the
        step, the library has the parameters together still: it would compute with these again, and show them."""
        for module in self._gathered:
            module.reshard()

    @property
    def _script_has(self) -> torch.nn.Module:
        return self.whole

    @property
    def registered(self) -> list[torch.nn.Parameter]:
        """Also those that the library puts in their places for a pass."""
        made = [getattr(each, "_unsharded_param", None) for part in self._gathered for each in _of_library(part)]
        return [*self._cut_here, *(each for each in made if each is not None)]

    def drop(self) -> None:
        if self.held:
            self._part()
            super().drop()
            self._cut = {}
            give_back(self.whole)
            self._cut_here = list(self.whole.parameters())
            for part in self._gathered:
                _forget_memory(part)

    def revive(self) -> None:
        if self.held:
            return
        self._make_room(self.whole)
        self.module = _pieces_of(self.whole)
        self._cut_here = list(self.whole.parameters())
        self._cut = dict(zip(self.module.parameters(), self._cut_here, strict=True))
        self._begin_empty()


def as_if_whole(model: torch.nn.Module, layers: Sequence[Layer]) -> tuple[torch.nn.Module, list[Layer]]:
    """A model and its layers with the names and shapes that they would have in one process; their numbers mean
    nothing."""
    made: dict[int, torch.nn.Parameter] = {}

    def empty(parameter: torch.Tensor) -> torch.Tensor:
        return torch.empty(parameter.shape, dtype=parameter.dtype)

    found = [
        Layer(layer.index, _shaped_after(layer.whole if isinstance(layer, ShardedLayer) else layer.module, made, empty))
        for layer in layers
    ]
    return _shaped_after(model, made, empty), found


def _pieces_of(whole: torch.nn.Module) -> torch.nn.Module:
    """A module with the same names, whose parameters are this process's pieces, in the same memory."""

    def piece(parameter: torch.Tensor) -> torch.Tensor:
        found = _piece(parameter.detach())
        assert found is not None
        return found

    return _shaped_after(whole, {}, piece)


def _shaped_after(
    whole: torch.nn.Module, made: dict[int, torch.nn.Parameter], tensor: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Module:
    """A module with the same names and buffers, and with parameters that `tensor` makes of those; `made`: by the
    identity of those."""
    root = torch.nn.Module()
    for path, part in whole.named_modules():
        own = root
        for name in filter(None, path.split(".")):
            if name not in own._modules:
                own.add_module(name, torch.nn.Module())
            own = own.get_submodule(name)
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) not in made:
                made[id(parameter)] = torch.nn.Parameter(tensor(parameter), requires_grad=parameter.requires_grad)
            own.register_parameter(name, made[id(parameter)])
        for name, buffer in part.named_buffers(recurse=False):
            own.register_buffer(name, buffer, persistent=name not in part._non_persistent_buffers_set)
    return root


def _forget_memory(part: FSDPModule) -> None:
    """The library keeps the piece that it had before its parameters went to `meta`, until they come back."""
    for parameter in _of_library(part):
        parameter._sharded_param_data = torch.empty(0)


def _of_library(part: FSDPModule) -> Iterator[Any]:
    """What the library keeps for each parameter."""
    for group in getattr(part._get_fsdp_state(), "_fsdp_param_groups", ()):
        yield from group.fsdp_params


def _piece(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
