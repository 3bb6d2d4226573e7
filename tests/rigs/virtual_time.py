"""An event loop whose clock jumps to the next timer: exact times, and no waiting. Without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Waits for nothing: when there is only a timer left, the clock jumps to it."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        select = self._selector.select

        def jump(timeout: float | None = None) -> Any:
            if timeout:
                self._now_s += timeout
            return select(0)

        self._selector.select = jump

    def time(self) -> float:
        return self._now_s


def run(main: Callable[[], Awaitable[None]]) -> None:
    """To its end."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
