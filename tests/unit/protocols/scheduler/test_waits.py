"""Whom a round waits for, as the scheduler sees it, and how long at most (spec 9.22, 9.23)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.unit.protocols.follower import plan
from tests.unit.protocols.one_site import EPOCH, SETTINGS, A, B, Bench, C, D, moving, roster_of, sent

from chaos_protocols.agreement.roster import Departure
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.pace import ROUNDS_TIMED_MIN, Pace
from chaos_protocols.scheduler.waits import BEHIND, COMING, UNHEARD, UNREPORTED, WaitsWatch
from chaos_protocols.wire.control import RoundWaits, SiteStatus
from chaos_protocols.wire.plans import Tag

OPEN = Tag(epoch=EPOCH, round=1)
STEP_S = 0.2


def scheduler(*members: Any, **settings: Any) -> Bench:
    bench = Bench(A, roster_of(*members), voters=(A,), settings=replace(SETTINGS, **settings))
    bench.up(*[one for one in members if one != A])
    bench.wait(0.3)
    for _ in range(ROUNDS_TIMED_MIN):
        bench.machine.scheduler.pace.round_took(0.1)
    bench.taken()
    return bench


def report(*, gave: bool, active: bool = True, rests: str = "", open: Tag | None = OPEN, done: int = 0) -> SiteStatus:
    return SiteStatus(
        incarnation=1, epoch=EPOCH, done_round=done, active=active, transfer_bytes=0, open=open, gave=gave, rests=rests
    )


def told(bench: Bench, seconds: float, **reports: SiteStatus) -> list[tuple[Any, RoundWaits]]:
    """What the sites are told while time passes and these say the same again and again."""
    by_site = {"b": B, "c": C, "d": D}
    bench.taken()
    for _ in range(round(seconds / STEP_S)):
        for site in bench.machine.links.up_sites():
            bench.handle(moving(site))
        for name, status in reports.items():
            bench.hear(by_site[name], status)
        bench.wait(STEP_S)
    return sent(bench.taken(), RoundWaits)


def test_who_is_waited_for_is_told_to_all_but_not_at_once() -> None:
    bench = scheduler(A, B, C)
    both = {"b": report(gave=True), "c": report(gave=False)}
    assert not told(bench, SETTINGS.waits_told_s - 0.4, **both)
    found = told(bench, 2.0, **both)
    assert {site for site, _ in found} == {B, C}
    last = found[-1][1]
    assert [one.site for one in last.waits] == [C] and last.round == 1
    assert SETTINGS.waits_told_s <= last.waits[0].seconds <= SETTINGS.waits_told_s + 2.0
    assert last.limit_s == SETTINGS.straggler_min_s, "ten times a tenth of a second is less"
    assert len(found) <= 2 * 3, "once a failure timeout, to each"


def test_who_has_yet_to_get_the_result_before_is_not_said_to_have_a_script_that_gives_nothing() -> None:
    """As behind a site that sends little: who adds up has the result seconds before it has passed it on."""
    bench = scheduler(A, B, C)
    ahead = report(gave=True, open=Tag(epoch=EPOCH, round=2), done=1)
    found = told(bench, SETTINGS.waits_told_s + 1.0, b=ahead, c=report(gave=True))
    assert [one.reason for one in found[-1][1].waits] == [COMING.format(round=1)]
    found = told(bench, SETTINGS.waits_told_s + 1.0, b=ahead, c=report(gave=False))
    assert [one.reason for one in found[-1][1].waits] == [""], "it has not given to the round before either"


def test_who_fetches_the_result_that_was_agreed_to_stand_is_waited_for_with_that_reason() -> None:
    """It has no round open meanwhile, and a result takes as long as a round does (seed 7530497 with slow links)."""
    assert _waits_for_who_fetches(trains=True) == [(C, COMING.format(round=2))]


def test_so_is_one_that_fetches_it_without_a_worker() -> None:
    """Its daemon still has to come to the round (seed 9367197, 5 sites)."""
    assert _waits_for_who_fetches(trains=False) == [(C, COMING.format(round=2))]


def _waits_for_who_fetches(*, trains: bool) -> list[tuple[SiteId, str]]:
    bench = scheduler(A, B, C, D)
    ahead = report(gave=True, open=Tag(epoch=EPOCH, round=3), done=2)
    at_the_next = report(gave=False, open=None, done=2)
    fetches = report(gave=False, active=trains, open=None, done=1)
    found = told(bench, SETTINGS.waits_told_s + 1.0, b=ahead, c=fetches, d=at_the_next)
    return [(one.site, one.reason) for one in found[-1][1].waits]


def test_when_the_part_is_there_that_is_said_once_and_nothing_more() -> None:
    bench = scheduler(A, B, C)
    assert told(bench, 4.0, b=report(gave=True), c=report(gave=False))
    found = told(bench, 4.0, b=report(gave=True), c=report(gave=True))
    assert [(site, one.round, one.waits) for site, one in found] == [(B, 1, ()), (C, 1, ())]


def test_a_member_whose_daemon_has_not_the_rosters_newest_entry_is_waited_for_with_that_reason() -> None:
    """No round is done without it, whether its worker trains or not (seed 647 of the simulator)."""
    bench = scheduler(A, B, C)
    behind = msgspec.structs.replace(report(gave=False, active=False, open=None), epoch=EPOCH - 1)
    found = told(bench, SETTINGS.waits_told_s + 1.0, b=report(gave=True), c=behind)
    assert {(one.site, one.reason) for one in found[-1][1].waits} == {(C, BEHIND)}
    assert found[-1][1].waits[0].seconds >= SETTINGS.waits_told_s
    assert told(bench, 2.0, b=report(gave=True), c=report(gave=False, active=False))[-1][1].waits == ()
    assert not told(bench, 4.0, b=report(gave=False), c=behind), "nobody has given: all compute"


def test_a_daemon_that_never_comes_to_the_round_is_removed_after_as_long_as_any_site_is_waited_for() -> None:
    silent, follows_not = "not reported", "not followed the last change of the run"
    for behind, why in ((report(gave=False, active=False, open=None), follows_not), (None, silent)):
        bench = scheduler(A, B, C)
        said = {} if behind is None else {"c": msgspec.structs.replace(behind, epoch=EPOCH - 1)}
        told(bench, SETTINGS.straggler_min_s - 1.0, b=report(gave=True), **said)
        assert bench.machine.roster.site_ids() == (A, B, C)
        told(bench, 2.0, b=report(gave=True), **said)
        assert bench.machine.roster.site_ids() == (A, B) and bench.machine.roster.resolving
        assert f"its daemon has {why} for " in bench.machine.roster.departed[0].reason


def test_a_daemon_is_behind_for_no_longer_than_the_round_stands_that_is_running_now() -> None:
    """Rosters that change faster than a site can say that it has them take no site out."""
    bench = scheduler(A, B, C)
    behind = msgspec.structs.replace(report(gave=False, active=False, open=None), epoch=EPOCH - 1)
    told(bench, SETTINGS.straggler_min_s - 1.0, b=report(gave=True), c=behind)
    bench.machine.rounds.completed_round = 1
    gave = msgspec.structs.replace(report(gave=True), open=Tag(epoch=EPOCH, round=2))
    told(bench, SETTINGS.straggler_min_s - 1.0, b=gave, c=behind)
    assert bench.machine.roster.site_ids() == (A, B, C)
    told(bench, 2.0, b=gave, c=behind)
    assert bench.machine.roster.site_ids() == (A, B)


def test_the_time_in_which_the_scheduler_stood_still_counts_for_no_daemon_that_is_behind() -> None:
    bench = scheduler(A, B, C)
    behind = msgspec.structs.replace(report(gave=False, active=False, open=None), epoch=EPOCH - 1)
    told(bench, 2.0, b=report(gave=True), c=behind)
    bench.handle(moving(C), after_s=3 * SETTINGS.straggler_min_s)
    told(bench, SETTINGS.straggler_min_s / 2, b=report(gave=True), c=behind)
    assert bench.machine.roster.site_ids() == (A, B, C)


def test_a_member_whose_bytes_do_not_arrive_is_waited_for_with_where_they_should() -> None:
    """Everybody has given, and the way of the sums swallows them (seed 1147 of the simulator)."""
    bench = scheduler(A, B, C)
    stuck = msgspec.structs.replace(report(gave=True), unacknowledged_by=B, unacknowledged_s=SETTINGS.waits_told_s)
    found = told(bench, 1.0, b=report(gave=True), c=stuck)
    assert [(one.site, one.reason) for one in found[-1][1].waits] == [(C, UNHEARD.format(name="site b"))]
    assert told(bench, 2.0, b=report(gave=True), c=report(gave=True))[-1][1].waits == ()
    stranger = msgspec.structs.replace(stuck, unacknowledged_by=D)
    assert D[:8] in told(bench, 2.0, b=report(gave=True), c=stranger)[-1][1].waits[0].reason


def test_what_holds_up_a_round_that_stands_for_long_already_is_told_of_sooner() -> None:
    """One fault after the other, each of which is over before it would be told (seed 7501329 of the simulator)."""
    bench = scheduler(A, B, C)
    stuck = msgspec.structs.replace(report(gave=True), unacknowledged_by=B, unacknowledged_s=SETTINGS.failure_timeout_s)
    slow = report(gave=False)
    assert not told(bench, SETTINGS.waits_told_s - 0.4, b=report(gave=True), c=slow)
    assert not told(bench, 0.4, b=report(gave=True), c=report(gave=True))
    found = told(bench, 0.4, b=report(gave=True), c=stuck)
    assert [(one.site, one.reason) for one in found[-1][1].waits] == [(C, UNHEARD.format(name="site b"))]
    assert found[-1][1].waits[0].seconds < SETTINGS.waits_told_s


def test_a_round_that_begins_anew_again_and_again_waits_for_the_same_site_and_no_longer() -> None:
    """A link flaps while a script hangs: each time its site was waited for anew, and the others stood with it."""
    bench = scheduler(A, B, C)
    roster, stood_s = bench.machine.roster, 0.0
    for epoch in range(EPOCH, EPOCH + 5):
        (view,) = roster.views
        views = (msgspec.structs.replace(view, epoch=epoch),)
        bench.machine.replica.install(msgspec.structs.replace(roster, epoch=epoch, views=views, resolving=False))
        tag = Tag(epoch=epoch, round=1)
        of_epoch = {"b": report(gave=True, open=tag), "c": report(gave=False, open=tag)}
        of_epoch = {site: msgspec.structs.replace(one, epoch=epoch) for site, one in of_epoch.items()}
        last = told(bench, 3.0, **of_epoch)[-1][1]
        stood_s += 3.0
        assert [one.site for one in last.waits] == [C]
        assert stood_s - 1.0 <= last.waits[0].seconds <= stood_s + 0.5
        bench.machine.replica.install(msgspec.structs.replace(bench.machine.roster, resolving=True))
        closed = {site: msgspec.structs.replace(one, open=None, gave=False) for site, one in of_epoch.items()}
        told(bench, 2.0, **closed)
    assert last.waits[0].seconds >= last.limit_s == SETTINGS.straggler_min_s


def test_while_the_run_waits_for_a_joiner_no_script_is_waited_for() -> None:
    """Its transfer took longer than a round waits for a script; then the first that gave had all others called late."""
    bench = scheduler(A, B, C)
    roster = bench.machine.roster
    held = msgspec.structs.replace(plan(D, B), hold_s=60.0)
    bench.machine.replica.install(msgspec.structs.replace(roster, replication=held))
    none = {"b": report(gave=False), "c": report(gave=False)}
    assert not told(bench, SETTINGS.straggler_min_s + 2.0, **none)
    bench.machine.replica.install(roster)
    only_c_lacks = {"b": report(gave=True), "c": report(gave=False)}
    assert not told(bench, SETTINGS.waits_told_s - 0.4, **only_c_lacks)
    assert told(bench, 2.0, **only_c_lacks)[-1][1].waits[0].seconds < SETTINGS.straggler_min_s


def test_when_the_time_for_a_joiner_is_over_and_somebody_gives_the_others_are_waited_for() -> None:
    bench = scheduler(A, B, C)
    held = msgspec.structs.replace(plan(D, B), hold_s=60.0)
    bench.machine.replica.install(msgspec.structs.replace(bench.machine.roster, replication=held))
    found = told(bench, SETTINGS.waits_told_s + 1.0, b=report(gave=True), c=report(gave=False))
    assert [one.site for one in found[-1][1].waits] == [C]


def test_a_member_that_has_not_reported_is_waited_for_too() -> None:
    bench = scheduler(A, B, C)
    found = told(bench, SETTINGS.waits_told_s + 1.0, b=report(gave=True))
    assert [(one.site, one.reason) for one in found[-1][1].waits] == [(C, UNREPORTED)]


def test_a_site_in_standby_or_of_a_release_that_does_not_say_is_not_waited_for() -> None:
    bench = scheduler(A, B, C, D)
    silent = report(gave=False, open=None)
    assert not told(bench, 6.0, b=report(gave=True), c=report(gave=False, active=False), d=silent)


def test_a_member_that_counts_from_a_later_round_on_is_not_waited_for() -> None:
    """Promoted while the round before stands, it trains, and has nothing to give yet (seed 10180 of the simulator)."""
    bench = scheduler(A, B, C, D)
    roster = bench.machine.roster
    (view,) = roster.views
    now = msgspec.structs.replace(view, members=(A, B, C), listeners=(D,))
    later = msgspec.structs.replace(view, first_round=2)
    bench.machine.replica.install(msgspec.structs.replace(roster, views=(now, later)))
    gave = {"b": report(gave=True), "d": report(gave=False)}
    assert not told(bench, SETTINGS.straggler_min_s + 2.0, c=report(gave=True), **gave)
    found = told(bench, SETTINGS.waits_told_s + 1.0, c=report(gave=False), **gave)
    assert [one.site for one in found[-1][1].waits] == [C]


def test_a_leaver_is_waited_for_in_its_last_round_though_it_is_out_of_the_roster() -> None:
    """Its script hung in that round; nobody was told why training stood (seed 902439 of the simulator)."""
    bench = scheduler(A, B, C)
    roster = bench.machine.roster
    left = Departure(site=C, incarnation=1, last_round=1, cause="left", reason="its user")
    after = msgspec.structs.replace(roster.views[0], first_round=2, members=(A, B))
    sites = tuple(record for record in roster.sites if record.site != C)
    views = (roster.views[0], after)
    bench.machine.replica.install(msgspec.structs.replace(roster, sites=sites, views=views, departed=(left,)))
    gave = report(gave=True, active=False)
    assert not told(bench, SETTINGS.waits_told_s + 1.0, b=report(gave=True), c=gave)
    found = told(bench, SETTINGS.waits_told_s + 1.0, b=report(gave=True), c=report(gave=False, active=False))
    assert [one.site for one in found[-1][1].waits] == [C]
    assert {site for site, _ in found} == {B}, "the leaver is not held to a limit: its leave has one"


def test_nobody_is_waited_for_while_all_compute_unless_that_takes_far_too_long() -> None:
    bench = scheduler(A, B, C)
    none = {"b": report(gave=False), "c": report(gave=False)}
    assert not told(bench, SETTINGS.straggler_min_s - 1.0, **none)
    found = told(bench, 3.0, **none)
    assert {one.site for one in found[-1][1].waits} == {B, C}
    assert found[-1][1].limit_s == 0, "nobody is to give weight 0 for that"


def test_the_limit_is_a_multiple_of_the_usual_round_and_may_be_none() -> None:
    bench = scheduler(A, B, C, straggler_timeout=4.0)
    for _ in range(40):
        bench.machine.scheduler.pace.round_took(5.0)
    assert told(bench, 4.0, b=report(gave=True), c=report(gave=False))[-1][1].limit_s == 20.0
    forever = scheduler(A, B, C, straggler_timeout=0.0)
    assert told(forever, 4.0, b=report(gave=True), c=report(gave=False))[-1][1].limit_s == 0.0


def test_a_few_long_rounds_are_not_the_usual_ones_and_a_few_rounds_are_none() -> None:
    pace = Pace()
    for took_s in (0.1, 0.1, 60.0, 0.1):
        pace.round_took(took_s)
    assert pace.usual_s is None
    pace.round_took(60.0)
    assert pace.usual_s == 0.1
    for _ in range(100):
        pace.round_took(2.0)
    assert pace.usual_s == 2.0


def test_a_round_that_comes_up_empty_each_time_it_is_begun_anew_is_told_until_it_is_done() -> None:
    """Who has the state is asked again once a second, and gives what is not finite (seed 9057630, 2 sites)."""
    empty: dict[str, int | None] = {"round": None}
    facts: Any = SimpleNamespace(settings=SETTINGS, done_round=18)
    reports: Any = SimpleNamespace(empty_round=lambda: empty["round"])
    watch = WaitsWatch(facts, reports, Pace())
    seen = []
    for step in range(80):
        empty["round"] = 19 if step % 4 == 3 else None  # for a quarter of each second
        seen.append(watch._is_empty(step * 0.25))
    told_from = round((0.75 + SETTINGS.waits_told_s) / 0.25)
    assert seen.index(True) == told_from and all(seen[told_from:])
    facts.done_round = 19
    assert not watch._is_empty(20.25)
    empty["round"] = 20
    assert not watch._is_empty(20.5), "that is another one"


def test_who_rests_is_told_with_the_reason_and_needs_no_other_state() -> None:
    bench = scheduler(A, B)
    resting = report(gave=True, active=False, rests="its script evaluates")
    found = told(bench, 1.5, b=resting)
    assert [(one.site, one.reason) for one in found[-1][1].rests] == [(B, "its script evaluates")]
    assert found[-1][1].waits == ()
    reports = bench.machine.scheduler.term.reports
    assert not reports.anybody_active() and reports.anybody_rests()
    bench.hear(B, report(gave=True, active=True))
    assert not reports.anybody_rests()
