"""What the profile function of `python -m tests.tidy.passes` looks for in the calls of a process.

Both look at the same things: the arguments of a function when it is called, and these and what it returns when it
returns (an argument may be a buffer that it fills), each with its elements or attributes, one level deep.

`GradientWatch`: buffers of a round. `RequestWatch`: the request of a newcomer, and what becomes of it.
"""

from __future__ import annotations

import gc
import mmap
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any, Protocol

STATE = 0.5
"""What the parameters of the watched training are full of."""

BUFFER_BYTES_MIN = 4096
"""A smaller buffer is no data of a round: a chunk has 32 KiB at least, a record of TLS 16 KiB."""

ELEMENTS_MAX = 64
"""Of a container that is looked into."""

SAMPLE_BYTES = 16
MESSAGE_BYTES_MAX = 64 << 10
"""A longer buffer is not searched for a request."""

CARRIES_DEPTH = 5
"""A record in a command in an entry of the log in a message in an envelope."""

PACKAGES = ("chaosd", "chaos_planner", "chaos_protocols", "chaos")
DESTINATION = "Roster"
"""The request has arrived when there is one with the newcomer in it."""

VARIADIC = (0x04, 0x08)
"""Flags of a function with `*args`, with `**kwargs`."""

FileOf = Callable[[CodeType], str]


class Watch(Protocol):
    """What is asked at every call and every return of a function of the packages; `value`: what it returns."""

    def look(self, file: str, frame: FrameType, event: str, value: Any, file_of: FileOf) -> None: ...

    def found(self) -> dict[str, Any]: ...


def arguments(frame: FrameType) -> list[Any]:
    """Those of the function, as they are now."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in VARIADIC)
    local = frame.f_locals
    return [local[name] for name in code.co_varnames[:count] if name in local]


@cache
def slots_of(kind: type) -> tuple[str, ...]:
    """Attributes that objects of this class have outside of their dictionary."""
    names = list(getattr(kind, "__struct_fields__", ()))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in dict.fromkeys(names) if name[:2] != "__")


def fields(value: Any) -> list[Any]:
    """Values of an object's attributes; of its own ones, never of a property."""
    found = [getattr(value, name, None) for name in slots_of(type(value))]
    found += getattr(value, "__dict__", {}).values()
    return found


def elements(value: Any) -> list[Any]:
    """What lies one level deeper: elements of a container, else attributes of an object of the packages."""
    if isinstance(value, tuple | list | set | frozenset):
        return list(value)[:ELEMENTS_MAX] + (fields(value) if is_ours(value) else [])
    if isinstance(value, dict):
        return list(value.values())[:ELEMENTS_MAX]
    if is_ours(value):
        return fields(value)
    gradient = getattr(value, "grad", None) if is_tensor(value) else None
    return [] if gradient is None else [gradient]


def is_ours(value: Any) -> bool:
    """An instance of a class of the packages."""
    return is_of_packages(type(value))


@cache
def is_of_packages(kind: type) -> bool:
    module = getattr(kind, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in PACKAGES


def is_tensor(value: Any) -> bool:
    return is_tensor_class(type(value))


@cache
def is_tensor_class(kind: type) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and issubclass(kind, tensor)


def with_elements(values: list[Any]) -> Iterator[Any]:
    for value in values:
        yield value
        yield from elements(value)


# ---- the gradient


@cache
def may_be_buffer(kind: type) -> bool:
    """Asked for every value of every call: most are none."""
    plain = issubclass(kind, bytes | bytearray | memoryview | mmap.mmap) or kind.__module__ == "numpy"
    return plain or is_tensor_class(kind)


def view_of(value: Any) -> memoryview | None:
    """Its bytes, if it is a buffer of some size."""
    if not may_be_buffer(type(value)):
        return None
    if is_tensor(value):
        if value.device.type != "cpu" or value.numel() * value.element_size() < BUFFER_BYTES_MIN:
            return None
        value = value.detach().numpy()
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None  # a scalar, or a view that was released
    return view.cast("B") if view.nbytes >= BUFFER_BYTES_MIN and view.c_contiguous else None


def told_of(value: Any, state: float) -> str | None:
    """What a buffer holds, by three samples of it: a number, or "mixed" (several, or bytes that are sealed). None: it
    is no buffer, or holds the state or a part of it (beside it, a state has other numbers of the script), or zeros."""
    view = view_of(value)
    if view is None:
        return None
    places = (0, (len(view) - SAMPLE_BYTES) // 8 * 4, len(view) - SAMPLE_BYTES)
    samples = {bytes(view[place : place + SAMPLE_BYTES]) for place in places}
    if struct.pack("<f", state) * (SAMPLE_BYTES // 4) in samples:
        return None
    word = next(iter(samples))[:4]
    number: float = struct.unpack("<f", word)[0]
    if samples != {word * (SAMPLE_BYTES // 4)}:
        return "mixed"
    return f"{number:g}" if number else None


class GradientWatch:
    """Functions that data of a round passes, and how often the driver is entered. `state`: what the model's parameters
    are full of; `driver`: file of the driver; `files` false: only entries of the driver are counted."""

    def __init__(self, *, state: float, driver: str, files: bool) -> None:
        self._state, self._driver, self._files = state, driver, files
        self._passed: dict[tuple[str, str], tuple[float, str]] = {}
        self._entries: dict[int, Counter[str]] = defaultdict(Counter)
        self._others: Counter[str] = Counter()

    def look(self, file: str, frame: FrameType, event: str, value: Any, file_of: FileOf) -> None:
        code = frame.f_code
        if file == self._driver and event == "call":
            self._driven(frame, file_of)
        if not self._files or (file, code.co_qualname) in self._passed:
            return
        for one in with_elements([*arguments(frame), value]):
            told = told_of(one, self._state)
            if told is not None:
                self._passed[file, code.co_qualname] = (time.monotonic(), told)
                return

    def _driven(self, frame: FrameType, file_of: FileOf) -> None:
        """A call from elsewhere, with what it brings."""
        if frame.f_back is not None and file_of(frame.f_back.f_code) == self._driver:
            return
        for value in arguments(frame)[1:]:
            number = round_of(value)
            name = f"{frame.f_code.co_name} {type(value).__name__}"
            if number is not None:
                self._entries[number][name] += 1
            elif told_of(value, self._state):
                self._others[f"{name} (data)"] += 1
            elif is_ours(value):
                self._others[name] += 1

    def found(self) -> dict[str, Any]:
        passed = [(at_s, file, name, told) for (file, name), (at_s, told) in list(self._passed.items())]
        entries = {number: dict(counted) for number, counted in list(self._entries.items())}
        return {"passed": sorted(passed), "entries": entries, "others": dict(self._others)}


def round_of(value: Any) -> int | None:
    """Of an event of a round: it says so itself, or by its tag."""
    if not is_ours(value):
        return None
    number = getattr(value, "round", None) or getattr(getattr(value, "tag", None), "round", None)
    return number if isinstance(number, int) else None


# ---- the request


class RequestWatch:
    """Functions that the request passes, and its forms. A form is an instance of a class of the packages that was made
    since the request was there, and that either has its name and its key among its fields, or holds such a one, another
    form, or bytes with both. `naming`: those made on the way that only have the newcomer's id among their fields."""

    def __init__(self, *, name: str, key: bytes, site: str) -> None:
        self._name, self._key, self._site = name, key, site
        self._passed: dict[tuple[str, str], tuple[float, str]] = {}
        self._forms: dict[str, tuple[float, str, str]] = {}
        self._naming: dict[str, tuple[float, str]] = {}
        self._kept: dict[int, Any] = {}
        """Forms by their identity; kept, so that it is not another's."""
        self._before: dict[int, Any] | None = None
        """What was there before; None: the request has not come yet."""
        self._arrived_s: float | None = None

    def look(self, file: str, frame: FrameType, event: str, value: Any, file_of: FileOf) -> None:
        if self._arrived_s is not None:
            return
        values = list(with_elements([*arguments(frame), value]))
        if self._before is None and not self._begins(values):
            return
        function = f"{file} {frame.f_code.co_qualname}"
        told = [word for word in (self._told(one, frame, function) for one in values) if word]
        if told:
            self._passed.setdefault((file, frame.f_code.co_qualname), (time.monotonic(), told[0]))

    def _begins(self, values: list[Any]) -> bool:
        if not any(type(value).__name__ == "JoinRequest" or self._is_marked(value) for value in values):
            return False
        there = [one for one in gc.get_objects() if is_ours(one)]
        for _ in range(3):  # what only holds words and numbers is not known to the collector, but to who holds it
            there += [one for one in gc.get_referents(*there) if is_ours(one)]
            there = list({id(one): one for one in there}.values())
        self._before = {id(one): one for one in there if type(one).__name__ != "JoinRequest"}
        return True

    def _told(self, value: Any, frame: FrameType, function: str) -> str:
        """What of the request this is; empty: nothing."""
        if self._is_marked(value):
            return "bytes"
        if not self._is_new(value):
            return ""
        kind = type(value).__name__
        known = id(value) in self._kept
        if self._carries(value, CARRIES_DEPTH) and (known or self._is_caused(value, frame)):
            if kind == DESTINATION:
                self._arrived_s = time.monotonic()
                self._before = {}
                return kind
            self._kept[id(value)] = value
            if kind not in self._forms:
                self._forms[kind] = (time.monotonic(), function, self._held_in(value))
            return kind
        if kind not in self._naming and self._names(value) and self._is_caused(value, frame):
            self._naming[kind] = (time.monotonic(), function)
        return ""

    def _is_marked(self, value: Any) -> bool:
        """Bytes with the newcomer's name and key in it."""
        if not isinstance(value, bytes | bytearray | memoryview) or len(value) > MESSAGE_BYTES_MAX:
            return False
        held = bytes(value) if isinstance(value, memoryview) else value
        return self._key in held and self._name.encode() in held

    def _is_new(self, value: Any) -> bool:
        return is_ours(value) and not isinstance(value, type) and id(value) not in (self._before or {})

    def _carries(self, value: Any, depth: int) -> bool:
        if self._is_marked(value):
            return True
        if not depth or not (self._is_new(value) or isinstance(value, tuple | list | dict)):
            return False
        inside = elements(value)
        plain = [one for one in inside if isinstance(one, str | bytes)]
        if self._name in plain and self._key in plain:
            return True
        return any(self._carries(one, depth - 1) for one in inside)

    def _held_in(self, value: Any) -> str:
        """What a form carries the request as."""
        inside = elements(value)
        if self._name in [one for one in inside if isinstance(one, str)]:
            return "name and key"
        for one in inside:
            for deeper in (one, *([] if is_ours(one) else elements(one))):
                if (self._is_marked(deeper) or is_ours(deeper)) and self._carries(deeper, CARRIES_DEPTH):
                    return type(deeper).__name__
        return "something deeper"

    def _names(self, value: Any) -> bool:
        return any(isinstance(one, str) and one == self._site for one in fields(value))

    def _is_caused(self, value: Any, frame: FrameType | None) -> bool:
        """It was made because of the request: it holds another form, or some function that is running was called with
        one. A request is its own cause: the site asks again at every beat."""
        if type(value).__name__ == "JoinRequest":
            return True
        if any(id(one) in self._kept or self._is_marked(one) for one in elements(value)):
            return True
        while frame is not None:
            for one in with_elements(arguments(frame)):
                if one is not value and (id(one) in self._kept or self._is_marked(one)):
                    return True
            frame = frame.f_back
        return False

    def found(self) -> dict[str, Any]:
        passed = [(at_s, file, name, told) for (file, name), (at_s, told) in list(self._passed.items())]
        forms = {kind: list(where) for kind, where in list(self._forms.items())}
        naming = {kind: list(where) for kind, where in list(self._naming.items())}
        return {"passed": sorted(passed), "forms": forms, "naming": naming, "arrived_s": self._arrived_s}
