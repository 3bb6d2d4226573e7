"""torch training for modes with local steps (`LocalTraining`): the registered optimizers step at home."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from chaos.frameworks.base import Bytes, Slot, StateItem, Update, UpdateHook
from chaos.frameworks.local import CommittedItem
from chaos.frameworks.torch_gradients import odd_gradient
from chaos.frameworks.torch_normal import in_normal_mode
from chaos.frameworks.torch_schedules import check_not_over, step_all
from chaos.frameworks.torch_watch import OutsideWatch


class KeptBuffer(Protocol):
    """A buffer of the model, with its value at the end of the last round."""

    @property
    def live(self) -> torch.Tensor: ...

    def commit(self) -> None: ...

    def restore(self) -> None: ...


class TorchLocalTraining:
    """See `LocalTraining`. Schedulers count every local step, whichever optimizers ran in it: their position is the
    run's clock, so it must not depend on what one site did."""

    def __init__(
        self,
        *,
        items: Sequence[StateItem],
        committed: Sequence[CommittedItem],
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedulers: Mapping[str, Any],
        parameters: Sequence[tuple[Slot, torch.Tensor]],
        buffers: Sequence[KeptBuffer],
        watch: OutsideWatch,
        clear_gradients: Callable[[], None],
        on_update: UpdateHook | None,
    ) -> None:
        """`committed`: those of `items` that local steps change."""
        self.items = items
        self.optimizers: Sequence[str] = tuple(optimizers)
        self._committed = committed
        self._optimizers, self._schedulers = optimizers, schedulers
        self._parameters = parameters
        self._buffers = buffers
        self._watch = watch
        self._clear_gradients = clear_gradients
        self._on_update = on_update
        self._scheduled = 0
        """Steps that the schedulers have counted since the last round, or since the phase was closed."""
        self._closed: Sequence[Bytes] | None = None
        """Of each committed item, what it was when the phase was closed."""
        self.has_hook = on_update is not None

    def check_step(self, steps: int | None) -> None:
        check_not_over(self._schedulers.items(), 1 if steps is None else steps - self._scheduled)

    @in_normal_mode
    def step(self, number: int, optimizers: Sequence[str], advance: int = 1) -> str:
        chosen = frozenset(optimizers)
        with self._watch.update():
            odd = odd_gradient((s.name, p.grad) for s, p in self._parameters if chosen.intersection(s.optimizers))
            if not odd:
                for name in optimizers:
                    self._step_at_home(name)
                self._schedule(advance)
                self._clear_gradients()
        if not odd:
            return ""
        self.leave_out(advance)
        return f"the gradient of {odd!r} is not finite"

    @in_normal_mode
    def leave_out(self, advance: int) -> None:
        with self._watch.update():
            self._undo_statistics()
            self._schedule(advance)
            self._clear_gradients()

    def _undo_statistics(self) -> None:
        """The forward pass of a step that is left out may have put a NaN into running statistics, which keep it: those
        are as the last round left them, or all of the phase would be lost with that step."""
        with torch.no_grad():
            for buffer in self._buffers:
                if buffer.live.is_floating_point() and not torch.isfinite(buffer.live).all():
                    buffer.restore()

    def _step_at_home(self, name: str) -> None:
        """What an optimizer counts among its options (a step, an estimate) follows from this site's gradients, like its
        moments: it is the site's own from then on. Where it has not changed yet it is as the run began with it."""
        optimizer = self._optimizers[name]
        places = [(name, vars(optimizer))]
        places += [(f"{name}.group{index}", group) for index, group in enumerate(optimizer.param_groups)]
        before = [{key: _counted(value) for key, value in there.items()} for _, there in places]
        optimizer.step()
        for (place, there), then in zip(places, before, strict=True):
            for key, value in there.items():
                if (now := _counted(value)) is None or now == then.get(key):
                    continue
                counted = f"{place}.{key}"
                for item in self._committed:
                    if item.item.name == counted or item.item.name.startswith(f"{counted}["):
                        item.own = True

    def close_phase(self, steps: int) -> None:
        with self._watch.update():
            self._schedule_up_to(steps)
            self._closed = [item.live().copy() for item in self._committed]

    @in_normal_mode
    def finish(
        self, round: int, steps: int, metrics: Mapping[str, float], common: Mapping[int, Bytes]
    ) -> Sequence[Slot]:
        changed: list[Slot] = []
        with self._watch.update():
            closed, self._closed = self._closed, None
            if closed is None:
                self._schedule_up_to(steps)
            if self._on_update is not None:
                told = tuple(name.removeprefix("optimizer.") for name in self.optimizers)
                self._on_update(Update(round=round, optimizers=told, metrics=metrics))
                changed = [  # what `.data` changes counts
                    slot for slot, parameter in self._parameters if not _has(parameter, slot, common[id(slot)])
                ]
            self._clear_gradients()
            with torch.no_grad():
                for buffer in self._buffers:
                    buffer.commit()
            for number, item in enumerate(self._committed):
                item.commit(None if closed is None else closed[number])
        return changed

    def go_on(self, steps: int) -> None:
        self._scheduled, self._closed = steps, None
        self._watch.settle()

    @in_normal_mode
    def begin_afresh(self) -> None:
        self.restore()
        with self._watch.update():
            for optimizer in self._optimizers.values():
                optimizer.state.clear()
            for item in self._committed:
                item.begin_afresh()

    @contextlib.contextmanager
    def common_buffers(self) -> Iterator[None]:
        with torch.no_grad():
            own = [buffer.live.clone() for buffer in self._buffers]
            for buffer in self._buffers:
                buffer.restore()
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, kept in zip(self._buffers, own, strict=True):
                    buffer.live.copy_(kept)

    @in_normal_mode
    def restore(self) -> None:
        self._scheduled, self._closed = 0, None
        with self._watch.update():
            with torch.no_grad():
                for buffer in self._buffers:
                    buffer.restore()
            for item in self._committed:
                item.restore()
            self._clear_gradients()

    def _schedule_up_to(self, steps: int) -> None:
        """Where so many steps leave the schedules; count anew."""
        self._schedule(steps - self._scheduled)
        self._scheduled = 0

    def _schedule(self, steps: int) -> None:
        with warnings.catch_warnings():  # torch warns of a schedule that begins before its optimizer
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(steps):
                step_all(self._schedulers.items())
        self._scheduled += max(0, steps)


def _counted(value: Any) -> Any:
    """What shows that a step has changed it; None: it is nothing that counts. A tensor for scratch work is
    changed by each site's gradients as a number is."""
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    return tuple(value) if isinstance(value, list) else value if isinstance(value, int | float | tuple) else None


def _has(parameter: torch.Tensor, slot: Slot, values: Bytes) -> bool:
    """Whether it has these values, as it was given them; in the type of a vector, on the CPU, nothing is copied."""
    then = torch.from_numpy(values).view(getattr(torch, slot.summed_as)).view(slot.shape)
    return torch.equal(parameter.detach(), then.to(parameter))
