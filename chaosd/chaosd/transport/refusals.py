"""The log lines about those who were refused: what an operator needs to read, and no more of it than a disk can take.

A site that waits to be let in knocks twice a second. The same host with the same reason is told once a minute, so that
the line which says how to let it in stays on the operator's screen; others are told up to a number in each window.
"""

from __future__ import annotations

import logging

REFUSALS_LOGGED_PER_WINDOW = 20
REFUSAL_WINDOW_S = 10.0
"""A host that knocks all day, each time in another way, must not fill the disk with log lines."""

REPEATED_S = 60.0
REMEMBERED_MAX = 64
REASON_CHARACTERS_MAX = 500

_log = logging.getLogger("chaosd.transport")


class RefusalLog:
    """See the module."""

    def __init__(self) -> None:
        self._window_ends_s = 0.0
        self._in_window = 0
        self._told_at_s: dict[tuple[str, str], float] = {}
        """When a refusal of this host for this reason was told last, the one told longest ago first."""

    def tell(self, host: str, reason: str, *, now_s: float) -> None:
        """`host`: where the refused connection came from; now_s: of a clock that does not jump."""
        same = (host, reason[:REASON_CHARACTERS_MAX])
        told_at_s = self._told_at_s.get(same)
        if told_at_s is not None and now_s < told_at_s + REPEATED_S:
            return
        if now_s >= self._window_ends_s:
            dropped = self._in_window - REFUSALS_LOGGED_PER_WINDOW
            if dropped > 0:
                _log.warning("refused %d more connections in the %g s before", dropped, REFUSAL_WINDOW_S)
            self._window_ends_s, self._in_window = now_s + REFUSAL_WINDOW_S, 0
        self._in_window += 1
        if self._in_window > REFUSALS_LOGGED_PER_WINDOW:
            return
        _log.warning("refused a connection from %s: %s", *same)
        self._told_at_s.pop(same, None)
        self._told_at_s[same] = now_s
        if len(self._told_at_s) > REMEMBERED_MAX:
            del self._told_at_s[next(iter(self._told_at_s))]
