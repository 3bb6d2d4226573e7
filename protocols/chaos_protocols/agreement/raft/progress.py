"""How far one follower is, as its leader sees it, and what may be sent to it now (etcd's three modes, thesis 10.2.1 on
pipelining)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum


class Mode(Enum):
    """PROBE: where the logs meet is not known; one append with entries for each answer. REPLICATE: appends follow each
    other without waiting, up to IN_FLIGHT_APPENDS_MAX. SNAPSHOT: the follower needs entries that are gone; a snapshot
    is on its way."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True, kw_only=True)
class Progress:
    """`contact_s`: when its last answer of this term came. `tenure`: see AppendRequest. `next_index` is the first
    entry to send, or the index of the snapshot on its way. `probe_ready`: it has not been sent entries since its last
    answer. `in_flight`: last index of each unanswered append. `snapshot_missing`: it said, after the snapshot had been
    sent, that it does not have it. `proof_sent_s`: when it was shown the leader's votes, as it had asked."""

    next_index: int
    tenure: int
    contact_s: float
    match_index: int = 0
    mode: Mode = Mode.PROBE
    probe_ready: bool = True
    in_flight: deque[int] = field(default_factory=deque)
    snapshot_sent_s: float = 0.0
    snapshot_missing: bool = False
    proof_sent_s: float = float("-inf")

    def proof_sent(self, now_s: float) -> None:
        self.proof_sent_s = now_s

    def hear(self, now_s: float) -> None:
        self.contact_s = now_s

    def probe_sent(self) -> None:
        self.probe_ready = False

    def entries_sent(self, last_index: int) -> None:
        self.next_index = last_index + 1
        self.in_flight.append(last_index)

    def snapshot_sent(self, index: int, now_s: float) -> None:
        self.mode = Mode.SNAPSHOT
        self.in_flight.clear()
        self.next_index = index
        self.snapshot_sent_s, self.snapshot_missing = now_s, False

    def matched(self, index: int) -> bool:
        """It holds the leader's log up to `index`. True: more than was known before."""
        more = index > self.match_index
        if more:
            self.match_index = index
        while self.in_flight and self.in_flight[0] <= index:
            self.in_flight.popleft()
        if self.mode is Mode.PROBE or (self.mode is Mode.SNAPSHOT and self.match_index >= self.next_index):
            self.mode = Mode.REPLICATE
            self.in_flight.clear()
            self.next_index = self.match_index + 1
        elif self.next_index <= self.match_index:
            self.next_index = self.match_index + 1
        return more

    def rejected(self, previous_index: int, conflict_index: int, last_index: int) -> None:
        """Its log does not contain `previous_index` of ours. Answers that are older than what is known change nothing.
        If that is the last entry that it had acknowledged, which every beat asks for, or its log is shorter than that,
        then it lost its log, or the end of it, and must be sent it again: so does a machine that was copied before it
        had acknowledged that. A late answer that looks the same costs one more probe."""
        if self.mode is Mode.SNAPSHOT:
            self.snapshot_missing = self.snapshot_missing or previous_index >= self.next_index
            return
        if previous_index >= self.next_index:
            return
        if last_index < self.match_index or previous_index == self.match_index:
            self.match_index = 0
        elif previous_index < self.match_index or (self.mode is Mode.PROBE and previous_index != self.next_index - 1):
            return
        self.mode = Mode.PROBE
        self.probe_ready = True
        self.in_flight.clear()
        self.next_index = max(self.match_index + 1, min(conflict_index, previous_index), 1)
