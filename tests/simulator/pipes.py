"""Ways with a rate, which all bulk streams of a link share: averaging first, as the daemon's link has it
(`chaosd.transport.stream`), yet a state that is on its way too keeps a quarter.

A frame takes the way piece by piece, and a piece that has begun is ended. What waits for a connection that is over
takes nothing any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.simulator.outbox import AVERAGING

PIECE_BYTES = 64 << 10
AVERAGING_SHARE = 3
"""So many bytes of averaging go for each of a state while both wait: `chaosd.transport.stream.GIVE_WAY_FACTOR`."""

Way = tuple[str, str]


@dataclass(slots=True)
class Waiting:
    """A frame of which `left_bytes` have yet to take the way. It arrives at `arrives_s` at the earliest."""

    connection: Any
    kind: str
    message: Any
    left_bytes: int
    arrives_s: float


@dataclass(slots=True)
class _Pipe:
    """One way. `given_bytes`: of averaging since a state had its turn, while one waited."""

    averaging: deque[Waiting] = field(default_factory=deque)
    states: deque[Waiting] = field(default_factory=deque)
    given_bytes: int = 0
    busy: bool = False
    taking: Waiting | None = None
    """Of which a piece is on its way."""


class Pipes:
    """See the module. `rate(way)`: in bytes a second, None: as fast as one likes; `moved(way, waiting)`: a piece has
    gone, and more of the frame are to come; `carried(way, waiting)`: the last byte has gone; `is_over(way,
    connection)`: nothing arrives any more."""

    def __init__(
        self,
        schedule: Callable[[float, Callable[[], None]], None],
        rate: Callable[[Way], float | None],
        moved: Callable[[Way, Waiting], None],
        carried: Callable[[Way, Waiting], None],
        is_over: Callable[[Way, Any], bool],
    ) -> None:
        self._schedule, self._rate, self._is_over = schedule, rate, is_over
        self._moved, self._carried = moved, carried
        self._pipes: dict[Way, _Pipe] = {}

    def is_busy(self, way: Way) -> bool:
        """Something has yet to take it."""
        pipe = self._pipes.get(way)
        return pipe is not None and pipe.busy

    def waits_s(self, way: Way) -> float:
        """Until all that waits has taken it, at most."""
        pipe, rate = self._pipes.get(way), self._rate(way)
        if pipe is None or not pipe.busy or not rate:
            return 0.0
        taking = [] if pipe.taking is None else [pipe.taking]
        return sum(one.left_bytes for one in (*taking, *pipe.averaging, *pipe.states)) / rate

    def put(self, way: Way, waiting: Waiting) -> None:
        """Behind what waits of its kind."""
        pipe = self._pipes.setdefault(way, _Pipe())
        (pipe.averaging if waiting.kind == AVERAGING else pipe.states).append(waiting)
        if not pipe.busy:
            self._go_on(way, pipe)

    def _go_on(self, way: Way, pipe: _Pipe) -> None:
        for queue in (pipe.averaging, pipe.states):
            while queue and self._is_over(way, queue[0].connection):
                queue.popleft()
        pipe.busy, pipe.taking = bool(pipe.averaging or pipe.states), None
        if not pipe.busy:
            return
        turn_of_state = not pipe.averaging or (pipe.states and pipe.given_bytes >= AVERAGING_SHARE * PIECE_BYTES)
        queue = pipe.states if turn_of_state else pipe.averaging
        piece_bytes = min(PIECE_BYTES, queue[0].left_bytes)
        if turn_of_state:
            pipe.given_bytes = 0
        elif pipe.states:
            pipe.given_bytes += piece_bytes
        rate = self._rate(way)
        takes_s = piece_bytes / rate if rate else 0.0
        pipe.taking = queue.popleft()
        self._schedule(takes_s, partial(self._gone, way, pipe, pipe.taking, piece_bytes))

    def _gone(self, way: Way, pipe: _Pipe, waiting: Waiting, piece_bytes: int) -> None:
        waiting.left_bytes -= piece_bytes
        if waiting.left_bytes:
            self._moved(way, waiting)
            (pipe.averaging if waiting.kind == AVERAGING else pipe.states).appendleft(waiting)
        else:
            self._carried(way, waiting)
        self._go_on(way, pipe)
