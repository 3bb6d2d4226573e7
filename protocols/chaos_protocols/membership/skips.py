"""What was left out of the rounds because it was no finite number, told once for as long as it lasts.

A contribution that is not finite counts as weight 0; a result that is not finite is applied nowhere (spec 9.20, 9.21).
A NaN seldom comes alone: of a streak the first round is told, with its cause, and how many there were at its end.
Driven by `Participation`.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.events import WorkerContributed
from chaos_protocols.names import SiteId, short
from chaos_protocols.outbox import Outbox

COUNTS = "counts as weight 0; the others go on without it"


class Skips:
    """See the module."""

    def __init__(self, outbox: Outbox, replica: RosterReplica) -> None:
        self.reason = ""
        """Why this site gave nothing to the newest round that its worker answered; empty: it gave something."""
        self._outbox = outbox
        self._replica = replica
        self._rounds = 0
        """Given nothing to, one after the other."""
        self._void: tuple[int, tuple[SiteId, ...]] = (0, ())
        """The newest round whose result was not finite, and who was named."""

    def contributed(self, event: WorkerContributed, *, begun: bool = False) -> None:
        """The worker's word on a round: it gives its part, or says why not. `begun`: pieces of it have left; what
        follows if the rest does not come is told by `given_up`."""
        reason = event.reason if event.weight == 0 else ""
        name, before = self._outbox.facts.name, self.reason
        self.reason = reason
        if not reason:
            if self._rounds:
                told = f"its contributions count again after {self._rounds} round(s) without"
                self._outbox.record("skip", name, before, "done", None, told)
            self._rounds = 0
            return
        self._rounds += 1
        if self._rounds == 1 and not begun:
            self._outbox.record("skip", name, reason, "", None, f"its part of round {event.round} {COUNTS}")

    def given_up(self, round_number: int) -> None:
        """The rest of its part, of which pieces have left, never comes."""
        cause = f"its part of round {round_number} broke off: {self.reason or 'its script ended, or hangs'}"
        reason = "pieces of it had left already, so the round is void: it is applied nowhere; the state stays"
        self._outbox.record("skip", self._outbox.facts.name, cause, "", None, reason)

    def worker_went(self) -> None:
        """What it said counts no more."""
        self.reason, self._rounds = "", 0

    def void(self, round_number: int, culprits: tuple[SiteId, ...]) -> None:
        """The result of this round is not finite."""
        before, named = self._void
        self._void = (round_number, culprits)
        if before == round_number - 1 and named == culprits:
            return
        roster, cause = self._replica.roster, "the result is not finite"
        records = {one.site: one.name for one in roster.sites}
        if culprits:
            sums = ", ".join(records.get(site, short(site)) for site in culprits)
            cause += f": the sum of {sums}, or of a site behind it, was not when it came here"
        self._outbox.record("skip", f"round {round_number}", cause, "", None, "it is applied nowhere; the state stays")
