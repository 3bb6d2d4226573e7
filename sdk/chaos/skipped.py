"""Rounds to which this worker gives nothing, as its user is told of them."""

from __future__ import annotations

from collections.abc import Callable

from chaos_protocols.wire.worker import RoundContributed, RoundSkipped

SKIPS_SINCE = 4
"""Daemons of this version on know of a worker that gives nothing to a round, or pauses."""


class SkippedRounds:
    """Of several in a row the first is told, and at the end how many there were."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.daemon_version = 0
        """What the daemon said that both speak."""
        self._say = say
        self._count = 0

    def note(self, contributed: RoundContributed | RoundSkipped, *, begun: bool = False) -> None:
        """What is about to be given; `begun`: pieces of it have left already. Raises ValueError where the daemon does
        not know such a thing as nothing."""
        if isinstance(contributed, RoundContributed):
            if self._count:
                self._say(f"round {contributed.round}: gives again, after {self._count} contribution(s) of weight 0")
            self._count = 0
            return
        if self.daemon_version < SKIPS_SINCE:
            raise ValueError(
                f"{contributed.reason} before round {contributed.round}, and the daemon's release cannot leave this "
                "site out of a round: install the script's release there, or leave such steps out yourself"
            )
        if begun:
            told = (
                "pieces of this site's part have left, so the round is void for all, and the next parts are given whole"
            )
            self._say(f"round {contributed.round}: {contributed.reason}; {told}")
        elif not self._count:
            self._say(f"round {contributed.round}: {contributed.reason}; this site counts with weight 0 in it")
        self._count += 1
