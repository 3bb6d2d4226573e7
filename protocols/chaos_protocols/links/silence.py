"""Whether a neighbour with a live link is still there: each of its connections is judged by itself (spec 3.5, 3.13).

Driven by `LinkTable`. Heartbeats are small and pass where bulk does not (a path that swallows full-size packets); bulk
passes where the control connection is dead. So neither vouches for the other: bulk that moves excuses late heartbeats
for a bounded time, since they queue behind it, and heartbeats do not excuse bulk that stands still. Bytes that the far
end's system acknowledges excuse echoes alone: it acknowledges those for a daemon that is stopped, too.

The limit of silence follows what the link has shown: gaps between the neighbour's words, and how late it says that it
is itself. On a link without such gaps it is the failure timeout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos_protocols.events import ConnectionProgress
from chaos_protocols.wire.bulk import STREAM_AVERAGING

SILENCE_FACTOR_MAX = 4.0
"""The limit of silence is at most so many failure timeouts, whatever was seen."""
GAP_FACTOR = 2.0
"""A neighbour may be silent for so many times the longest gap that was seen lately."""
GAP_KEPT = 0.98
"""Of the longest gap, with each heartbeat: half of it is left after 34 of them, 9 s at the default timeout."""
BEHIND_BULK_FACTOR = 3.0
"""Bulk bytes that move excuse a control connection that is silent for so many times the limit."""
REDIALLED_AGAIN_FACTOR = 30.0
"""A link of which one connection was dead is made anew; if that comes again within so many failure timeouts, it is
down."""
STALL_FACTOR = 2.0
"""Bulk bytes that the far end does not acknowledge for so many times the limit mean that the link is dead."""


@dataclass(slots=True)
class LinkWatch:
    """What was heard over one link, and when."""

    heard_s: float = 0.0
    echoed_s: float = 0.0
    bulk_s: float = 0.0
    """When bulk bytes last moved, in either direction."""
    received_s: float = 0.0
    """When bulk bytes last came from the neighbour."""
    rounds_s: float = 0.0
    """When bytes of a round, or of its result, last came."""
    echo_sequence: int = 0
    """The highest of our beats that the neighbour has named."""
    gap_s: float = 0.0
    """The longest silence lately, fading."""
    late_s: float = 0.0
    """How late the neighbour's own daemon is, as it says."""
    redialled_s: float | None = None
    """When the link was last made anew since one of its connections was dead."""
    standing: dict[int, float] = field(default_factory=dict)
    """Bulk streams with unacknowledged bytes, and since when none of these was acknowledged."""

    def connected(self, *, now_s: float) -> None:
        """A connection is ready; what was seen of the link before still counts."""
        self.heard_s = self.echoed_s = self.bulk_s = self.received_s = now_s
        self.standing.clear()

    def restarted(self) -> None:
        """It is another start of the neighbour's daemon, or a new link: it counts our beats anew."""
        self.echo_sequence = 0

    def heard(self, *, now_s: float, late_s: float) -> None:
        """Anything at all arrived over the control connection. `late_s`: by how much this site is late itself."""
        self.gap_s = max(self.gap_s, now_s - self.heard_s - late_s)
        self.heard_s = now_s

    def beat(self, echo_sequence: int, neighbour_late_s: float, *, now_s: float, late_s: float) -> None:
        """A heartbeat arrived: the neighbour hears us, if it names a beat that it has not named before."""
        self.gap_s *= GAP_KEPT
        self.heard(now_s=now_s, late_s=late_s)
        self.late_s = neighbour_late_s
        if echo_sequence > self.echo_sequence:
            self.gap_s = max(self.gap_s, now_s - self.echoed_s - late_s)
            self.echo_sequence, self.echoed_s = echo_sequence, now_s

    def progressed(self, connection: ConnectionProgress, *, now_s: float, late_s: float) -> None:
        """Bytes of one connection moved, or did not."""
        if connection.stream is None:
            if connection.received:  # a long frame, with heartbeats behind it
                self.heard(now_s=now_s, late_s=late_s)
            if connection.acknowledged:
                self.echoed_s = now_s
            return
        if connection.received:
            self.received_s = now_s
            if connection.stream == STREAM_AVERAGING:
                self.rounds_s = now_s
        if connection.received or connection.acknowledged:
            self.bulk_s = now_s
        if connection.waiting and not connection.acknowledged:
            self.standing.setdefault(connection.stream, now_s)
        else:
            self.standing.pop(connection.stream, None)

    def forgive(self, late_s: float, *, now_s: float) -> None:
        """This site stood still for so long: that time is nobody's silence."""
        self.heard_s = min(now_s, self.heard_s + late_s)
        self.echoed_s = min(now_s, self.echoed_s + late_s)
        self.bulk_s = min(now_s, self.bulk_s + late_s)
        self.received_s = min(now_s, self.received_s + late_s)
        for stream, since_s in self.standing.items():
            self.standing[stream] = min(now_s, since_s + late_s)

    def limit_s(self, failure_timeout_s: float) -> float:
        """So long may the neighbour be silent."""
        shown_s = max(GAP_FACTOR * self.gap_s, failure_timeout_s + self.late_s)
        return min(SILENCE_FACTOR_MAX * failure_timeout_s, max(failure_timeout_s, shown_s))

    def silence(self, failure_timeout_s: float, *, now_s: float) -> str:
        """Why the neighbour counts as silent; empty: it does not."""
        limit_s = self.limit_s(failure_timeout_s)
        silent_s, unheard_s = now_s - self.heard_s, now_s - self.echoed_s
        if min(silent_s, now_s - self.received_s) > limit_s:
            return f"silent for {silent_s:.2f} s"
        if min(unheard_s, now_s - self.bulk_s) > limit_s:
            return f"does not hear us for {unheard_s:.2f} s"
        return ""

    def dead_connection(self, failure_timeout_s: float, *, now_s: float) -> str:
        """Why one connection counts as dead though others of the link live; empty: none does."""
        limit_s = self.limit_s(failure_timeout_s)
        silent_s, unheard_s = now_s - self.heard_s, now_s - self.echoed_s
        behind_s = BEHIND_BULK_FACTOR * limit_s
        if max(silent_s, unheard_s) > behind_s:
            what = "is silent" if silent_s > behind_s else "does not answer"
            return f"its control connection {what} for {max(silent_s, unheard_s):.2f} s, though bulk bytes move"
        if self.standing:
            stream = min(self.standing, key=lambda one: (self.standing[one], one))
            standing_s = now_s - self.standing[stream]
            if standing_s > STALL_FACTOR * limit_s:
                return (
                    f"bulk stream {stream}: sent bytes were not acknowledged for {standing_s:.2f} s, though the link "
                    "is not silent: does something on the way drop large packets? `chaosd doctor` tries"
                )
        return ""

    def unacknowledged_s(self, stream: int, *, now_s: float) -> float:
        """For how long bytes of that stream have waited of which none was acknowledged; 0: none do."""
        return now_s - self.standing[stream] if stream in self.standing else 0.0

    def may_be_redialled(self, failure_timeout_s: float, *, now_s: float) -> bool:
        """Once: a connection that dies again soon means a path that cannot be used. The next time is then far off."""
        before_s, self.redialled_s = self.redialled_s, now_s
        return before_s is None or now_s - before_s > REDIALLED_AGAIN_FACTOR * failure_timeout_s
