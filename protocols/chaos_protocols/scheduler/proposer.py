"""Gives commands to the agreement: one at a time, and none that cannot be committed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chaos_protocols.agreement.commands import Command
from chaos_protocols.agreement.raft.config import majority
from chaos_protocols.agreement.raft.messages import Configuration
from chaos_protocols.scheduler.facts import Host
from chaos_protocols.scheduler.pace import Pace
from chaos_protocols.scheduler.proposals import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """The one proposal under way."""

    command: Command
    negotiation: str | None
    """Whose command it is; None: a part's own."""
    started_s: float
    index: int = 0
    """Its place in the log; 0 until it is appended."""


class Proposer:
    """Of one term of the scheduler."""

    def __init__(self, host: Host, pace: Pace) -> None:
        self._host, self._pace = host, pace
        self._in_flight: InFlight | None = None

    @property
    def in_flight(self) -> InFlight | None:
        return self._in_flight

    def is_free(self) -> bool:
        """A command is made from the roster that it will be applied to, so everything before it is committed."""
        return self._in_flight is None and self._host.can_propose()

    def propose(self, proposal: Proposal, negotiation: str | None, *, now_s: float) -> bool:
        """False: the agreement does not take it now. A lone voter commits it before this returns."""
        if not self.quorum_in_reach(proposal.configuration):
            return False
        self._in_flight = InFlight(command=proposal.command, negotiation=negotiation, started_s=now_s)
        if self._host.propose(proposal.command, proposal.configuration, proposal.first_round):
            return True
        self._in_flight = None
        return False

    def quorum_in_reach(self, changed: Configuration | None) -> bool:
        """What cannot be committed is not appended: a configuration counts from then on, and one that leaves out a
        voter who comes back would keep the run standing although a majority is there. Who has just broken a rule here
        will have its link closed again before it has agreed. And of who has not answered in this term it is hearsay
        that it is there: right after an election nobody has said yet which links did not come back."""
        host = self._host
        there = {site for site in host.reachable(sound=True) if host.has_answered(site)}
        return all(
            sum(voter in there for voter in one.voters) >= majority(len(one.voters))
            for one in (host.configuration, changed or host.configuration)
        )

    def appended(self, index: int) -> None:
        """The proposal is in the log."""
        assert self._in_flight is not None
        self._in_flight = replace(self._in_flight, index=index)

    def committed(self, index: int, *, now_s: float) -> InFlight | None:
        """The entry at `index` is committed; the proposal, if that was it."""
        flight = self._in_flight
        if flight is None or flight.index != index:
            return None
        self._in_flight = None
        self._pace.entry_took(now_s - flight.started_s)
        return flight
