"""A device called npu for a machine without one: torch's own second kind of device, whose memory only it can read.

`install()` registers it in this process (torch's Python backend of the key PrivateUse1). Its tensors are tensors of
`npu:0` to everybody; each is computed by the CPU, behind the scenes, so that bits can be compared. It is strict where a
real device is merely unlucky:

- A copy that does not block is done as late as the rules allow: when somebody waits for its stream or event, or when a
  tensor that it fills is used by a stream that waits for it. Until then its target holds rubbish. So whoever reads too
  early, or writes too early into memory that a copy still reads, gets other numbers.
- A copy of a tensor that was computed on a stream for which the copying stream does not wait is `Unordered`, and so is
  the use of a tensor that a copy fills on a stream for which the user does not wait.
- Memory that is gone before its copy is done is `Unordered`.
- Random numbers of the device come from a generator of its own: seeding the CPU's alone changes nothing.
- Sockets refuse its tensors.

`COUNTS`: bytes that went each way, and how often somebody waited.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from chaos.worker_group.exchange import channels
from chaos.worker_group.exchange.channels import bytes_of

NAME = "npu"
RUBBISH = 0x5A
COUNTS: Counter[str] = Counter()
_installed: list[torch.library.Library] = []


class Unordered(RuntimeError):
    """Memory was used without waiting for whoever writes or reads it."""


class Stream:
    """Work in order; `seen`: up to which ticket of other streams it waits."""

    def __init__(self, device: Any = None) -> None:
        self.ticket, self.done = 0, 0
        self.seen: dict[Stream, int] = {}
        self.work: list[tuple[int, Copy]] = []

    def begin(self, copy: Copy) -> None:
        self.ticket += 1
        copy.ticket = self.ticket
        self.work.append((self.ticket, copy))

    def finish(self, ticket: int) -> None:
        """Do what was begun up to this ticket."""
        while self.work and self.work[0][0] <= ticket:
            self.work.pop(0)[1].carry_out()
        self.done = max(self.done, ticket)

    def wait_stream(self, other: Stream) -> None:
        self._see(other, other.ticket)

    def wait_event(self, event: Event) -> None:
        if event.stream is not None:
            self._see(event.stream, event.ticket)

    def _see(self, other: Stream, ticket: int) -> None:
        self.seen[other] = max(self.seen.get(other, 0), ticket)

    def synchronize(self) -> None:
        COUNTS["waits"] += 1
        self.finish(self.ticket)


class Event:
    """A moment of a stream."""

    def __init__(self, **_: Any) -> None:
        self.stream: Stream | None = None
        self.ticket = 0
        self.at_s = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = _state.current if stream is None else stream
        self.ticket = self.stream.ticket
        self.at_s = perf_counter()

    def elapsed_time(self, other: Event) -> float:
        """In milliseconds: of a device that computes at once."""
        return (other.at_s - self.at_s) * 1000

    def synchronize(self) -> None:
        COUNTS["waits"] += 1
        if self.stream is not None:
            self.stream.finish(self.ticket)

    def query(self) -> bool:
        return self.stream is None or self.stream.done >= self.ticket


@dataclass
class Copy:
    """One that was begun. Of the host's memory it knows where it is; whether it still is, its owner decides."""

    source: torch.Tensor | weakref.ref[torch.Tensor]
    target: torch.Tensor | weakref.ref[torch.Tensor]
    stream: Stream
    ticket: int = 0
    over: bool = False

    def carry_out(self) -> None:
        source, target = (x() if isinstance(x, weakref.ref) else x for x in (self.source, self.target))
        if source is None or target is None:
            raise Unordered("memory of the host is gone before the copy of it was done")
        target.copy_(source)
        self.over = True


class _State:
    def __init__(self) -> None:
        self.usual = Stream()
        self.current = self.usual
        self.filled: dict[int, list[Copy]] = {}
        """By memory: copies that fill it."""
        self.written: dict[int, tuple[Stream, int]] = {}
        """By memory: who has computed it last."""
        self.random = torch.Generator().manual_seed(0).get_state()


_state = _State()


def _memory(raw: torch.Tensor) -> int:
    return raw.untyped_storage().data_ptr()


class Module:
    """`torch.npu`, as far as workers need it."""

    Stream, Event = Stream, Event

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def set_device(device: Any) -> None:
        """There is one."""

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def current_stream(device: Any = None) -> Stream:
        return _state.current

    @staticmethod
    @contextmanager
    def stream(stream: Stream) -> Iterator[None]:
        before, _state.current = _state.current, stream
        try:
            yield
        finally:
            _state.current = before

    @staticmethod
    def synchronize(device: Any = None) -> None:
        for copies in list(_state.filled.values()):
            for copy in copies:
                copy.stream.finish(copy.ticket)
        _state.usual.synchronize()

    @staticmethod
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        return 3 << 30, 4 << 30

    @staticmethod
    def memory_reserved(device: Any = None) -> int:
        return 1 << 29

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        return _state.random.clone()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        _state.random = state.clone()

    @staticmethod
    def manual_seed(seed: int) -> None:
        _state.random = torch.Generator().manual_seed(seed).get_state()

    manual_seed_all = manual_seed


class FakeTensor(torch.Tensor):
    """`raw`: its numbers, on the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> FakeTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=f"{NAME}:0",
        )
        made.raw = raw
        return made  # type: ignore[no-any-return]

    def __init__(self, raw: torch.Tensor) -> None:
        """See `__new__`."""

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def record_stream(self, stream: Any) -> None:
        """Memory here is kept by whoever refers to it."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _use(raw: torch.Tensor) -> None:
    """The current stream reads or writes this memory."""
    memory, here = _memory(raw), _state.current
    for copy in _state.filled.pop(memory, ()):
        if not copy.over:
            if copy.stream is not here and here.seen.get(copy.stream, 0) < copy.ticket:
                raise Unordered("a tensor is used on a stream that does not wait for the copy that fills it")
            copy.stream.finish(copy.ticket)
    writer, ticket = _state.written.get(memory, (here, 0))
    if writer is not here and here.seen.get(writer, 0) < ticket:
        raise Unordered("a tensor is read on a stream that does not wait for the one that computes it")


def _copy(target: torch.Tensor, source: torch.Tensor, wait: bool) -> None:
    leaves, comes = isinstance(source, FakeTensor), isinstance(target, FakeTensor)
    if leaves != comes:
        COUNTS["to host" if leaves else "to device"] += source.numel() * source.element_size()
    if wait or leaves == comes:
        COUNTS["waits"] += leaves != comes
        for each in (target, source):
            if isinstance(each, FakeTensor):
                _use(each.raw)
        _raw(target).copy_(_raw(source))
        if comes:
            _has_written(_raw(target))
        return
    here = _state.current
    if leaves:
        _use(source.raw)
        copy = Copy(source.raw, weakref.ref(target), here)
        here.begin(copy)
    else:
        _use(target.raw)  # type: ignore[attr-defined]
        copy = Copy(weakref.ref(source), target.raw, here)  # type: ignore[attr-defined]
        here.begin(copy)
        _state.filled.setdefault(_memory(_raw(target)), []).append(copy)
    _raw(target).detach().view(-1).view(torch.uint8).fill_(RUBBISH)


def _has_written(raw: torch.Tensor) -> None:
    here = _state.current
    here.ticket += 1
    _state.written[_memory(raw)] = (here, here.ticket)


def _raw(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == NAME else value
    return value.raw if isinstance(value, FakeTensor) else value


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    if name == "copy_":
        _copy(args[0], args[1], not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False)))
        return args[0]
    if name == "_to_copy":
        return _to_copy(func, args, kwargs)
    tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, FakeTensor)]
    for each in tensors:
        _use(each.raw)
    raw_args, raw_kwargs = pytree.tree_map(_raw, (args, kwargs))
    with _drawing(torch.Tag.nondeterministic_seeded in func.tags):
        out = func(*raw_args, **raw_kwargs)
    known = {id(each.raw): each for each in tensors}
    if name == "_local_scalar_dense":
        COUNTS["waits"] += 1
        return out

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        _has_written(value)
        return known.get(id(value)) if id(value) in known else FakeTensor(value)

    return pytree.tree_map(wrapped, out)


def _to_copy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Between devices, or to another type on this one. To the host it blocks, as into plain memory of a real one."""
    source, to = args[0], kwargs.get("device")
    here = isinstance(source, FakeTensor)
    if here:
        _use(source.raw)
    made = func(_raw(source), **{**kwargs, "device": torch.device("cpu"), "non_blocking": False})
    goes_out = here and to is not None and torch.device(to).type == "cpu"
    if goes_out or not here:
        COUNTS["to host" if goes_out else "to device"] += made.numel() * made.element_size()
    if goes_out:
        COUNTS["waits"] += 1
        return made
    _has_written(made)
    return FakeTensor(made)


@contextmanager
def _drawing(draws: bool) -> Iterator[None]:
    if not draws:
        yield
        return
    host = torch.get_rng_state()
    torch.set_rng_state(_state.random)
    try:
        yield
    finally:
        _state.random = torch.get_rng_state()
        torch.set_rng_state(host)


def _bytes_of(host: torch.Tensor) -> memoryview:
    if isinstance(host, FakeTensor):
        raise RuntimeError(f"a socket was handed a tensor of {NAME}: it carries memory of the host")
    return bytes_of(host)


def install() -> None:
    """Once in a process, for as long as it lives."""
    if _installed:
        return
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=Module)
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda op, *args, **kwargs: _call(op, args, kwargs), "PrivateUse1")
    _installed.append(library)
    channels.bytes_of = _bytes_of
