"""A coordinator is used by one thread at a time: what two say in one conversation, each waiting for its own answer,
would leave both waiting for ever, or mix what they give."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


WAIT_FOR_ROUNDS = frozenset({"step", "average", "update", "request_node_exit"})


class OneThread:
    """Who is within a call. The same thread may call again within its own call (`on_update`, say), but for what waits
    for a round: the one that is being applied would never end."""

    def __init__(self, owner: str = "coordinator") -> None:
        self._owner, self._free = owner, threading.RLock()
        self._inside = ""
        self._by = 0
        """The thread that was within a call last."""

    @contextmanager
    def calls(self, name: str) -> Iterator[None]:
        """Raises ValueError where another thread is within a call, and where a call waits for a round within another
        one."""
        if not self._free.acquire(blocking=False):
            raise ValueError(
                f"{self._owner}.{name}() was called in the thread {threading.current_thread().name!r} while another "
                f"one is in {self._owner}.{self._inside or name}(): train in one thread, and have the others tell it "
                "what they want (a queue, an event that the loop looks at)"
            )
        before = self._inside
        try:
            if name in WAIT_FOR_ROUNDS:
                self.refuse_within(name)
            self._inside, self._by = name, threading.get_ident()
            yield
        finally:
            self._inside = before
            self._free.release()

    def refuse_within(self, name: str) -> None:
        """Raises ValueError where this thread is within a call."""
        owner = self._owner
        if self._inside and self._by == threading.get_ident():
            raise ValueError(
                f"{owner}.{name}() was called within {owner}.{self._inside}(): functions that training calls "
                "(on_average=, on_update=, apply=, hooks of an optimizer) run while a round is applied, and cannot "
                "wait for another one: call it in the loop alone"
            )


def one_at_a_time(*names: str) -> Callable[[Class], Class]:
    """Of a class with a `OneThread` in `_one_thread`: these of its methods."""

    def guarded(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            with self._one_thread.calls(name):
                return method(self, *arguments, **named)

        return call

    def decorate(made: Class) -> Class:
        for name in names:
            setattr(made, name, guarded(getattr(made, name), name))
        return made

    return decorate
