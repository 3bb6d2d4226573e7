"""The devices on which workers compute, and the way of tensors from a device into a message and back.

Sockets carry host memory. So what is on an accelerator is copied to the host before it is sent, and from there after it
has come; on the CPU a tensor is its own host memory, and nothing is copied. Nobody else asks which device there is: a
backend whose library carries the memory of its devices itself would stand in the same place.

CUDA and NPU have one interface in torch (streams, events, generators: `torch.cuda`, `torch.npu`). Copies run on streams
of their own: one that begins waits for what was computed before, and what is computed afterwards waits for it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from time import perf_counter
from typing import Any

import torch

from chaos.saying import say
from chaos_protocols.worker_group.settings import DEVICE_VARIABLE

PASSES_AHEAD = 2
"""That an accelerator may have before it. A worker says what it does when it begins it, and is suspected where that
takes too long, so its words must not be further ahead of its device; with two the device always has one to go on with.
"""


class Device(ABC):
    """What a worker computes on."""

    passes_ahead = 0
    """How many may be under way while the worker begins the next one."""

    def __init__(self, name: torch.device) -> None:
        self.name = name

    @abstractmethod
    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host memory with the numbers of a contiguous tensor, all of them there: ready to be sent."""

    @abstractmethod
    def landing(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host memory for a message that is to end in this contiguous tensor."""

    @abstractmethod
    def arrive(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        """The message has come: what is computed from now on finds it in the tensor."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all that was begun is done: for clocks."""

    @abstractmethod
    def mark(self) -> Any:
        """Between what was begun before and what is begun afterwards."""

    @abstractmethod
    def seconds_between(self, first: Any, last: Any) -> float:
        """From one mark to a later one, for which this waits."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """What this process may use of the device's memory."""

    @abstractmethod
    def drawn(self) -> list[torch.Tensor]:
        """Where the generators stand from which a layer may draw here."""

    @abstractmethod
    def draw_from(self, states: list[torch.Tensor]) -> None:
        """Let the generators stand there."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Let the generators begin at a seed."""

    def moved(self, value: Any) -> Any:
        """A tensor of a sample, on this device; anything else as it is."""
        return value.to(self.name) if isinstance(value, torch.Tensor) else value


class Processor(Device):
    """The CPU."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def landing(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def arrive(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        """It is there."""

    def synchronize(self) -> None:
        """Nothing runs beside the caller."""

    def mark(self) -> float:
        return perf_counter()

    def seconds_between(self, first: float, last: float) -> float:
        return last - first

    def memory_bytes(self) -> int:
        """Of the machine's, as much as the others on it may have as well."""
        workers = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // workers

    def drawn(self) -> list[torch.Tensor]:
        return [torch.get_rng_state()]

    def draw_from(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)


HOST = Processor()


class Accelerator(Device):
    """One that torch has a module for, with streams, events and a generator."""

    passes_ahead = PASSES_AHEAD

    def __init__(self, name: torch.device, module: Any) -> None:
        super().__init__(name)
        self._module = module
        module.set_device(name)
        self._leaving, self._arriving = module.Stream(device=name), module.Stream(device=name)
        self._under_way: deque[tuple[Any, torch.Tensor]] = deque()
        """Host memory from which a copy may still read, with what tells that it is done."""
        self._pins = _can_pin()
        # Gradients are computed on a thread of their own for each device, which has nothing of the device before its
        # first kernel; where that would be the library's of matrices, torch warns.
        begun = torch.ones(1, device=name, requires_grad=True)
        torch.autograd.grad(begun * begun, begun)

    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        host, done = self.landing(tensor), self._module.Event()
        self._leaving.wait_stream(self._module.current_stream(self.name))  # what is computing it comes first
        with self._module.stream(self._leaving):
            host.copy_(tensor, non_blocking=True)
            done.record(self._leaving)
        done.synchronize()
        return host

    def landing(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins)

    def arrive(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        if host is tensor:
            return
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        current, done = self._module.current_stream(self.name), self._module.Event()
        self._arriving.wait_stream(current)  # whoever had this memory before has finished with it
        with self._module.stream(self._arriving):
            tensor.copy_(host, non_blocking=True)
            done.record(self._arriving)
        current.wait_event(done)
        tensor.record_stream(self._arriving)
        self._under_way.append((done, host))

    def moved(self, value: Any) -> Any:
        """Through pinned memory, where that is to be had: a plain copy would wait for all that was begun before."""
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not self._pins:
            return super().moved(value)
        host = value.contiguous().pin_memory()
        there = torch.empty_like(host, device=self.name)
        self.arrive(host, there)
        return there

    def synchronize(self) -> None:
        self._module.synchronize(self.name)

    def mark(self) -> Any:
        made = self._module.Event(enable_timing=True)
        made.record(self._module.current_stream(self.name))
        return made

    def seconds_between(self, first: Any, last: Any) -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000

    def memory_bytes(self) -> int:
        """What is free, and what this process has of it already."""
        free_bytes, _ = self._module.mem_get_info(self.name)
        return int(free_bytes) + int(self._module.memory_reserved(self.name))

    def drawn(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), self._module.get_rng_state(self.name)]

    def draw_from(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        self._module.set_rng_state(states[1], self.name)

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        self._module.manual_seed(seed)


def device_of(module: torch.nn.Module) -> Device:
    """That of a model's tensors. Raises ValueError where they lie on several, or on one that cannot compute here."""
    names = sorted({str(each.device) for each in _tensors(module)})
    if len(names) > 1:
        raise ValueError(
            f"the model's tensors lie on {names[0]} and {names[1]}; a worker computes on one device: "
            "model.to(coordinator.device)"
        )
    name = torch.device(names[0] if names else "cpu")
    if name.type == "cpu":
        given = os.environ.get(DEVICE_VARIABLE, "cpu")
        if given != "cpu":
            say(f"the model lies on the CPU, and {given} has nothing to do: model.to(coordinator.device)")
        return HOST
    try:
        found: Any = torch.get_device_module(name)
    except RuntimeError:
        found = None
    if found is None or not hasattr(found, "Stream"):
        raise ValueError(f"the model lies on {name}, where a worker cannot compute: model.to(coordinator.device)")
    if name.index is None:
        name = torch.device(name.type, found.current_device())
    return Accelerator(name, found)


def _tensors(module: torch.nn.Module) -> Iterable[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _can_pin() -> bool:
    """Whether this torch can give memory that a device reads by itself; without it a copy waits, and is as right."""
    try:
        return bool(torch.empty(1, pin_memory=True).is_pinned())
    except RuntimeError:
        return False
