"""The states that a run could go on from, in words: for whom it waits, what there is, what an operator types for it.

Asked by `restore_point.py`, which decides. Source: spec 13.7.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from chaos_protocols.agreement.roster import SiteRecord
from chaos_protocols.named_sites import sites_named
from chaos_protocols.names import SiteId, short
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.restore_awaited import Awaited
from chaos_protocols.scheduler.restore_offers import Candidate, RestoreOffers
from chaos_protocols.wire.recovery import RecoverRequest

NAMED_MAX = 16
"""Sites in one text; of the others the number."""


class RestoreWords:
    """See the module."""

    def __init__(self, facts: Facts, offers: RestoreOffers) -> None:
        self._facts, self._offers = facts, offers

    def meant(self, origin: str) -> set[SiteId]:
        """Whom an operator may mean. Who calls itself as another site does, or as its id begins, does not go for it."""
        records = (*self._facts.roster.sites, *(one.record for one in self._offers.candidates()))
        return sites_named(origin, [(record.site, record.name) for record in records])

    def called(self, record: SiteRecord) -> str:
        """What an operator types for it, and nobody else is called. A mark in it would end the command in the text."""
        words = (record.name, short(record.site))
        return next((word for word in words if "`" not in word and self.meant(word) == {record.site}), record.site)

    def why_it_waits(self, best: Candidate | None, awaited: tuple[Awaited, ...], reached: int, stood_s: float) -> str:
        """For everybody: a state of round `reached`, which is not here; `best` is."""
        lost = f"no member that trains has the state of round {reached}"
        here = "none is here" if best is None else f"the newest here: round {best.round} at {self.called(best.record)}"
        if awaited:
            names = ", ".join(map(str, awaited[:NAMED_MAX]))
            more = f" and {len(awaited) - NAMED_MAX} more" if len(awaited) > NAMED_MAX else ""
            lost += f"; waiting for {names}{more}, which may have it ({here})"
        else:
            lost += f", and no site has another one; waiting for a worker or a checkpoint that has it ({here})"
        if stood_s < self._facts.settings.restore_wait_s:
            return lost
        choices = "" if best is None else f"`{self._command(best)}` goes on from there, "
        return f"{lost}. An operator may decide otherwise: {choices}`chaosd recover --anew` begins again with round 1"

    def offered_by(self, others: Sequence[Candidate]) -> str:
        """What is not taken by itself, for an operator, who may know better."""
        told = min((one for one in others if one.round), key=lambda one: one.rank, default=None)
        if told is None:
            return ""
        known = self._facts.roster.knows(told.record.site)
        why = "which an operator has given up" if known else "but never was in this run"
        return (
            f". {self.called(told.record)} offers a state of round {told.round}, {why}: only an operator can take "
            f"that (`{self._command(told)}`)"
        )

    def what_there_is(self, request: RecoverRequest, offered: Sequence[Candidate]) -> str:
        """For an operator who asked for something else."""
        found = [one for one in offered if one.round]
        found.sort(key=lambda one: one.rank)
        there = "; ".join(f"{self.called(one.record)}:{one.round} ({one.source})" for one in found[:NAMED_MAX])
        if not request.origin:
            return "no fresh worker is there to begin anew with: start a training script at a site, then ask again"
        wanted = f"{request.origin} offers no state of round {request.round}"
        if len(self.meant(request.origin)) > 1:
            wanted = f"more than one site may be meant by {request.origin}"
        return f"{wanted}; there are: {there or 'none, or not yet: each needs its daemon and a worker'}"

    def _command(self, one: Candidate) -> str:
        """As it is typed at a shell, which is to see one word in whatever another site calls itself."""
        return f"chaosd recover --from {shlex.quote(f'{self.called(one.record)}:{one.round}')}"
