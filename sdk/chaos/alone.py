"""Rounds of a script that trains without a daemon."""

from __future__ import annotations

from collections.abc import Callable

from chaos.errors import HalfAppliedStep
from chaos.signals import ExitSignals
from chaos.skipped import BY_THE_SCRIPT, SKIPS_SINCE, SkippedRounds
from chaos.sync import SyncSession
from chaos_protocols.wire.worker import RoundContributed, RoundSkipped


class AloneRounds:
    """`round`: the last one applied. What is not finite is no more applied, and told the same, than among others."""

    def __init__(self, signals: ExitSignals, say: Callable[[str], None]) -> None:
        self.round = 0
        self._signals = signals
        self._skips = SkippedRounds(say)
        self._skips.daemon_version = SKIPS_SINCE

    def make(self, session: SyncSession) -> bool:
        """The next round, unless this site has nothing to give to it. Raises HalfAppliedStep, NothingFinite."""
        number = self.round + 1
        with self._signals:
            try:
                why = session.apply_alone(number)
            except BaseException as error:
                raise HalfAppliedStep(f"the update of round {number} failed: {error}") from error
            if not why:
                self.round = number
        if why != BY_THE_SCRIPT:  # that leaves nobody else with a round of less weight
            gave = RoundSkipped(round=number, reason=why) if why else RoundContributed(round=number, weight=1.0)
            self._skips.note(gave)
        return True
