"""torch modules, optimizers and schedulers as one training: its trained parameters and buffers, and what the state is.

Parameters are those that an optimizer trains; buffers are the persistent ones, such as the statistics of BatchNorm.
Buffers change in the forward pass already, before the round is complete; the state of the last completed round is
therefore kept in a copy, which is what a snapshot takes.

Vectors are read and written through views of them, one for each tensor, which are made once for each region of the
shared memory: what is left of a round is one call into torch for all tensors together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from chaos.frameworks.base import (
    Bytes,
    MadeItem,
    Slot,
    SlotKind,
    StateItem,
    Update,
    UpdateHook,
    What,
    by_name,
    fact_item,
)
from chaos.frameworks.local import kept_apart
from chaos.frameworks.torch_buffers import ModelBuffer, checked, odd_buffer, write_buffer
from chaos.frameworks.torch_given import GivenGradients
from chaos.frameworks.torch_gradients import odd_gradient, read_gradients, write_gradients
from chaos.frameworks.torch_local import TorchLocalTraining
from chaos.frameworks.torch_normal import in_normal_mode
from chaos.frameworks.torch_pieces import GradientsAsTheyCome
from chaos.frameworks.torch_rates import check_rates, check_schedules, multiplied_rates
from chaos.frameworks.torch_registered import Registered
from chaos.frameworks.torch_schedules import check_not_over, due_with, scheduler_items, step_all
from chaos.frameworks.torch_state import OptimizerState, described, dtype_name, tensor_bytes, tensor_item
from chaos.frameworks.torch_watch import OutsideWatch
from chaos_protocols.wire.state_spec import Item, fact

VIEWS_KEPT_MAX = 8
"""Runs of slots whose views are kept: contribution and result, each with up to three runs of one kind."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Where slots lie in a vector: `memory` keeps it, so that its address stays that of `views`."""

    slots: Sequence[Slot]
    memory: Bytes
    parameters: list[torch.Tensor]
    parameter_views: list[torch.Tensor]
    buffers: list[ModelBuffer]
    buffer_views: list[torch.Tensor]


class TorchFramework:
    """See `Coordinator.register`."""

    def __init__(
        self,
        models: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedulers: Mapping[str, Any],
        *,
        set_to_none: bool,
        on_average: UpdateHook | None = None,
        on_update: UpdateHook | None = None,
        facts: Sequence[str] = (),
        compare_frozen: bool = False,
    ) -> None:
        """`facts`: what else must be equal on all sites. `compare_frozen`: frozen parameters must be equal, by digest,
        and are no part of the state. Raises ValueError on what cannot be averaged, naming it."""
        self._optimizers = dict(sorted(optimizers.items()))
        self._schedulers = dict(schedulers)
        check_schedules(self._optimizers, self._schedulers)
        self._set_to_none, self._compare_frozen = set_to_none, compare_frozen
        self._on_average, self._on_update = on_average, on_update
        registered = self._registered = Registered(models, self._optimizers)
        self._parameters = dict(zip(registered.names, registered.tensors, strict=True))
        if len(self._parameters) < len(registered.names):
            twice = next(name for name, times in Counter(registered.names).items() if times > 1)
            raise ValueError(f"two models have a parameter named {twice!r}: register them under other names")
        self._buffers = registered.buffers
        self._frozen: dict[str, torch.Tensor] = {}
        self._trained_by: dict[tuple[str, ...], list[torch.Tensor]] = {}
        slots: list[Slot] = []
        columns = zip(registered.names, registered.tensors, registered.kinds, registered.owners, strict=True)
        for name, parameter, (dtype, _, shape, _, _), owners in columns:
            if not owners:
                self._frozen[name] = parameter
                continue
            self._trained_by.setdefault(owners, []).append(parameter)
            wide = "float64" if dtype is torch.float64 else "float32"
            slots.append(Slot(name=name, shape=shape, kind=SlotKind.PARAMETER, summed_as=wide, optimizers=owners))
        self._buffers_by_name = {buffer.name: buffer for buffer in self._buffers}
        self.slots: Sequence[Slot] = [*slots, *map(_buffer_slot, self._buffers)]
        self._states = [OptimizerState(name, one, registered) for name, one in self._optimizers.items()]
        self._shared_states = self._states
        self._facts = [fact_item(fact(text)) for text in facts]
        self.items: Sequence[StateItem] = [*self._model_items(), *self._kept_items(), *self._facts]
        self._runs: list[_Run] = []
        self._coming: GradientsAsTheyCome | None = None
        kept = (registered, models, self._optimizers, self._schedulers)
        self._watch = OutsideWatch(*kept, compared=self._frozen if compare_frozen else {})
        self._watch.untold = next(filter(None, (state.untold for state in self._states)), "")
        by_optimizer = {o: [p for by, ps in self._trained_by.items() if o in by for p in ps] for o in optimizers}
        self._given = GivenGradients(by_optimizer, self._optimizers)

    @property
    def optimizers(self) -> Sequence[str]:
        return tuple(self._optimizers)

    # ---- numbers in and out

    @in_normal_mode
    def read(self, what: What, slots: Sequence[Slot], out: Bytes) -> None:
        """Raises ValueError where a frozen parameter has a gradient, or an integer buffer has no exact float64."""
        if what is What.GRADIENT:
            self.check_frozen()
        run = self._run(slots, out)
        with torch.no_grad():
            if run.buffers:
                torch._foreach_copy_(run.buffer_views, [checked(buffer) for buffer in run.buffers])
            if what is What.GRADIENT:
                read_gradients(run.parameter_views, run.parameters)
            elif run.parameters:
                torch._foreach_copy_(run.parameter_views, run.parameters)

    @in_normal_mode
    def write(self, what: What, slots: Sequence[Slot], data: Bytes) -> None:
        run = self._run(slots, data)
        with torch.no_grad():
            for buffer, part in zip(run.buffers, run.buffer_views, strict=True):
                write_buffer(buffer, part)
            if what is What.GRADIENT:
                write_gradients(run.parameter_views, run.parameters)
            elif run.parameters:
                torch._foreach_copy_(run.parameters, run.parameter_views)
                self._watch.settle()

    def _run(self, slots: Sequence[Slot], vector: Bytes) -> _Run:
        """The views of these slots in this memory; those of the regions of a round are used again in every round."""
        address, size = vector.__array_interface__["data"][0], vector.size
        for run in self._runs:
            known = run.memory
            if run.slots is slots and known.size == size and known.__array_interface__["data"][0] == address:
                return run
        run = self._new_run(slots, vector)
        self._runs = [*self._runs[1 - VIEWS_KEPT_MAX :], run]
        return run

    def _new_run(self, slots: Sequence[Slot], vector: Bytes) -> _Run:
        run = _Run(slots, vector, [], [], [], [])
        start = 0
        for summed_as, group in groupby(slots, key=lambda slot: slot.summed_as):
            alike = list(group)
            counts = [slot.count for slot in alike]
            stop = start + sum(slot.size_bytes for slot in alike)
            flat = torch.from_numpy(vector[start:stop]).view(_SUMMED_AS[summed_as])
            start = stop
            for slot, part in zip(alike, torch.split(flat, counts), strict=True):
                if slot.kind is SlotKind.BUFFER:
                    run.buffers.append(self._buffers_by_name[slot.name])
                    run.buffer_views.append(part.view(slot.shape))
                else:
                    run.parameters.append(self._parameters[slot.name])
                    run.parameter_views.append(part.view(slot.shape))
        return run

    # ---- the update

    @in_normal_mode
    def optimizer_step(
        self,
        round: int,
        shares: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        lr_factor: float = 1.0,
    ) -> None:
        """The hook for the average, the optimizers, their schedulers, the hook for the update; then the gradients are
        cleared and the buffers committed. `shares`: see `Framework`."""
        stepping = [name for name in self._optimizers if shares is None or shares.get(name, 0.0) > 0]
        with self._watch.update():
            with torch.no_grad():
                self._complete_gradients({name: 1.0 if shares is None else shares[name] for name in stepping})
            for state in self._states:
                state.forget_spare()
            told = tuple(name.removeprefix("optimizer.") for name in stepping)
            update = Update(round=round, optimizers=told, metrics=metrics or {})
            if self._on_average is not None:
                self._on_average(update)
            with multiplied_rates((self._optimizers[name] for name in stepping), lr_factor):
                for name in stepping:
                    self._optimizers[name].step()
            step_all(self._due_with(stepping))
            if self._on_update is not None:
                self._on_update(update)
            self._clear_gradients()
            with torch.no_grad():
                for buffer in self._buffers:
                    buffer.commit()

    def check_step(self, optimizers: Sequence[str]) -> None:
        check_not_over(self._due_with(optimizers), 1)

    def _due_with(self, stepping: Sequence[str]) -> Iterator[tuple[str, Any]]:
        there = [self._optimizers[name] for name in stepping]
        return due_with(self._schedulers, there, all_step=len(there) == len(self._optimizers))

    def not_finite(self, optimizers: Sequence[str]) -> str:
        chosen = frozenset(optimizers)
        trained = [slot.name for slot in self.slots if chosen.intersection(slot.optimizers)]
        odd = odd_gradient((name, self._parameters[name].grad) for name in trained)
        return f"the gradient of {odd!r}" if odd else odd_buffer(self._buffers)

    def check_learning_rates(self) -> None:
        check_rates(self._optimizers)

    def gradients_as_they_come(self) -> GradientsAsTheyCome:
        if self._coming is None:
            self._coming = GradientsAsTheyCome(self._trained(), self.check_frozen)
        return self._coming

    def local_training(self) -> TorchLocalTraining:
        if self._on_average is not None:
            raise ValueError(
                "on_average= is called with averaged gradients, which a mode with local steps does not have: clip "
                "in the loop, before coordinator.step()"
            )
        self._shared_states = []  # what an optimizer keeps is each site's own
        with self._watch.update():
            notes = [state.leave_to_the_site() for state in self._states]
        self._watch.begin_at_home(next(filter(None, notes), ""))
        live = [item for state in self._states for item in state.options()]
        live += [item for name, scheduler in self._schedulers.items() for item in scheduler_items(name, scheduler)]
        options, committed = kept_apart(live)
        return TorchLocalTraining(
            items=[*self._model_items(trained=False), *options, *self._facts],
            committed=committed,
            optimizers=self._optimizers,
            schedulers=self._schedulers,
            parameters=self._trained(),
            buffers=self._buffers,
            watch=self._watch,
            clear_gradients=self._clear_gradients,
            on_update=self._on_update,
        )

    @in_normal_mode
    def discard(self) -> None:
        with torch.no_grad():
            for buffer in self._buffers:
                buffer.restore()
        self._clear_gradients()

    def settle(self) -> None:
        self._watch.settle()

    def untouched(self) -> bool:
        return self._watch.untouched()

    def changed_outside(self, round: int, optimizers: Sequence[str] | None = None, *, leaving: bool = False) -> str:
        for buffer in self._buffers:
            buffer.check(round)
        for state in self._shared_states:
            state.check_kept(round)
        return self._watch.look(round, optimizers and by_name(self.optimizers, optimizers), leaving=leaving)

    def odd_gradients(self, round: int, optimizers: Sequence[str] | None = None, *, averaged: bool = True) -> str:
        if averaged and not round:  # alone, too, where nothing is read
            self.check_frozen()
        return self._given.look(round, optimizers and by_name(self.optimizers, optimizers), averaged=averaged)

    def release(self) -> None:
        self._runs = []
        self._watch.close()
        if self._coming is not None:
            self._coming.close()

    def _complete_gradients(self, stepping: Mapping[str, float]) -> None:
        """`stepping`: optimizers, and how much of the weight gave them gradients. To a parameter that several train
        gave who gave to any of them."""
        for owners, parameters in self._trained_by.items():
            share = min(1.0, sum(stepping.get(owner, 0.0) for owner in owners))
            if not share:
                continue
            gradients = []
            for parameter in parameters:
                gradient = parameter.grad
                if gradient is None:
                    gradient = parameter.grad = torch.zeros_like(parameter)
                elif gradient.is_sparse:  # alone; an average is dense, and so are the moments that it makes
                    gradient = parameter.grad = gradient.to_dense()
                gradients.append(gradient)
            if share != 1.0:
                torch._foreach_mul_(gradients, 1.0 / share)

    def _clear_gradients(self) -> None:
        for optimizer in self._optimizers.values():
            if self._set_to_none and type(optimizer).zero_grad is torch.optim.Optimizer.zero_grad:
                for group in optimizer.param_groups:  # the same, without what the library does for its profiler
                    for parameter in group["params"]:
                        parameter.grad = None
            else:
                optimizer.zero_grad(set_to_none=self._set_to_none)

    def plain_parameters(self) -> list[torch.Tensor]:
        """Those that are trained, in the order of a vector, if that is their gradients and nothing else, as they are:
        summed as float32, on one device, in memory that no script keeps. Otherwise none."""
        trained = [parameter for _, parameter in self._trained()] if self._set_to_none and not self._buffers else []
        plain = [p for p in trained if p.dtype in _EXACT_AS_FLOAT32]
        one_device = len({p.device for p in plain}) == 1
        return plain if one_device and len(plain) == len(trained) else []

    def _trained(self) -> list[tuple[Slot, torch.Tensor]]:
        return [(slot, self._parameters[slot.name]) for slot in self.slots if slot.kind is SlotKind.PARAMETER]

    def check_frozen(self) -> None:
        """Raises ValueError where a parameter has a gradient and no optimizer."""
        for name, parameter in self._frozen.items():
            if parameter.grad is not None and parameter.requires_grad:
                raise ValueError(
                    f"{name!r} has a gradient but is not trained by a registered optimizer (or was frozen when it was "
                    "registered); freeze it with requires_grad_(False), or register the model as it is to be trained"
                )

    # ---- items

    def _model_items(self, *, trained: bool = True) -> Iterator[StateItem]:
        """Parameters (`trained`: also those that are trained) and buffers."""
        if self._compare_frozen:
            yield fact_item(fact("frozen parameters are compared, not sent: register(frozen='compare')"))
        for (name, parameter), kind in zip(self._parameters.items(), self._registered.kinds, strict=True):
            if name not in self._frozen:
                if trained:
                    yield tensor_item(name, parameter, kind)
            elif self._compare_frozen:
                yield fact_item(fact(f"{name} is frozen, {described(parameter)}"))
            else:
                yield tensor_item(name, parameter, kind)
                yield fact_item(fact(f"{name} is frozen"))
        for buffer in self._buffers:
            yield MadeItem(
                item=Item(buffer.name, dtype_name(buffer.committed.dtype), tuple(buffer.committed.shape)),
                get=lambda buffer=buffer: tensor_bytes(buffer.committed),  # type: ignore[misc]
                put=buffer.load,
            )

    def _kept_items(self) -> Iterator[StateItem]:
        for state in self._states:
            yield from state.items()
        for name, scheduler in self._schedulers.items():
            yield from scheduler_items(name, scheduler)


_EXACT_AS_FLOAT32 = (torch.float32, torch.bfloat16, torch.float16)
_SUMMED_AS = {"float64": torch.float64, "float32": torch.float32}


def _buffer_slot(buffer: ModelBuffer) -> Slot:
    return Slot(name=buffer.name, shape=tuple(buffer.live.shape), kind=SlotKind.BUFFER, summed_as="float64")
