"""At most so many bytes a second in bulk, over all links of this site together. Decides whose piece goes next.

Driven by the streams: each asks before it hands a piece to the kernel. A piece of n bytes occupies this site's way out
for n / rate seconds after the piece before it; kept as the time at which that falls idle, so that late timers cost no
rate. Averaging first: every site waits for a round, only one for a state; of what both want to send a quarter is for
states and all else, so that no transfer looks stalled. Within a class who asked first goes first.

Control frames are not held back: heartbeats and words of the agreement are some kilobytes a second, and who is silent
is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque

PIECE_S = 0.02
"""A piece is cut so that it takes no longer: what waits behind it on the same way out, not of ours, hardly notices."""

PIECE_BYTES_MIN = 4 << 10
"""Three packets of a common path; smaller ones would be headers for the most part."""

AHEAD_S = 0.005
"""So far before its turn a piece may go: above the resolution of the loop's timers (1 ms)."""

AVERAGING_TURNS = 3
"""So many bytes of averaging go for each of all else, while both wait."""


class SendLimit:
    """See the module. `rate_bytes_per_s`: 0 = as fast as the links take it."""

    def __init__(self, rate_bytes_per_s: float = 0.0) -> None:
        self.rate_bytes_per_s = rate_bytes_per_s
        self._averaging: deque[_Waiting] = deque()
        self._others: deque[_Waiting] = deque()
        self._idle_at_s = float("-inf")
        """When all that was let go is out, at this rate."""
        self._owed_bytes = 0
        """What averaging has sent, less AVERAGING_TURNS times what all else has; never far from 0, so that who comes
        late has no more than its next turn to claim."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def piece_bytes(self) -> int:
        """The most that one piece should have; only of use while there is a limit."""
        return max(PIECE_BYTES_MIN, int(self.rate_bytes_per_s * PIECE_S))

    def change(self, rate_bytes_per_s: float) -> None:
        """Another limit, from now on; 0 = none."""
        self.rate_bytes_per_s = rate_bytes_per_s
        self._idle_at_s = min(self._idle_at_s, asyncio.get_running_loop().time())
        self._let_go()

    async def turn(self, size_bytes: int, *, averaging: bool) -> None:
        """Returns when that many bytes may go; whoever goes away before has sent nothing."""
        if not self.rate_bytes_per_s:
            return
        waiting = _Waiting(size_bytes, asyncio.get_running_loop().create_future())
        (self._averaging if averaging else self._others).append(waiting)
        if self._timer is None:
            self._let_go()
        await waiting.may_go

    def _let_go(self) -> None:
        """Whoever's turn it is, and look again when it is the next one's."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        while (queue := self._next()) is not None:
            if self.rate_bytes_per_s and self._idle_at_s > now_s + AHEAD_S:
                self._timer = loop.call_at(self._idle_at_s - AHEAD_S / 2, self._let_go)
                return
            waiting = queue.popleft()
            waiting.may_go.set_result(None)
            self._count(waiting.size_bytes, averaging=queue is self._averaging)
            if self.rate_bytes_per_s:
                self._idle_at_s = max(self._idle_at_s, now_s - AHEAD_S) + waiting.size_bytes / self.rate_bytes_per_s

    def _next(self) -> deque[_Waiting] | None:
        """The queue whose turn it is; None: nobody waits."""
        for queue in (self._averaging, self._others):
            while queue and queue[0].may_go.done():  # who waited went away
                queue.popleft()
        if self._averaging and self._others:
            return self._others if self._owed_bytes >= 0 else self._averaging
        return self._averaging or self._others or None

    def _count(self, size_bytes: int, *, averaging: bool) -> None:
        owed_bytes = self._owed_bytes + (size_bytes if averaging else -AVERAGING_TURNS * size_bytes)
        most_bytes = AVERAGING_TURNS * size_bytes
        self._owed_bytes = max(-most_bytes, min(most_bytes, owed_bytes))


class _Waiting:
    """Somebody with a piece of that many bytes."""

    __slots__ = ("may_go", "size_bytes")

    def __init__(self, size_bytes: int, may_go: asyncio.Future[None]) -> None:
        self.size_bytes = size_bytes
        self.may_go = may_go
