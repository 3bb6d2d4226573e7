"""State of torch optimizers as items of the training state, bit for bit.

An optimizer makes its state (moments, step counters) only in its first step. The spec must exist before, so the
structure is learnt from one step on zero gradients whose effects are undone. State that does not exist yet counts as
zeros in a snapshot, and a `started` flag says so: a site that loads it starts as fresh as the one that sent it
(momentum treats its very first step differently). Numbers that the step adds to the options, or changes on the
optimizer itself, are part of the state as well; what it keeps anywhere else is refused, or told when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from blake3 import blake3

from chaos.errors import ChangedOutside
from chaos.frameworks.base import Bytes, MadeItem, StateItem, fact_item, like, number_item
from chaos.frameworks.torch_at_home import check_at_home
from chaos.frameworks.torch_elsewhere import Elsewhere, check_within
from chaos.frameworks.torch_kinds import Kind, kind_of
from chaos.frameworks.torch_names import is_composed
from chaos.frameworks.torch_normal import in_normal_mode
from chaos.frameworks.torch_undo import Before, is_plain, undone
from chaos_protocols.wire.state_spec import Item, fact

SKIPPED_GROUP_KEYS = frozenset({"params", "param_names"})

EACH_SITES_OWN = frozenset({"foreach", "fused"})
"""Options that choose code for the same step, as a device does; all have the default in the spec."""
TRIED_MAX = 4096
"""On so many parameters a step is tried to see what an optimizer keeps; of more, on one of each kind."""


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, `bfloat16`, ...: the names of chaos_protocols.wire.state_spec."""
    return str(dtype).removeprefix("torch.")


def tensor_bytes(tensor: torch.Tensor) -> Bytes:
    """The tensor's bytes on the host; a view where it already lies there contiguously."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data: Bytes = flat.view(torch.uint8).numpy()
    return data


def load_bytes(tensor: torch.Tensor, data: Bytes) -> None:
    """Overwrite the tensor in place."""
    source = torch.from_numpy(data).view(tensor.dtype).reshape(tensor.shape)
    with torch.no_grad():
        tensor.copy_(source)


def described(tensor: torch.Tensor) -> str:
    """Type, shape and BLAKE3 of a tensor that sites compare without sending it."""
    digest = blake3(tensor_bytes(tensor).data).hexdigest(length=16)
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)} with the digest {digest}"


class TensorItem(msgspec.Struct, frozen=True, eq=False):
    """A tensor that exists for good."""

    item: Item
    tensor: torch.Tensor

    def get(self) -> Bytes:
        return tensor_bytes(self.tensor)

    def put(self, data: Bytes, /) -> None:
        load_bytes(self.tensor, data)

    def memory(self) -> Bytes | None:
        return _memory(self.tensor)


def tensor_item(name: str, tensor: torch.Tensor, kind: Kind | None = None) -> TensorItem:
    """`kind`: where it is known already."""
    dtype, _, shape, _, _ = kind or kind_of(tensor)
    return TensorItem(Item(name, dtype_name(dtype), shape), tensor)


def replaced_tensor_item(name: str, tensor: Callable[[], torch.Tensor]) -> StateItem:
    """A tensor that may be replaced by another of the same shape and type."""
    now = tensor()
    return MadeItem(
        item=Item(name, dtype_name(now.dtype), tuple(now.shape)),
        get=lambda: tensor_bytes(tensor()),
        put=lambda data: load_bytes(tensor(), data),
        memory=lambda: _memory(tensor()),
    )


def _memory(tensor: torch.Tensor) -> Bytes | None:
    """The tensor's own bytes, where they lie on the host in one piece."""
    return tensor_bytes(tensor) if tensor.device.type == "cpu" and tensor.is_contiguous() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """One entry of the state of one parameter, as the first step leaves it: a tensor's kind, or a number. `stored_as`:
    its type in the state."""

    key: str
    number: bool
    stored_as: str = "float64"
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    old: object = 0.0


class _SlotItem(msgspec.Struct, frozen=True, eq=False):
    """One entry of the state of one parameter; `state` is that of the whole optimizer."""

    item: Item
    state: Any
    parameter: torch.Tensor
    slot: _Slot

    def get(self) -> Bytes:
        slot, kept = self.slot, self.state.get(self.parameter)
        value = None if kept is None else kept.get(slot.key)
        if slot.number:
            return np.array([value or 0.0], dtype=np.float64).view(np.uint8)
        return tensor_bytes(torch.zeros(slot.shape, dtype=slot.dtype) if value is None else value)

    def put(self, data: Bytes, /) -> None:
        slot, kept = self.slot, self.state.get(self.parameter)
        if kept is None:
            return
        if slot.number:
            kept[slot.key] = like(slot.old, float(data.view(np.float64)[0]))
        else:
            load_bytes(kept[slot.key], data)

    def memory(self) -> Bytes | None:
        return None


class KnownParameters(Protocol):
    """What is known of them: `torch_registered.Registered`."""

    def name_of(self, thing: object, /) -> str: ...

    def kinds_of(self, parameters: Iterable[torch.Tensor], /) -> list[Kind]: ...


class OptimizerState:
    """Items of one optimizer. `registered`: has all of its parameters."""

    def __init__(self, prefix: str, optimizer: torch.optim.Optimizer, registered: KnownParameters) -> None:
        """Raises ValueError for an optimizer whose step needs a closure."""
        self._prefix = prefix
        self._optimizer = optimizer
        self._registered = registered
        self._parameters: list[torch.Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        alike = self._one_of_each_kind()
        self._stands = list({id(p): p for p in alike}.values())
        self._added: list[dict[str, Any]] = [{} for _ in optimizer.param_groups]
        """Of each group, the numbers that the first step puts among its options."""
        self._counted: dict[str, Any] = {}
        """Numbers of the optimizer itself that a step changes."""
        self.untold = ""
        """What is to be told of it, where its state is the run's."""
        first = self._first_states()
        check_within(prefix, optimizer)
        slots = {id(p): tuple(self._slots_of(p, state)) for p, state in first}
        both = zip(self._parameters, alike, strict=True) if any(slots.values()) else ()
        self._slots = {id(p): found for p, one in both if (found := slots.get(id(one), ()))}
        self._spare: dict[tuple[int, str], torch.Tensor] = {
            (id(p), key): value
            for p, state in first
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and p not in optimizer.state
        }
        """What the rehearsal made: memory that is written already, for a state that is loaded before the first step."""

    def items(self) -> Iterator[StateItem]:
        """Options and numbers of the groups, the `started` flags, then the state of each parameter."""
        yield from self.options()
        yield MadeItem(
            item=Item(f"{self._prefix}.started", "uint8", (len(self._parameters),)),
            get=self._started,
            put=self._start,
        )
        state = self._optimizer.state
        for parameter in self._parameters if self._slots else ():
            if slots := self._slots.get(id(parameter), ()):
                name = f"{self._prefix}.{self._registered.name_of(parameter)}."
                for slot in slots:
                    yield _SlotItem(Item(name + slot.key, slot.stored_as, slot.shape), state, parameter, slot)

    def options(self) -> Iterator[StateItem]:
        """Class, parameters and options of the groups, without what a step makes."""
        yield fact_item(fact(f"{self._prefix}: {type(self._optimizer).__name__}"))
        for index, group in enumerate(self._optimizer.param_groups):
            prefix = f"{self._prefix}.group{index}"
            yield fact_item(fact(f"{prefix}.params: {list(map(self._registered.name_of, group['params']))}"))
            added = self._added[index]
            for key in sorted({*group, *added} - SKIPPED_GROUP_KEYS):
                if key in added:
                    yield _later_number(f"{prefix}.{key}", group, key, added[key])
                else:
                    yield from _option_items(f"{prefix}.{key}", group, key)
        for key, value in sorted(self._counted.items()):
            yield _later_number(f"{self._prefix}.{key}", vars(self._optimizer), key, value)

    def check_kept(self, round: int) -> None:
        """Raises ChangedOutside for what came after the first step, and is no part of the state. One parameter of each
        group shows it."""
        state = self._optimizer.state
        for group in self._optimizer.param_groups:
            one = next((p for p in group["params"] if p in state), None)
            if one is None:
                continue
            known = {slot.key for slot in self._slots.get(id(one), ())}
            late = [key for key, value in state[one].items() if value is not None and key not in known]
            if late:
                raise ChangedOutside(
                    f"{self._prefix} ({type(self._optimizer).__name__}) keeps {late[0]!r} of its parameters by round "
                    f"{round}, which its first step did not make, so a joiner would not be sent it: use an optimizer "
                    "that makes all of its state in its first step"
                )

    def forget_spare(self) -> None:
        """The first step is about to make its own tensors."""
        self._spare.clear()

    def leave_to_the_site(self) -> str:
        """In modes with local steps: nobody is sent what it keeps. What is to be told of that; empty: nothing. Raises
        ValueError where it cannot be."""
        self.forget_spare()
        tried = [one for one in self._stands if one.requires_grad and one.numel()]
        names = {id(one): self._registered.name_of(one) for one in tried}
        return check_at_home(self._prefix, self._optimizer, names, tried, self._try_a_step)

    # ---- learning the structure

    def _first_states(self) -> list[tuple[torch.Tensor, dict[str, Any]]]:
        """Of the parameters that a step is tried on; or of all that have been stepped already, where the class is one
        of torch's, which keep nothing elsewhere."""
        state = self._optimizer.state
        if state and type(self._optimizer).__module__.startswith("torch.optim."):
            trainable = [p for p in self._parameters if p.requires_grad]
            if trainable and all(p in state and state[p] for p in trainable):
                return [(p, dict(state[p])) for p in trainable]
        return self._rehearse([one for one in self._stands if one.requires_grad])

    def _one_of_each_kind(self) -> list[torch.Tensor]:
        """Of each parameter the one that stands for it when a step is tried. That is itself, but in a model of
        very many tensors, where a step on all takes seconds: then the first of its kind, since what an optimizer keeps
        for a parameter follows from its group, shape and type."""
        if len(self._parameters) <= TRIED_MAX:
            return self._parameters
        alike: list[torch.Tensor] = []
        for group in self._optimizer.param_groups:
            kinds = [id(kind) for kind in self._registered.kinds_of(group["params"])]
            first = dict(zip(reversed(kinds), reversed(group["params"]), strict=True))
            alike += [first[kind] for kind in kinds]
        return alike

    def _rehearse(self, tried: list[torch.Tensor]) -> list[tuple[torch.Tensor, dict[str, Any]]]:
        """One step on zero gradients, undone."""
        optimizer = self._optimizer
        with undone(optimizer, tried) as before:
            elsewhere = Elsewhere(optimizer)
            self._try_a_step(tried)
            elsewhere.check(self._prefix)
            self.untold = elsewhere.odd_numbers(self._prefix)
            self._learn_numbers(before)
            return [(p, dict(optimizer.state.get(p, {}))) for p in tried]

    def _learn_numbers(self, before: Before) -> None:
        """Those that the step has put elsewhere than into the state of its parameters."""
        optimizer = self._optimizer
        for added, group, known in zip(self._added, optimizer.param_groups, before.options, strict=True):
            added.update({k: v for k, v in group.items() if k not in known and k != "params" and is_plain(v)})
        now = {k: v for k, v in vars(optimizer).items() if is_plain(v)}
        self._counted.update({k: v for k, v in now.items() if before.numbers.get(k) != v or k not in before.numbers})

    def _try_a_step(self, tried: Sequence[torch.Tensor]) -> None:
        """On zero gradients, by the class's own step: a scheduler that wrapped the instance's, and hooks, must not see
        this one. Within `undone`: the others have no gradients."""
        optimizer = self._optimizer
        for p in tried:
            p.grad = torch.zeros_like(p)
        step = type(optimizer).step
        if getattr(step, "hooked", False):  # torch's wrapper, which calls the hooks
            step = getattr(step, "__wrapped__", step)
        try:
            step(optimizer)
        except TypeError as error:
            raise ValueError(
                f"{self._prefix} ({type(optimizer).__name__}) cannot be averaged: its step() needs a closure; "
                "use an optimizer whose step() takes nothing, such as SGD or AdamW"
            ) from error
        except Exception as error:
            raise ValueError(
                f"{self._prefix} ({type(optimizer).__name__}) cannot be averaged: register() tries a step() on dense "
                f"gradients, of zeros, which fails: {error or type(error).__name__}"
            ) from error
        finally:
            for p in tried:
                p.grad = None

    def _slots_of(self, parameter: torch.Tensor, state: dict[str, Any]) -> Iterator[_Slot]:
        for key in sorted(state):
            value = state[key]
            if isinstance(value, torch.Tensor) and not is_composed(value):
                yield _Slot(
                    key=key,
                    number=False,
                    stored_as=dtype_name(value.dtype),
                    shape=tuple(value.shape),
                    dtype=value.dtype,
                    device=str(value.device),
                )
            elif isinstance(value, bool | int | float):
                yield _Slot(key=key, number=True, old=value)
            elif value is not None:
                raise ValueError(
                    f"{self._prefix}: the state {key!r} of {self._registered.name_of(parameter)!r} is a "
                    f"{type(value).__name__}; only plain tensors and numbers can be moved to a joiner"
                )

    # ---- reading and writing

    def _started(self) -> Bytes:
        state = self._optimizer.state
        flags = [
            bool(self._slots.get(id(p))) and all(state.get(p, {}).get(s.key) is not None for s in self._slots[id(p)])
            for p in self._parameters
        ]
        return np.array(flags, dtype=np.uint8)

    @in_normal_mode
    def _start(self, data: Bytes) -> None:
        """Comes before the slots: makes the tensors that will be loaded, or takes away what the source does not
        have."""
        state = self._optimizer.state
        for parameter, flag in zip(self._parameters, data, strict=True):
            if not flag:
                state.pop(parameter, None)
                continue
            mine = state[parameter]
            for slot in self._slots.get(id(parameter), ()):
                if slot.number:
                    mine.setdefault(slot.key, slot.old)
                elif mine.get(slot.key) is None:
                    spare = self._spare.pop((id(parameter), slot.key), None)
                    mine[slot.key] = (
                        torch.zeros(slot.shape, dtype=slot.dtype, device=slot.device) if spare is None else spare
                    )


def _option_items(name: str, group: dict[str, Any], key: str) -> Iterator[StateItem]:
    value = group[key]
    if isinstance(value, torch.Tensor):
        yield replaced_tensor_item(name, lambda: group[key])
    elif isinstance(value, tuple | list) and value and all(_is_number(v) for v in value):
        for index in range(len(value)):

            def put(new: float, index: int = index) -> None:
                changed = list(group[key])
                changed[index] = like(changed[index], new)
                group[key] = type(group[key])(changed)

            def get(index: int = index) -> float:
                return float(group[key][index])

            yield number_item(f"{name}[{index}]", get, put)
    elif _is_number(value):
        yield number_item(name, lambda: float(group[key]), lambda new: group.update({key: like(group[key], new)}))
    else:
        yield fact_item(fact(f"{name}: {plain_text(None if key in EACH_SITES_OWN else value)}"))


def _later_number(name: str, there: dict[str, Any], key: str, old: Any) -> StateItem:
    """A number that may not be there yet; it counts as 0 then."""

    def put(value: float) -> None:
        if value or key in there:
            there[key] = like(old, value)

    return number_item(name, lambda: float(there.get(key, 0.0)), put)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain_text(value: object) -> str:
    """For comparison between sites: the value where it is plain, else its type (an address would differ everywhere)."""
    return repr(value) if value is None or isinstance(value, str | bool | bytes) else type(value).__name__
