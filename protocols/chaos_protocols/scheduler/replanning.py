"""Whether the sites should average along other trees than they do, since the links are not as they were (spec 9.28).

Every site reports what its links carry. The plan in force and the best plan are both judged at these rates; when the
best one is clearly better, again and again, the new rates are committed and the views planned anew from a coming round
on. Rates of links that nobody uses stay as they were measured. So are they when what sites send at most has changed
(9.41), with the rates as they are. Once the run has agreed that vectors are cut into more
chunks (spec 9.7), the views are planned anew for that alone. Driven by `SchedulerMachine`; decides, changes nothing.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from chaos_protocols.agreement.commands import AddLink
from chaos_protocols.agreement.roster import LinkRecord
from chaos_protocols.agreement.views import changed_views
from chaos_protocols.names import SITES_MAX
from chaos_protocols.scheduler.decisions import Decision, Note
from chaos_protocols.scheduler.facts import Facts
from chaos_protocols.scheduler.pace import Pace
from chaos_protocols.scheduler.proposals import Proposal
from chaos_protocols.scheduler.reports import Reports
from chaos_protocols.scheduler.uplinks import Uplinks
from chaos_protocols.wire.plans import TREES_SINCE
from chaos_protocols.wire.versions import CUTS_SINCE

LOOKS_KEPT, LOOKS_WANTED = 5, 3
"""Of the last looks so many must have found a better plan: a rate that swings is no reason."""

GAIN_MIN = 1.15
PAUSE_LOOKS_MIN, PAUSE_LOOKS_MAX = 3, 60
"""Between two new plans at least so many looks: doubled by each that follows soon, up to the most."""

ROUNDS_BETWEEN_MIN = 20


class Replanning:
    """See the module."""

    def __init__(self, facts: Facts, reports: Reports, pace: Pace) -> None:
        self._facts, self._reports, self._pace = facts, reports, pace
        self._better: deque[bool] = deque(maxlen=LOOKS_KEPT)
        self._look_s = 0.0
        self._planned_s, self._planned_round = -math.inf, 0
        self._pause_looks = PAUSE_LOOKS_MIN
        self._uplinks: Uplinks = {}
        """What sites sent at most when this scheduler last planned anew."""

    def step(self, now_s: float) -> Decision | None:
        """The new rates and the views planned with them, where that is due."""
        facts, roster = self._facts, self._facts.roster
        if now_s < self._look_s:
            return None
        self._look_s = now_s + facts.settings.replan_every_s
        if not roster.started or not roster.views or roster.replication is not None or roster.version() < TREES_SINCE:
            return None
        links = tuple(map(self._as_it_is, roster.links))
        view, by_key = roster.views[-1], {link.key: link for link in links}
        try:
            best = facts.planner.sync(view.members, view.listeners, by_key, several=True)
        except ValueError:
            return None  # a link is going: another part deals with that
        present = facts.planner.rate_bytes_per_s(view.plan, by_key)
        gain = facts.planner.rate_bytes_per_s(best, by_key) / present if present > 0 else GAIN_MIN
        self._better.append(gain >= GAIN_MIN)
        changed = tuple(link for link in links if link not in roster.links)[:SITES_MAX]
        if self._cut_is_due():
            cause = "vectors are cut into more chunks"
            return self._proposed(changed or roster.links[:1], links, now_s, cause=cause, told=best.reason)
        if not self._is_due(now_s) or (not changed and self._reports.uplinks() == self._uplinks):
            return None
        told = f"{gain:.2f} times as fast at the rates that the rounds show; {best.reason}"
        cause = "links drifted" if changed else "what sites send is limited otherwise"
        return self._proposed(changed or roster.links[:1], links, now_s, cause=cause, told=told)

    def _proposed(
        self, changed: tuple[LinkRecord, ...], links: tuple[LinkRecord, ...], now_s: float, *, cause: str, told: str
    ) -> Decision:
        """The views planned anew over these links, of which some have other figures than in the roster."""
        facts, roster = self._facts, self._facts.roster
        first_round = self._pace.first_round(facts)
        views = changed_views(roster, facts.planner, first_round=first_round, done=facts.done_round, links=links)
        self._begin_anew(now_s)
        return Decision(
            reason=cause,
            proposal=Proposal(command=AddLink(link=changed[0], more=changed[1:], views=views), first_round=first_round),
            note=Note(kind="plan", subject="averaging", cause=cause, outcome="done", reason=told),
        )

    def _cut_is_due(self) -> bool:
        """The newest view is from before the run agreed on how it cuts vectors."""
        roster = self._facts.roster
        return roster.rules >= CUTS_SINCE and not roster.views[-1].plan.fine and len(roster.links) > 0

    def _is_due(self, now_s: float) -> bool:
        """Another plan was better often enough, at the last look too, and the last change was not just now."""
        return sum(self._better) >= LOOKS_WANTED and self._better[-1] and self._may(now_s)

    def _may(self, now_s: float) -> bool:
        rounds = self._facts.done_round - self._planned_round
        pause_s = self._pause_looks * self._facts.settings.replan_every_s
        return now_s >= self._planned_s + pause_s and rounds >= ROUNDS_BETWEEN_MIN

    def _begin_anew(self, now_s: float) -> None:
        soon = now_s < self._planned_s + PAUSE_LOOKS_MAX * self._facts.settings.replan_every_s
        self._pause_looks = min(PAUSE_LOOKS_MAX, 2 * self._pause_looks) if soon else PAUSE_LOOKS_MIN
        self._planned_s, self._planned_round = now_s, self._facts.done_round
        self._uplinks = self._reports.uplinks()
        self._better.clear()

    def _as_it_is(self, link: LinkRecord) -> LinkRecord:
        """With the slower of the rates that its two ends see, where they see any."""
        seen = [self._reports.rate_seen(one, other) for one, other in (link.key, link.key[::-1])]
        known = [rate for rate in seen if rate > 0]
        return msgspec.structs.replace(link, rate_bytes_per_s=min(known)) if known else link
