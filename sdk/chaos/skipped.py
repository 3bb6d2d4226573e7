"""Rounds to which this worker gives nothing, as its user is told of them."""

from __future__ import annotations

from collections.abc import Callable

from chaos.errors import NothingFinite
from chaos_protocols.wire.worker import RoundContributed, RoundSkipped

SKIPS_SINCE = 4
"""Daemons of this version on know of a worker that gives nothing to a round, or pauses."""

BY_THE_SCRIPT = "the script skips this step"
"""The reason of a skip that is wanted."""
AGAIN_AT = frozenset({100, 1_000, 10_000, 100_000})
"""So many in a row, and it is told once more: whoever looks at the newest lines would take it for a site that gives."""
TRIES_MAX = 100
"""So often one round is computed anew although nothing finite came of it here, and no other site gave anything. A loss
scaler that begins far too high needs about twenty."""


class SkippedRounds:
    """Of several in a row the first is told, some later ones (AGAIN_AT), and at the end how many there were. Where
    every site computes one and the same round again and again, and nothing finite comes of it, no later step will be
    finite either: the script ends."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.daemon_version = 0
        """What the daemon said that both speak."""
        self._say = say
        self._count = 0
        self._round, self._tries = 0, 0
        """The round that was computed last to no finite end, and how often."""

    def note(self, contributed: RoundContributed | RoundSkipped, *, begun: bool = False) -> None:
        """What is about to be given; `begun`: pieces of it have left already. Raises ValueError where the daemon does
        not know such a thing as nothing, and NothingFinite after TRIES_MAX vain tries of one round."""
        self._count_tries(contributed)
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
        others_train = self._tries < self._count
        if contributed.reason != BY_THE_SCRIPT and self._count in AGAIN_AT and others_train:
            self._say(
                f"round {contributed.round}: {self._count} contributions in a row had weight 0 ({contributed.reason}): "
                "the others train on without what this site has; look at its data and its loss, and where its model "
                "itself holds a NaN, end the script and start it again: it gets the state of the run"
            )

    def _count_tries(self, contributed: RoundContributed | RoundSkipped) -> None:
        if isinstance(contributed, RoundContributed) or contributed.reason == BY_THE_SCRIPT:
            self._tries = 0
            return
        self._tries = self._tries + 1 if contributed.round == self._round else 1
        self._round = contributed.round
        if self._tries > TRIES_MAX:
            raise NothingFinite.after(TRIES_MAX, contributed.round, contributed.reason)
