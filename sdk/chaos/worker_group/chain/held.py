"""What a worker holds, sums, updates and moves as one, and its state as bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from chaos.frameworks.base import StateItem
from chaos.worker_group.chain.local_phase import LocalPhase


class HeldPart(ABC):
    """What is held, summed, updated and moved as one: a layer, or the whole model. `held`: here; `keeps`: with its
    optimizer's state, and not only with its parameters, which then come from those that keep it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.held = True
        self.keeps = True
        self.device = torch.device("cpu")
        """Where its gradients are."""
        self._items: Sequence[StateItem] = ()
        self._sizes: Sequence[int] = ()
        self.parameter_bytes = 0
        self.state_bytes = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """For people."""

    @property
    @abstractmethod
    def parameters(self) -> list[torch.nn.Parameter]:
        """The trained ones."""

    @abstractmethod
    def drop(self) -> None:
        """Not held any more."""

    def check_same(self) -> None:  # noqa: B027
        """Raises ChangedOutside where it has more than it was registered with, and so can go to no other worker."""

    @abstractmethod
    def revive(self) -> None:
        """Held again, with memory for a state that is to be loaded."""

    def keep(self, keeps: bool) -> None:  # noqa: B027 - what is never sharded is always kept
        """From now on with its optimizer's state, which is to be loaded if it was not kept before; or without."""

    @abstractmethod
    def update(self, gradient: torch.Tensor, round: int) -> None:
        """One step of its optimizer with this mean gradient, flat: the state becomes that of the end of `round`."""

    @property
    def phase(self) -> LocalPhase | None:
        """Of a mode with local steps, while it is held and trained; None without one: then a state says it all."""
        return None

    @property
    def common(self) -> Sequence[StateItem]:
        """What of its state is that of a run of institutions: all of it, but for a mode with local steps."""
        return self._items if self.phase is None else self.phase.common

    def leave_out(self) -> None:
        """A step counts without an update: its gradient is not finite."""
        if self.phase is not None:
            self.phase.leave_out()

    def goes_on(self, round: int, steps: int) -> None:
        """Its state is that of so many local steps after the end of `round`."""
        if self.phase is not None:
            self.phase.goes_on(round, steps)

    def begins_anew(self, round: int) -> None:
        """The common part of the state of the end of `round` was put into its items."""
        if self.phase is not None:
            self.phase.begins_anew(round)

    def end_alone(self, round: int) -> None:
        """A round of a mode with local steps is over, without others."""
        if self.phase is not None:
            self.phase.end_alone(round)

    def forget(self) -> None:  # noqa: B027 - what keeps nothing has nothing to forget
        """What was computed for a step is void; the state stays as it is."""

    def void(self, round: int) -> None:
        """This round has no result: what was computed for it is void, with local steps the phase."""
        if self.phase is None:
            self.forget()
        else:
            self.phase.void(round)

    @property
    def behind(self) -> float:
        """How many local steps are in what it has given to a round."""
        return 0.0 if self.phase is None else self.phase.behind

    @property
    @abstractmethod
    def gradient_size(self) -> int:
        """Elements of its gradient."""

    @property
    @abstractmethod
    def gradient_dtype(self) -> torch.dtype:
        """In which its gradient is summed."""

    def squared(self, gradient: torch.Tensor) -> torch.Tensor:
        """The sum of the squares of its gradient: one number, on the gradient's device."""
        wide = gradient.double()
        return torch.dot(wide, wide)

    def whole_squares(self, gradient: torch.Tensor) -> float:
        """The same of the gradient of all processes that share it."""
        return float(self.squared(gradient))

    @property
    def items(self) -> Sequence[StateItem]:
        """What its state consists of, in canonical order; nothing while a layer is not held."""
        return self._items

    def _consists_of(self, items: Sequence[StateItem], parameter_bytes: int) -> None:
        self._items, self._sizes = items, [each.get().size for each in items]
        self.parameter_bytes, self.state_bytes = parameter_bytes, sum(self._sizes)

    def state(self) -> torch.Tensor:
        """A copy of its state, `state_bytes` bytes."""
        return copy_of(self._items, self.state_bytes)

    def load(self, state: torch.Tensor) -> None:
        """Take a state over."""
        put(self._items, self._sizes, state)
        self.loaded()

    def loaded(self) -> None:  # noqa: B027
        """A state was put into its items; what was computed before is void."""

    def digest(self) -> str:
        """BLAKE3 of its state."""
        return blake3(self.state().numpy().data).hexdigest()


def copy_of(items: Sequence[StateItem], size_bytes: int) -> torch.Tensor:
    """What they are now, one after the other."""
    whole = np.empty(size_bytes, dtype=np.uint8)
    at = 0
    for each in items:
        data = each.get()
        whole[at : at + data.size] = data
        at += data.size
    return torch.from_numpy(whole)


def put(items: Sequence[StateItem], sizes: Sequence[int], data: torch.Tensor) -> None:
    """What `copy_of` gave."""
    whole = data.numpy()
    at = 0
    for each, size in zip(items, sizes, strict=True):
        each.put(whole[at : at + size])
        at += size


def digest_of(layers: Sequence[HeldPart], facts: Any) -> str:
    """BLAKE3 of all initial states and of further facts of the training: the same on all workers."""
    hasher = blake3(repr(facts).encode())
    for layer in layers:
        hasher.update(f"\n{layer.name}\n".encode())
        hasher.update(layer.state().numpy().data)
    return hasher.hexdigest()
