"""Whether the sites want other bounds on what a site gives than the run has (spec 19.8).

As with bans (spec 8.15) each report says what the site's operator wants, so nothing has to be remembered, and whoever
schedules counts anew. Driven by `SchedulerMachine`; decides, changes nothing.
"""

from __future__ import annotations

from collections import Counter

from chaos_protocols.agreement.commands import SetBounds
from chaos_protocols.agreement.views import changed_views
from chaos_protocols.scheduler.decisions import Decision
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.pace import Pace
from chaos_protocols.scheduler.proposals import Proposal
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.wire.bounds import Bounds, bounds_problem


class Bounding:
    """See the module."""

    def __init__(self, facts: Facts, reports: Reports, pace: Pace) -> None:
        self._facts, self._reports, self._pace = facts, reports, pace

    def step(self) -> Decision | None:
        """The bounds that more than half of the members want, from a coming round on."""
        facts, roster = self._facts, self._facts.roster
        wanted = self._wanted()
        if wanted is None or not roster.started or not roster.views:
            return None
        first_round = self._pace.first_round(facts)
        if first_round != roster.bounds_from > max(0, facts.done_round - 1):
            return None  # three would hold in rounds that somebody still has to do, and the roster has two
        try:
            views = changed_views(
                roster, facts.planner, first_round=first_round, done=facts.done_round, links=roster.links
            )
        except ValueError:
            return None  # the overlay does not connect the members at the moment: another part deals with that
        by = tuple(site for site, report in self._reports.of_members().items() if report.bounds == wanted)
        command = SetBounds(bounds=wanted, by=tuple(sorted(by)), views=views)
        return Decision(
            reason="the sites want other bounds", proposal=Proposal(command=command, first_round=first_round)
        )

    def _wanted(self) -> Bounds | None:
        """What more than half of the members' operators want that the run has not."""
        roster = self._facts.roster
        wanted = self._reports.bounds_of_members()
        for bounds, count in Counter(wanted).items() if wanted else ():
            if 2 * count > len(roster.member_ids()) and bounds != roster.bounds and not bounds_problem(bounds):
                return bounds
        return None
