"""What a worker did when, for the picture of a step (`chaosd run --timeline`)."""

from __future__ import annotations

from chaos_protocols.worker_group.messages import SPANS_MAX, DoneSpan
from chaos_protocols.worker_group.suspicion import Work

TOGETHER_S = 20e-6
"""Waits that are no further apart are one: a message that is sent between them takes less to be seen in a picture."""


class SpanLog:
    """Of one worker; empty where nobody has asked (`wanted`). Times are those of `perf_counter`, which on Linux is the
    monotonic clock that all processes of a machine share."""

    def __init__(self) -> None:
        self.wanted = False
        self._spans: list[DoneSpan] = []

    def begin(self, *, wanted: bool) -> None:
        """Of a generation; what was noted before is of interest to nobody."""
        self.wanted, self._spans = wanted, []

    def add(self, work: Work, start_s: float, end_s: float, micro_batch: int = -1) -> None:
        """This was done; at most `SPANS_MAX` are kept."""
        if not self.wanted:
            return
        last = self._spans[-1] if self._spans else None
        if last is not None and work is Work.WAITING is last.work and start_s - last.end_s <= TOGETHER_S:
            self._spans[-1] = DoneSpan(work, last.start_s, end_s)
        elif len(self._spans) < SPANS_MAX:
            self._spans.append(DoneSpan(work, start_s, end_s, micro_batch))

    def waited(self, until_s: float) -> None:
        """Since the last thing that was done, if there is one."""
        if self._spans and len(self._spans) < SPANS_MAX:
            self.add(Work.WAITING, self._spans[-1].end_s, until_s)

    def taken(self) -> tuple[DoneSpan, ...]:
        """All of them; the next one begins anew."""
        spans, self._spans = tuple(self._spans), []
        return spans
