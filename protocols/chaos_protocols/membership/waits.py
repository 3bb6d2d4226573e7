"""Whom the open round waits for, as the scheduler told it, in words for everybody; and when this site is the one.

Only the scheduler hears from all sites who has given its part; it tells all of them as long as a round waits (spec
9.22). Driven by `Participation`.
"""

from __future__ import annotations

from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.membership.absence import WorkerAbsence
from chaos_protocols.membership.scheduler_client import SchedulerClient
from chaos_protocols.membership.skips import Skips
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.wire.waits import UNANSWERED, RoundWaits, SiteWait

STEPS_S = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600)
"""How long is told in steps, so that a wait makes a few lines and not one a second."""

NAMED_MAX = 8
"""In a sentence."""


class Waits:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        client: SchedulerClient,
        rounds: RoundMachine,
        absence: WorkerAbsence,
        skips: Skips,
    ) -> None:
        self._outbox = outbox
        self._replica = replica
        self._client = client
        self._rounds = rounds
        self._absence, self._skips = absence, skips
        self._told: RoundWaits | None = None
        self._told_s = outbox.now_s
        self._doubt: tuple[int, float] = (0, outbox.now_s)
        """The resolved epoch that is in doubt, and since when it is known here."""

    def heard(self, source: SiteId, message: RoundWaits) -> None:
        """The scheduler's word."""
        if source != self._client.scheduler:
            return
        self._told, self._told_s = message, self._outbox.now_s
        own = next((one for one in message.waits if one.site == self._replica.site), None)
        if own is None or own.reason:
            return  # nothing is held against a script whose daemon was behind
        if 0 < message.limit_s <= own.seconds and self._is_missing(message.round):
            self._absence.overdue(own.seconds)

    def _is_missing(self, round_number: int) -> bool:
        """This site's worker, which trains, has not given its part to the open round, and nothing holds it back."""
        rounds = self._rounds
        running, own = rounds.running, rounds.own
        open_here = running is not None and running.round == round_number
        return open_here and rounds.active and not own.given and not own.is_held(round_number)

    def look(self) -> None:
        """At every beat: since when a round is in doubt."""
        roster = self._replica.roster
        epoch = roster.epoch if roster.resolving else 0
        if (epoch == 0) != (self._doubt[0] == 0):
            self._doubt = (epoch, self._outbox.now_s)

    @property
    def waited_for(self) -> tuple[SiteWait, ...]:
        """As of now; nothing while rounds go on. A joiner counts from the round of its snapshot, which may be the very
        one that waits: only what was seen to be done is over."""
        message = self._fresh()
        if message is None or self._rounds.known_round >= message.round:
            return ()
        roster = self._replica.roster
        view = roster.view_of(message.round)  # a site may be out of it since that was said
        waits = tuple(one for one in message.waits if one.reason != UNANSWERED or roster.resolving)
        return tuple(one for one in waits if view is None or one.site in view.members)

    @property
    def resting(self) -> tuple[SiteWait, ...]:
        """Sites that are not waited for, though their workers have the state."""
        message = self._fresh()
        return () if message is None else message.rests

    def _fresh(self) -> RoundWaits | None:
        stale = self._outbox.now_s - self._told_s > self._outbox.settings.waits_stale_s
        return None if stale or self._client.is_lost else self._told

    def reason(self) -> str:
        """Why the open round is not done; empty: it is about to be."""
        epoch, since_s = self._doubt
        in_doubt_s = self._outbox.now_s - since_s
        if epoch and in_doubt_s > self._outbox.settings.waits_told_s:
            silent = self.waited_for
            asks = f"a failure is being resolved {_lasting(in_doubt_s)}: the scheduler asks every site how far it is"
            return f"{asks}, and waits for the answer of {self._named(list(silent))}" if silent else asks
        waits = self.waited_for
        if not waits:
            return self._why_empty()
        assert self._told is not None
        scripts = [one for one in waits if not one.reason]
        parts = [self._why_scripts(scripts)] if scripts else []
        for reason in dict.fromkeys(one.reason for one in waits if one.reason):
            held_up = [one for one in waits if one.reason == reason]
            parts.append(f"{self._named(held_up)} {_lasting(_longest_s(held_up))}: {reason}")
        return f"round {self._told.round} waits for {'; and for '.join(parts)}"

    def _why_scripts(self, waits: list[SiteWait]) -> str:
        lasting = _lasting(_longest_s(waits))
        if any(one.site == self._replica.site for one in waits):
            doing = "nothing comes from it; what it does on purpose belongs into `with coordinator.evaluating():`"
            return f"this site's script {lasting}: {doing}"
        return f"{self._named(waits)} {lasting}: the script there gives nothing"

    def _named(self, waits: list[SiteWait]) -> str:
        names = [self.name_of(one.site) for one in waits[:NAMED_MAX]]
        others = [f"{len(waits) - NAMED_MAX} others"] if len(waits) > NAMED_MAX else []
        return ", ".join([*names, *others])

    def _why_empty(self) -> str:
        message = self._fresh()
        if message is None or not message.empty or self._rounds.known_round >= message.round:
            return ""
        resting = [self.name_of(one.site) for one in message.rests[:NAMED_MAX]]
        who = f"the scripts of {', '.join(resting)} pause or are late" if resting else "no site's script has the state"
        if self._skips.reason:  # this one has, and is asked again and again
            who = f"nobody else has, and at this site {self._skips.reason}"
        return f"round {message.round} waits until a script has something to give: {who}"

    def name_of(self, site: str) -> str:
        """Of a site of the roster."""
        return self._replica.roster.called(SiteId(site))


def _longest_s(waits: list[SiteWait]) -> float:
    return max(one.seconds for one in waits)


def _lasting(seconds: float) -> str:
    step_s = max((step for step in STEPS_S if step <= seconds), default=0)
    unit, count = ("h", step_s // 3600) if step_s >= 3600 else ("min", step_s // 60) if step_s >= 60 else ("s", step_s)
    return f"(for more than {count} {unit})"
