"""What the SDK needs to know of a framework: numbers in and out as bytes. No policy: what of it is averaged when, and
what an average does to the state, is a sync mode's affair (`chaos.sync`).

The state is a list of `StateItem`s in canonical order; `chaos.state` lays them out, copies them to and from the arena
and hashes them, without knowing what they are.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from chaos.errors import ChangedOutside
from chaos_protocols.wire.state_spec import DTYPE_BYTES, Item

Bytes = NDArray[np.uint8]


class StateItem(Protocol):
    """One array of the state. There may be a million of them: a class with slots for each kind, not three closures for
    each array."""

    @property
    def item(self) -> Item:
        """Name, type and shape."""
        ...

    def get(self) -> Bytes:
        """Its present bytes (contiguous; may be a view)."""
        ...

    def put(self, data: Bytes, /) -> None:
        """Take new bytes over."""
        ...

    def memory(self) -> Bytes | None:
        """The host memory that `put` writes into, where there is such a thing (not for a number, not for a tensor of a
        device)."""
        ...


def _no_memory() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeItem:
    """An item of its own making, for what there are few of."""

    item: Item
    get: Callable[[], Bytes]
    put: Callable[[Bytes], None]
    memory: Callable[[], Bytes | None] = _no_memory


class SlotKind(enum.Enum):
    """What a slot holds."""

    PARAMETER = "parameter"  # trained: has a value and a gradient
    BUFFER = "buffer"  # changes in the forward pass (statistics of BatchNorm): has a value only


class What(enum.Enum):
    """Which numbers of a slot are meant."""

    VALUE = "value"
    GRADIENT = "gradient"


class Slot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One tensor that a mode may average. In a vector it takes `size_bytes` as `summed_as`, whatever its own type. A
    `Struct`, as all of which there are very many: it is made in a quarter of a dataclass's time."""

    name: str
    shape: tuple[int, ...]
    kind: SlotKind
    summed_as: str
    """`float64` for float64 parameters and for buffers (integers up to 2**53 are exact in it), else `float32`."""
    optimizers: tuple[str, ...] = ()
    """Which ones train it (several: an encoder that two losses share); empty: a buffer, or a training without
    optimizers."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.summed_as]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What the functions of `Coordinator.register` hear of the round that is being applied: the same on every site.
    `optimizers`: which ones step in it. `metrics`: what the sites reported with it, averaged."""

    round: int
    optimizers: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)


UpdateHook = Callable[[Update], None]


class LocalTraining(Protocol):
    """What a mode with local steps needs of a framework: the same training, with what a site keeps to itself apart.

    Between two rounds such a mode runs the optimizers at home. What they keep (moments, step counters) is the site's
    own, and so are the live parameters, of which the mode has a common copy. Shared is the rest: frozen parameters,
    buffers, the options of the optimizers, the schedulers. Local steps change some of that, too: its value at the end
    of the last round counts. Implemented by `frameworks.torch_local` and `frameworks.numpy`."""

    @property
    def items(self) -> Sequence[StateItem]:
        """The shared state in canonical order, but for the values of the trained parameters."""
        ...

    @property
    def optimizers(self) -> Sequence[str]:
        """Names of what updates the parameters."""
        ...

    def check_step(self, steps: int | None) -> None:
        """Raises ScheduleOver where a schedule ends before the next step (None), or within so many steps after the last
        round."""
        ...

    def step(self, number: int, optimizers: Sequence[str], advance: int = 1) -> str:
        """One step of these optimizers at home, on the gradients as they stand; `number`: how many the schedule
        had seen, and one (1: the first of the run). The schedule goes on by `advance` steps. The gradients are
        cleared. Returns why nothing was done (a gradient is not finite, by name); empty: it was done."""
        ...

    def leave_out(self, advance: int) -> None:
        """A step that is not made: its gradients are cleared, and buffers that its forward pass left without numbers
        are as at the end of the last round. The schedule goes on all the same: it is the run's clock."""
        ...

    @property
    def has_hook(self) -> bool:
        """`finish` runs a function of the user."""
        ...

    def close_phase(self, steps: int) -> None:
        """The next steps belong to the round after the one that is to come: where `steps` steps leave the schedules now
        is what its `finish` makes common, whatever follows."""
        ...

    def finish(
        self, round: int, steps: int, metrics: Mapping[str, float], common: Mapping[int, Bytes]
    ) -> Sequence[Slot]:
        """Round `round` was applied: the live buffers are those of its end, and, unless the phase was closed, the live
        parameters. The schedules stand where `steps` steps after the last round leave them, whatever this site did; the
        function of the user runs. Returns the parameters that it changed: `common` has what they were, by `id` of the
        slot."""
        ...

    def go_on(self, steps: int) -> None:
        """Live state was loaded that so many steps after the last round have led to."""
        ...

    def begin_afresh(self) -> None:
        """What is shared is again as the last round left it, and of what this site keeps to itself there is nothing, as
        before the first step of all."""
        ...

    def common_buffers(self) -> AbstractContextManager[None]:
        """Buffers are as the last round left them meanwhile; this site's own come back."""
        ...

    def restore(self) -> None:
        """What is shared is again as the last round left it; gradients are cleared. The live parameters are the
        mode's affair."""
        ...


class GradientSource(Protocol):
    """Gradients one by one, while a backward pass computes them (`frameworks.torch_pieces`)."""

    def begins(self) -> None:
        """A backward pass whose gradients are to be followed is about to begin. Raises ValueError where they are not
        what is to be averaged."""
        ...

    def follow(self, came: Callable[[Slot], None] | None) -> None:
        """Call it for each parameter whose gradient is complete, in the thread that computes it, from now on; None: no
        more."""
        ...

    def copy(self, slot: Slot, out: Bytes) -> None:
        """As `Framework.read` does it with gradients, for one slot, and without its checks."""
        ...

    def check(self) -> None:
        """These checks. Raises ValueError."""
        ...

    def changed(self, slots: Sequence[Slot], copies: Sequence[Bytes]) -> Slot | None:
        """The first of these whose gradient is not what it was when it came; `copies`: what was copied then."""
        ...


class Framework(Protocol):
    """One registered training. Implemented by `frameworks.torch` and `frameworks.numpy`."""

    @property
    def slots(self) -> Sequence[Slot]:
        """Trained parameters, then buffers, each in the order of registration: the same on every site."""
        ...

    @property
    def items(self) -> Sequence[StateItem]:
        """The whole training state in canonical order, the same on every site."""
        ...

    def read(self, what: What, slots: Sequence[Slot], out: Bytes) -> None:
        """Copy these slots one behind the other into `out`, each as `summed_as`. A parameter without a gradient gives
        zeros. Changes nothing. Raises ValueError on what cannot be averaged, naming it."""
        ...

    def write(self, what: What, slots: Sequence[Slot], data: Bytes) -> None:
        """The inverse of `read`, in place; each slot gets its own type back (integers rounded)."""
        ...

    @property
    def optimizers(self) -> Sequence[str]:
        """Names of what updates the parameters, in canonical order."""
        ...

    def optimizer_step(
        self,
        round: int,
        shares: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        lr_factor: float = 1.0,
    ) -> None:
        """The update from the gradients as they stand (none counts as zeros), then the gradients are cleared: the state
        becomes that of the end of `round`. `shares`, by optimizer: how much of the weight behind the average gave it
        gradients, above 0 to 1: they are divided by it. One that is not named does not step. None: all of them gave to
        all. `metrics`: for the functions of the user. `lr_factor`: learning rates that the framework knows are
        multiplied by it for this update."""
        ...

    def check_step(self, optimizers: Sequence[str]) -> None:
        """Raises ScheduleOver where `optimizer_step` with these optimizers would find a schedule at its end."""
        ...

    def not_finite(self, optimizers: Sequence[str]) -> str:
        """What of a contribution with gradients for these optimizers is not finite, for people; empty: all of it is."""
        ...

    def check_learning_rates(self) -> None:
        """Raises ValueError where `lr_factor` could change nothing."""
        ...

    def gradients_as_they_come(self) -> GradientSource:
        """Raises ValueError for a training that has no such thing."""
        ...

    def local_training(self) -> LocalTraining:
        """The same for a mode with local steps (`LocalTraining`). Raises ValueError for what such a mode
        cannot do."""
        ...

    def discard(self) -> None:
        """Forget the gradients, and what the forward passes since the last round did to buffers: nothing of the state
        changes."""
        ...

    def settle(self) -> None:
        """The state is as it should be: what is changed from now on, outside of an update, is seen by
        `changed_outside`."""
        ...

    def untouched(self) -> bool:
        """Whether its values are those of the end of the round now, as far as can be seen: an evaluation may have put
        others in their place for a while."""
        ...

    def changed_outside(self, round: int, optimizers: Sequence[str] | None = None, *, leaving: bool = False) -> str:
        """A warning if something of the state of the end of `round` seems to have been changed by the script; empty:
        nothing was seen. `optimizers`: those that the step is for, as the user calls them; None: all; none of them:
        the step is skipped. `leaving`: there is no step, and the state may be the last copy: of that alone, also what
        was told already. Raises ChangedOutside where it is certain."""
        ...

    def odd_gradients(self, round: int, optimizers: Sequence[str] | None = None, *, averaged: bool = True) -> str:
        """A warning, once each, about the gradients of the step after `round`, which is for these optimizers (None:
        all): there are none, so that zeros would count; they seem to be scaled; one of several optimizers has none, and
        would step from zeros (`averaged`: where the mode averages gradients). Else empty."""
        ...

    def release(self) -> None:
        """Let go of the memory that was read from and written to. Safe to call twice."""
        ...


def changed_since(framework: Framework | None, round: int) -> str:
    """Why the script's state is not that of the end of `round` any more, as far as can be seen; empty: it is."""
    try:
        if framework is None:
            return ""
        seen = framework.changed_outside(round, (), leaving=True)
        return seen or ("" if framework.untouched() else f"its parameters are not those of round {round} any more")
    except ChangedOutside as error:
        return str(error)


def by_name(known: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """The registered optimizers that these names mean: with `register(optimizer={"D": ...})`, `D`. Raises ValueError
    for one that is not registered, and for none."""
    chosen = []
    for name in wanted:
        full = name if name in known else f"optimizer.{name}"
        if full not in known:
            names = ", ".join(repr(one.removeprefix("optimizer.")) for one in known)
            raise ValueError(f"step(optimizers=...) names {name!r}, which is not registered; there are {names}")
        chosen.append(full)
    if not chosen:
        raise ValueError("step(optimizers=()) names none; name those that the gradients are for")
    return chosen


def in_vector_order(slots: Iterable[Slot]) -> list[Slot]:
    """float64 first, so that both parts are aligned without padding (chaos_protocols.wire.worker.ContributionSpec)."""
    listed = list(slots)
    return [s for s in listed if s.summed_as == "float64"] + [s for s in listed if s.summed_as != "float64"]


def number_item(name: str, get: Callable[[], float], put: Callable[[float], None]) -> StateItem:
    """A single number, kept as float64."""

    def read() -> Bytes:
        return np.array([get()], dtype=np.float64).view(np.uint8)

    def write(data: Bytes) -> None:
        put(float(data.view(np.float64)[0]))

    return MadeItem(item=Item(name, "float64", ()), get=read, put=write)


def fact_item(item: Item) -> StateItem:
    """An entry without bytes (chaos_protocols.wire.state_spec.fact)."""
    return MadeItem(item=item, get=lambda: np.empty(0, dtype=np.uint8), put=lambda data: None)


def like(old: object, value: float) -> bool | int | float:
    """`value` in the type that the framework had there, if nothing is lost by it."""
    if isinstance(old, bool):
        return bool(value)
    if isinstance(old, int) and value.is_integer():
        return int(value)
    return value
