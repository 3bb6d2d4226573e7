"""A source as its joiner sees it: what it has to send, what it was asked for, how fast it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from chaos_protocols.changes import checked_change
from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer.ranges import Range, cut, size_of
from chaos_protocols.wire.bulk import BLOCK_BYTES_MAX, BLOCK_BYTES_MIN

WINDOW_S = 0.5
"""Asked from a source: what it delivers in this time. Longer than any round trip, short enough that a slow source does
not hold up the end."""

BLOCK_S = 0.1
"""A block of a slow source takes about this long, so that progress is seen often enough to tell it from a stall."""

BLOCK_BYTES_FIRST = 256 << 10
WINDOW_BYTES_FIRST = 4 << 20
RATE_SAMPLE_S = 0.1

WRONG_BLOCKS_MAX = 3
"""From one source; then it is not asked any more, even if it is the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Times in seconds; raises ValueError when made with one that is not above 0."""

    stall_timeout_s: float = 5.0
    """A source that was asked and shows no progress for so long is given up; also: how long all links may be down."""
    wait_timeout_s: float = 300.0
    """How long a source may say that its snapshot is not taken yet (a round of training may pass)."""
    witness: bool = False
    """A block counts only when a second source names the same hash (`verify = "witness"`)."""

    def __post_init__(self) -> None:
        for name, value in (("stall_timeout_s", self.stall_timeout_s), ("wait_timeout_s", self.wait_timeout_s)):
            if not value > 0:
                raise ValueError(f"{name} = {value}: must be above 0 seconds")


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """What one source has brought so far, right or wrong, and how fast of late."""

    rate_bytes_per_s: float
    received_bytes: int


class SourceState(Enum):
    """Of one source, as the joiner sees it."""

    DOWN = "no link"
    READY = "can be asked"
    WAITING = "its snapshot is not taken yet"
    STALLED = "was asked and showed no progress"
    EXCLUDED = "has nothing right to give"


_LINK_LOST = "its link was lost"
_GONE = "its bytes are wrong, or it left the run, or was started again"
_WRONG = "its bytes are wrong, its snapshot is gone, or it left the run, or was started again"

STATE_CHANGES = {
    (SourceState.DOWN, SourceState.READY): "its link is up",
    (SourceState.DOWN, SourceState.EXCLUDED): _GONE,
    (SourceState.READY, SourceState.DOWN): _LINK_LOST,
    (SourceState.READY, SourceState.WAITING): "it says that its snapshot is not taken yet",
    (SourceState.READY, SourceState.STALLED): "it was asked and showed no progress",
    (SourceState.READY, SourceState.EXCLUDED): _WRONG,
    (SourceState.WAITING, SourceState.DOWN): _LINK_LOST,
    (SourceState.WAITING, SourceState.READY): "it has its snapshot, or its link was renewed",
    (SourceState.WAITING, SourceState.STALLED): "its snapshot was not taken in time",
    (SourceState.WAITING, SourceState.EXCLUDED): _WRONG,
    (SourceState.STALLED, SourceState.READY): "its link was renewed",
    (SourceState.STALLED, SourceState.EXCLUDED): _GONE,
}
"""From, to, and what brings it about. A change that is not here is a defect of ours; docs/protocols/states.md is made
from it."""


@dataclass(slots=True)
class Source:
    site: SiteId
    planned_bytes: int
    state: SourceState = SourceState.DOWN
    todo: deque[Range] = field(default_factory=deque)
    asked: dict[int, int] = field(default_factory=dict)
    """Blocks asked for: start to stop."""
    asked_bytes: int = 0
    checking: dict[int, int] = field(default_factory=dict)
    """Blocks that are here and not yet part of the state."""
    checking_bytes: int = 0
    progress_s: float = 0.0
    waiting_since_s: float = 0.0
    rate: float = 0.0
    crowded: bool = False
    """What an earlier transfer had asked for has come over its link during this one, or did during that."""
    sample_s: float = 0.0
    sample_bytes: int = 0
    wrong: int = 0
    received_bytes: int = 0

    def become(self, state: SourceState, now_s: float) -> None:
        """Another state from now on. Raises LocalProtocolError on a change that the table does not have."""
        self.state = checked_change(STATE_CHANGES, self.state, state, f"source {self.site}")
        if state is SourceState.READY:
            self.progress_s = now_s
        elif state is SourceState.WAITING:
            self.waiting_since_s = now_s

    def hear(self, now_s: float) -> None:
        """It is alive, or owed nothing until now: its patience begins anew."""
        self.progress_s = now_s

    def begin_sample(self, now_s: float) -> None:
        """It was idle: what it is asked for from now on is what its rate is judged by."""
        self.sample_s, self.sample_bytes = now_s, 0

    def take(self, size_bytes: int) -> None:
        """A block of this size came, right or wrong."""
        self.received_bytes += size_bytes

    def refute(self) -> None:
        """A block that it sent, or a hash that it named, was wrong."""
        self.wrong += 1

    @property
    def often_wrong(self) -> bool:
        return self.wrong >= WRONG_BLOCKS_MAX

    @property
    def usable(self) -> bool:
        return self.state in (SourceState.READY, SourceState.WAITING)

    @property
    def outstanding_bytes(self) -> int:
        return self.asked_bytes + self.checking_bytes

    @property
    def left_bytes(self) -> int:
        return size_of(self.todo) + self.asked_bytes

    def give(self, start: int, stop: int) -> None:
        """It is to send this, too, after what it has to send already."""
        self.todo.append((start, stop))

    def ask(self, end: int, block_bytes: int) -> None:
        """The first range that it has to send is asked for now, up to `end`, in blocks."""
        start, stop = self.todo.popleft()
        if end < stop:
            self.todo.appendleft((end, stop))
        self.asked.update(cut(start, end, block_bytes))
        self.asked_bytes += end - start

    def answered(self, start: int) -> int:
        """It came, or need not come; its stop."""
        stop = self.asked.pop(start)
        self.asked_bytes -= stop - start
        return stop

    def check(self, start: int, stop: int) -> None:
        """It is being checked."""
        self.checking[start] = stop
        self.checking_bytes += stop - start

    def checked(self, start: int) -> None:
        """It is part of the state, or wrong."""
        stop = self.checking.pop(start, None)
        if stop is not None:
            self.checking_bytes -= stop - start

    def unasked(self) -> list[Range]:
        """What it was to send and was not asked for yet; it is taken back."""
        ranges = list(self.todo)
        self.todo.clear()
        return ranges

    def owed(self) -> list[Range]:
        """All that it was to send and has not; it is taken back."""
        owed = [*self.unasked(), *self.asked.items()]
        self.asked.clear()
        self.asked_bytes = 0
        return owed

    def window_bytes(self) -> int:
        return max(2 * self.block_bytes(), int(self.rate * WINDOW_S)) if self.rate else WINDOW_BYTES_FIRST

    def block_bytes(self) -> int:
        """A power of two, so that blocks of all sizes lie within the cells of the state."""
        if not self.rate:
            return BLOCK_BYTES_FIRST
        wanted = max(BLOCK_BYTES_MIN, min(BLOCK_BYTES_MAX, int(self.rate * BLOCK_S)))
        return 1 << wanted.bit_length() - 1

    def patience_ends_s(self, settings: TransferSettings) -> float | None:
        """When it is given up, if it owes something and nothing comes before; None: not by time."""
        match self.state:
            case SourceState.WAITING:
                return self.waiting_since_s + settings.wait_timeout_s
            case SourceState.READY:
                return self.progress_s + settings.stall_timeout_s
            case _:
                return None

    def pass_by(self, size_bytes: int, now_s: float) -> None:
        """Bytes came that an earlier transfer had asked for."""
        self.crowded = True
        self.measure(size_bytes, now_s)

    def stall_reason(self, settings: TransferSettings) -> str:
        """Why it is given up now."""
        if self.state is SourceState.WAITING:
            return f"its snapshot was not taken within {settings.wait_timeout_s:g} s"
        return f"it showed no progress for {settings.stall_timeout_s:g} s"

    def measure(self, size_bytes: int, now_s: float) -> None:
        """Blend what arrived into the rate."""
        self.sample_bytes += size_bytes
        elapsed = now_s - self.sample_s
        if elapsed >= RATE_SAMPLE_S:
            sample = self.sample_bytes / elapsed
            self.rate = (self.rate + sample) / 2 if self.rate else sample
            self.sample_s, self.sample_bytes = now_s, 0
