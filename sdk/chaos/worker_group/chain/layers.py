"""The layers of a model as a chain: what each keeps, as bytes; held here or not.

A layer has an optimizer of its own, so that its state does not depend on which others are held beside it. Its state is
one run of bytes in canonical order: parameters and buffers, then the optimizer's state (the items of
`chaos.frameworks.torch`), so that any range of it can come from any holder. A layer that is not held keeps no memory:
its tensors are on `meta`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from chaos.frameworks.base import StateItem
from chaos.frameworks.torch import TorchFramework
from chaos.frameworks.torch_buffers import ModelBuffer
from chaos.frameworks.torch_names import buffers_of
from chaos.frameworks.torch_state import TensorItem, tensor_item
from chaos.sync.learning_rate import LearningRates
from chaos.sync.local_steps import DiLoCo
from chaos.worker_group.chain.absent import Handle, absent
from chaos.worker_group.chain.backward import gradients_of
from chaos.worker_group.chain.held import HeldPart, copy_of, put
from chaos.worker_group.chain.late import kept_buffers, names_of, refuse_late, tables_of
from chaos.worker_group.chain.local_layers import LayerPhase
from chaos.worker_group.chain.making import MakeOptimizer, MakeScheduler, scheduled
from chaos.worker_group.chain.room import give_back, take_again


class Layer(HeldPart):
    """One layer of the model."""

    alike = False
    """Whether all processes of a device group compute the same micro-batch, and not each its part of it."""

    phase: LayerPhase | None = None

    def __init__(self, index: int, module: torch.nn.Module) -> None:
        super().__init__(index)
        self.module = module
        self.device = next((p.device for p in (*module.parameters(), *module.buffers())), self.device)
        self._tables = tables_of(module)
        """No part of the state, so they stay here when the layer goes."""
        self._registered: dict[str, str] = {}
        """Names of what it had when it got its optimizer."""
        self._make: MakeOptimizer | None = None
        self._schedule: MakeScheduler | None = None
        self._mode: DiLoCo | None = None
        self._rates = LearningRates(None)
        self._heard: StateItem | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._framework: TorchFramework | None = None
        self._all = list(module.parameters())
        self.adds = True  # its backward pass can add to gradients that are there, and be one with its neighbours'
        self._plain: list[TensorItem] = []
        self.stepped: list[torch.nn.Parameter] = []
        """Its parameters in the order of its optimizer."""
        self._absent: list[Handle] = []  # while others hold it: what tells a script so that uses it

    @property
    def name(self) -> str:
        return f"{self.index} {type(self.module).__name__}"

    @property
    def _script_has(self) -> torch.nn.Module:
        """What the script may call, and save."""
        return self.module

    @property
    def registered(self) -> list[torch.nn.Parameter]:
        """What the script's model has of it, trained or not, since it got its optimizer."""
        return self._all

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self._all if p.requires_grad]

    def train_with(
        self,
        make: MakeOptimizer,
        schedule: MakeScheduler | None = None,
        mode: DiLoCo | None = None,
        rates: LearningRates | None = None,
        heard: StateItem | None = None,
    ) -> None:
        """Give it its optimizer, and that its scheduler, which steps with each update. `rates`: what its learning rates
        follow, one for all layers; `heard`: see `LocalPhase`. Raises ValueError on what cannot be moved
        (chaos.frameworks.torch), and on a scheduler of something else."""
        self._make, self._schedule, self._mode = make, schedule, mode
        self._rates, self._heard = rates or self._rates, heard or self._heard
        self._registered = self._registered or names_of(self._script_has)
        self._all, self.phase = list(self.module.parameters()), None
        tensors = [*self.module.named_parameters(), *kept_buffers(self.module).items()]
        plain = self._plain = [tensor_item(f"layer.{name}", tensor) for name, tensor in tensors]
        if not self.keeps:
            return
        if self.parameters:
            optimizer = make(self.parameters)
            self.stepped = [p for group in optimizer.param_groups for p in group["params"]]
            schedulers = scheduled(optimizer, schedule)
            self._framework = TorchFramework(
                {"layer": self.module}, {"optimizer": optimizer}, schedulers, set_to_none=True
            )
            if self._rates.count:
                self._framework.check_learning_rates()
            self._framework.release()  # of all layers' watches each would hear of each layer's step
            self._optimizer = optimizer
            self.phase = None if mode is None else LayerPhase(mode, self._framework, self._heard)
        items = plain if self._framework is None else [*self._framework.items, *self._rates.items]
        if self.phase is not None:  # what is common is put first: it puts the live values, too
            items = [*self.phase.common, *items, *self.phase.marks]
        self._consists_of(items, sum(each.get().size for each in plain))

    def keep(self, keeps: bool) -> None:
        if keeps == self.keeps:
            return
        self.check_same()
        self.keeps = keeps
        self._framework, self._items, self.stepped = None, (), []
        if self.held:
            assert self._make is not None
            self.train_with(self._make, self._schedule, self._mode)

    def run(self, entered: torch.Tensor) -> Any:
        """Its forward pass, with its weights of now.

        `torch.autocast` keeps what it has rounded until its block ends, in which a script makes whole steps: not what a
        step has loaded or updated meanwhile. And in the backward pass what was rounded for an earlier micro-batch comes
        after all of this one's; FSDP has dealt the gradients by then."""
        torch.clear_autocast_cache()
        return self._compute(entered)

    def _compute(self, entered: torch.Tensor) -> Any:
        return self.module(entered)

    def gradients(
        self,
        entered: torch.Tensor,
        left: torch.Tensor,
        gradient: torch.Tensor,
        onto: Sequence[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor | None, Sequence[torch.Tensor | None]]:
        """Its backward pass: the gradients of what entered, where that has one, and of the trained parameters; these
        are added to `onto`, in its memory."""
        into, found = gradients_of([self.parameters], entered, left, gradient, [onto])
        return into, found[0]

    def parameters_now(self) -> torch.Tensor:
        """A copy of parameters and buffers, as bytes."""
        return copy_of(self._plain, self.parameter_bytes)

    def take_parameters(self, data: torch.Tensor) -> None:
        """What `parameters_now` gave elsewhere."""
        put(self._plain, [each.get().size for each in self._plain], data)

    def optimizer_of(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """One like the layer's own, for other parameters."""
        assert self._make is not None
        return self._make(parameters)

    def buffers(self) -> list[ModelBuffer]:
        """The persistent ones; to be written before an update, which makes them count."""
        found = buffers_of("layer", self.module)
        return [ModelBuffer(name=b.name, owner=b.module, key=b.key, committed=b.tensor) for b in found]

    def statistics(self) -> dict[str, bytes]:
        """The bytes of the persistent buffers that are here, by name."""
        return {name: tensor_item(name, each).get().tobytes() for name, each in kept_buffers(self.module).items()}

    def check_same(self) -> None:
        refuse_late(self.name, self._script_has, self._registered)

    def drop(self) -> None:
        """The memory is given back."""
        if self.held:
            self.held = False
            self._tables |= tables_of(self._script_has)
            self._framework = self.phase = None
            self._optimizer, self._items, self._plain, self.stepped = None, (), [], []
            give_back(self.module)
            self._all = list(self.module.parameters())
            self._absent = absent(self._script_has, self.name)

    def revive(self) -> None:
        if self.held:
            return
        self._make_room(self.module)
        self._begin_empty()

    def _make_room(self, module: torch.nn.Module) -> None:
        """Memory for all of it, its tables as they were, or as the script has put them there since."""
        self.check_same()
        self._tables |= tables_of(module)
        take_again(module, self.device)
        parts = dict(module.named_modules())
        for (path, name), value in self._tables.items():
            parts[path]._buffers[name] = value.clone()

    def _begin_empty(self) -> None:
        """Held again, with zeros."""
        assert self._make is not None
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.zero_()
        for each in self._absent:
            each.remove()
        self.held = True
        self.train_with(self._make, self._schedule, self._mode)

    def update(self, gradient: torch.Tensor, round: int) -> None:
        """The gradient: of all of its trained parameters, in their order. Nothing happens to a layer that is not
        kept."""
        if not self.keeps:
            return
        parameters = self.parameters
        for parameter, part in zip(parameters, torch.split(gradient, [p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter).to(device=parameter.device, dtype=parameter.dtype)
        if self.phase is not None:
            self.phase.step()
        elif self._framework is not None:
            self._framework.optimizer_step(round, lr_factor=self._rates.factor)

    def check_step(self) -> None:
        """Raises ScheduleOver where its schedule ends before the next step; that of local steps looks by itself."""
        if self.phase is None and self._framework is not None:
            self._framework.check_step(self._framework.optimizers)

    @property
    def gradient_size(self) -> int:
        return sum(p.numel() for p in self.parameters)

    @property
    def gradient_dtype(self) -> torch.dtype:
        """That of its parameters, the widest where they differ."""
        dtype = torch.float32
        for index, parameter in enumerate(self.parameters):
            dtype = parameter.dtype if index == 0 else torch.promote_types(dtype, parameter.dtype)
        return dtype


def chain(modules: Sequence[torch.nn.Module]) -> list[Layer]:
    """The layers of a model. Raises ValueError, naming the layer, on what the chain cannot carry."""
    if not modules:
        raise ValueError("layers= gave no module; give the modules in the order in which data passes them")
    owner: dict[int, int] = {}
    for index, module in enumerate(modules):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            other = owner.setdefault(id(tensor), index)
            if other != index:
                kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
                raise ValueError(
                    f"layers {other} and {index} share the {kind} {name!r}; tied {kind}s are not supported by "
                    "parallelize() yet: untie them, or keep both in one layer"
                )
        for part in module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
                raise ValueError(
                    f"layer {index} has batch statistics ({type(part).__name__}), which depend on the order of "
                    "micro-batches; use GroupNorm or LayerNorm, or freeze them (track_running_stats=False)"
                )
    return [Layer(index, module) for index, module in enumerate(modules)]
