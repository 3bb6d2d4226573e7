"""Other trees when the links drift: when they are planned, how often at most, and from what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.unit.protocols.one_site import MODEL, A, B, C, link, roster_of

from chaos_protocols.agreement.commands import AddLink, apply_command, version_needed
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.views import changed_views
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.pace import Pace
from chaos_protocols.scheduler.replanning import Replanning
from chaos_protocols.scheduler.uplinks import UplinkPlanner
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wire.versions import CUTS_SINCE, SPOKEN
from chaosd.plan_adapter import DaemonPlanner

PLANNER = DaemonPlanner()
RATES = {(A, B): 10e6, (A, C): 10e6, (B, C): 1e6}


@dataclass
class Run:
    """A run of three sites, as its scheduler sees it. `seen`: what each end says of its link."""

    roster: Roster = field(default_factory=lambda: run_of(RATES))
    seen: dict[tuple[SiteId, SiteId], float] = field(default_factory=dict)
    now_s: float = 1000.0
    done_round: int = 100
    settings: SiteSettings = field(default_factory=SiteSettings)
    limits: dict[SiteId, float] = field(default_factory=dict)
    """What sites say that they send at most."""
    proposals: list[tuple[float, AddLink]] = field(default_factory=list)

    def __post_init__(self) -> None:
        facts: Any = self
        self.planner = UplinkPlanner(PLANNER, self.uplinks)
        self.replanning = Replanning(facts, facts, Pace())

    @property
    def contributed_round(self) -> int:
        return self.done_round

    def uplinks(self) -> dict[SiteId, float]:
        return dict(self.limits)

    def rate_seen(self, site: SiteId, neighbour: SiteId) -> float:
        return self.seen.get((site, neighbour), 0.0)

    def drifts(self, **rates: float) -> None:
        """Both ends of these links see other rates."""
        for name, rate in rates.items():
            one, other = ({"A": A, "B": B, "C": C}[letter] for letter in name)
            self.seen[one, other] = self.seen[other, one] = rate

    def goes_on(self, seconds: float, *, rounds_per_s: float = 10.0) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.done_round += round(rounds_per_s)
            decision = self.replanning.step(self.now_s)
            if decision is not None and decision.proposal is not None:
                command = decision.proposal.command
                assert isinstance(command, AddLink)
                self.proposals.append((self.now_s, command))
                self.roster = apply_command(self.roster, command, self.roster.epoch + 1)


def run_of(rates: dict[tuple[SiteId, SiteId], float], *members: SiteId) -> Roster:
    links = tuple(msgspec.structs.replace(link(*key), rate_bytes_per_s=rate) for key, rate in rates.items())
    roster = roster_of(*(members or (A, B, C)), links=links, model=MODEL, started=True)
    sites = tuple(msgspec.structs.replace(record, versions=SPOKEN) for record in roster.sites)
    roster = msgspec.structs.replace(roster, sites=sites)
    views = changed_views(roster, PLANNER, first_round=1, done=0, links=links)
    return msgspec.structs.replace(roster, views=views)


def edges(roster: Roster) -> set[frozenset[SiteId]]:
    return {frozenset(pair) for tree in roster.views[-1].plan.trees for pair in tree.parent}


def test_links_that_swap_their_rates_bring_other_trees_from_a_coming_round_on() -> None:
    run = Run()
    assert frozenset((B, C)) not in edges(run.roster)
    run.goes_on(60)
    assert not run.proposals
    run.drifts(AC=1e6, BC=10e6)
    run.goes_on(60)
    ((at_s, command),) = run.proposals
    assert at_s <= 1060 + 4 * 10
    assert {one.key: one.rate_bytes_per_s for one in (command.link, *command.more)} == {(A, C): 1e6, (B, C): 10e6}
    assert command.views[-1].first_round > 1
    assert frozenset((B, C)) in edges(run.roster)
    assert version_needed(command) == 5


def test_what_a_site_sends_at_most_brings_other_trees_and_so_does_the_end_of_it() -> None:
    """Links alone would have A pass on what the others give."""
    run = Run(roster=run_of({(A, B): 10e6, (A, C): 10e6, (B, C): 8e6}))
    before = edges(run.roster)
    run.limits[A] = 4e6
    run.goes_on(60)
    ((_, command),) = run.proposals
    assert (command.link, command.more) == (run.roster.links[0], ()), "no link has other figures"
    present, best = run.roster.views[-1].plan, edges(run.roster)
    by_key = {one.key: one for one in run.roster.links}
    assert PLANNER.rate_bytes_per_s(present, by_key, run.limits) == 4e6, "A is a leaf of every tree"
    run.goes_on(600)
    assert len(run.proposals) == 1 and edges(run.roster) == best
    run.limits.clear()
    run.goes_on(600)
    assert len(run.proposals) == 2 and edges(run.roster) == before


def test_a_better_plan_that_gains_little_or_shows_once_changes_nothing() -> None:
    run = Run()
    run.drifts(AB=9e6, AC=11e6)
    run.goes_on(300)
    run.drifts(AB=1e6, BC=10e6)
    run.goes_on(15)
    run.drifts(AB=10e6, BC=1e6)
    run.goes_on(300)
    assert not run.proposals


def test_once_the_run_has_agreed_on_it_the_newest_view_is_planned_anew_to_cut_finely() -> None:
    run = Run()
    assert not run.roster.views[-1].plan.fine
    run.roster = msgspec.structs.replace(run.roster, rules=CUTS_SINCE)
    run.goes_on(11)
    ((_, command),) = run.proposals
    assert command.views[-1].plan.fine and version_needed(command) == CUTS_SINCE
    assert run.roster.views[-1].plan.fine
    run.goes_on(300)
    assert len(run.proposals) == 1, "once"


def test_a_site_without_links_has_nothing_to_cut_anew() -> None:
    run = Run(roster=msgspec.structs.replace(run_of({}, A), rules=CUTS_SINCE))
    assert run.roster.views and not run.roster.views[-1].plan.fine
    run.goes_on(60)
    assert not run.proposals


def test_the_slower_of_what_the_ends_see_counts_and_where_neither_sees_anything_the_roster() -> None:
    run = Run()
    run.seen[A, C], run.seen[C, A] = 10e6, 1e6
    run.seen[B, C] = 10e6
    run.goes_on(60)
    assert {one.key: one.rate_bytes_per_s for one in run.roster.links} == {(A, B): 10e6, (A, C): 1e6, (B, C): 10e6}


def test_two_links_that_swap_again_and_again_bring_at_most_one_change_a_minute() -> None:
    run = Run()
    for swap in range(30):
        run.drifts(AC=1e6 if swap % 2 else 10e6, BC=10e6 if swap % 2 else 1e6)
        run.goes_on(40)
    assert 1 <= len(run.proposals) <= 20
    gaps = [later - earlier for (earlier, _), (later, _) in zip(run.proposals, run.proposals[1:], strict=False)]
    assert all(gap >= 30 for gap in gaps)
    assert len(run.proposals) < 2 or max(gaps) >= 60


def test_slow_rounds_are_not_planned_anew_before_twenty_of_them_are_done() -> None:
    run = Run()
    run.drifts(AC=1e6, BC=10e6)
    run.goes_on(30, rounds_per_s=1)
    assert len(run.proposals) == 1
    run.drifts(AC=10e6, BC=1e6)
    run.goes_on(300, rounds_per_s=0)
    assert len(run.proposals) == 1


def test_nothing_is_planned_anew_before_all_sites_can_tell_trees_apart() -> None:
    run = Run()
    old = tuple(
        msgspec.structs.replace(record, versions=msgspec.structs.replace(SPOKEN, newest=4))
        for record in run.roster.sites
    )
    run.roster = msgspec.structs.replace(run.roster, sites=old)
    run.drifts(AC=1e6, BC=10e6)
    run.goes_on(120)
    assert not run.proposals
