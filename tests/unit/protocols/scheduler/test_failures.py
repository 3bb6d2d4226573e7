"""Which sites and links a scheduler takes for lost, and which daemons for restarted; who only left."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.one_site import (
    MODEL,
    PLANNER,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    leader_of,
    link,
    records,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import (
    accepting,
    acknowledge,
    alive,
    down,
    elect,
    line,
    lose,
    refusing,
    report,
    training,
)

from chaos_protocols import events
from chaos_protocols.agreement.raft.messages import AppendResponse
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.agreement.views import make_view
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.negotiation import DisconnectLink
from chaos_protocols.wire.control import (
    JoinRequest,
    LinkRequest,
    LinkStateAdvertisement,
    RaftEnvelope,
    RoundStatusQuery,
    RoundStatusReply,
)
from chaos_protocols.wire.versions import NEWEST


def test_a_site_whose_links_are_all_down_is_removed_and_the_round_resolved() -> None:
    bench = leader_of(roster=line(B, C))
    bench.taken()
    lose(bench, C)
    assert bench.machine.roster.record(C) is None and bench.machine.roster.resolving
    assert bench.machine.roster.departed[-1].cause == "failed"
    assert [site for site, _ in sent(bench.out, RoundStatusQuery)] == [B]
    bench.hear(B, RoundStatusReply(epoch=bench.machine.roster.epoch, done_round=0, digest=""))
    assert not bench.machine.roster.resolving
    assert {one.kind for one in records(bench.out) if one.outcome == "done"} >= {"resolve", "scale-in"}


def test_nobody_is_removed_with_the_vote_of_who_has_not_answered_in_this_term() -> None:
    """B, in the middle, is wanted out at both others, so that no link with it comes up after the restart of all; that
    its link with C is down C has yet to say. Were C, with which A is linked, but not in the roster, removed first, the
    two voters left would be A and who is out: nothing could be agreed on any more (seed 1142, 4 sites)."""
    middle = roster_of(A, B, C, links=(link(A, B), link(B, C)))
    bench = Bench(A, middle, voters=(A, B, C)).up(C)
    down(bench, A, B)
    bench.handle(events.DialFailed(site=B, reason="refused"))
    elect(bench)
    assert B in bench.machine.reachable() and not bench.machine.has_answered(B)
    for _ in range(10):
        alive(bench, C, seconds=0.1)
        acknowledge(bench, C)
    assert bench.machine.configuration.voters == (A,) and bench.machine.roster.member_ids() == (A,)


def test_nobody_is_removed_with_the_vote_of_who_just_broke_a_rule_here() -> None:
    """B, in the middle, has sent both others what they must refuse, and is back here first: were C removed with B's
    vote, this site could never go on without B (spec 7.4)."""
    middle = roster_of(A, B, C, links=(link(A, B), link(B, C)))
    bench = Bench(A, middle, voters=(A, B, C)).up(B)
    elect(bench)
    last_index = bench.machine.raft.last_index
    for _ in range(2):
        bench.handle(events.LinkLost(site=B, incarnation=1, reason="broke the rules", broke_a_rule=True))
        bench.up(B)
        down(bench, B, C)
        for _ in range(40):
            alive(bench, B, seconds=0.1)
            acknowledge(bench, B)
        assert bench.machine.raft.last_index == last_index and bench.machine.scheduler.leading
    for _ in range(40):
        alive(bench, B, seconds=0.1)
        acknowledge(bench, B)
    assert bench.machine.roster.record(C) is None, "it has kept to the rules since"


def test_a_link_that_is_reported_down_is_removed_after_the_grace() -> None:
    bench = leader_of(B, C)
    bench.hear(B, report(bench))
    bench.taken()
    down(bench, B, C)
    down(bench, C, B)
    assert bench.machine.roster.link(B, C) is not None, "other links of a dead site may be reported within the grace"
    alive(bench, B, C, seconds=0.3, step_s=0.05)
    assert bench.machine.roster.link(B, C) is None and bench.machine.roster.site_ids() == (A, B, C)


def test_a_link_is_removed_once_however_often_it_is_seen_down() -> None:
    bench = leader_of(B, C)
    down(bench, B, C)
    alive(bench, B, C, seconds=0.3, step_s=0.05)
    ends = records(bench.out, "disconnect-link")
    down(bench, C, B)
    alive(bench, B, C, seconds=0.3, step_s=0.05)
    assert records(bench.out, "disconnect-link") == ends


def test_a_sole_voter_that_was_restarted_removes_nobody_whose_link_is_not_up_again_yet() -> None:
    """The site of every vote is upgraded: the others dial it again within moments, and keep their state."""
    bench = Bench(A, roster_of(A, B, C), voters=(A,), incarnation=2)
    bench.up(B)
    bench.handle(events.TimerFired(), after_s=0.1)
    assert not bench.machine.scheduler.leading
    bench.up(C)
    assert bench.machine.scheduler.leading and bench.machine.roster.site_ids() == (A, B, C)
    assert bench.machine.roster.link(A, C) is not None


def test_who_was_restarted_waits_for_nobody_that_the_roster_does_not_have() -> None:
    """A site that was removed may still hear the log; what an outsider says of a way to it is no reason to lead."""
    with_c = roster_of(A, B, C)
    bench = Bench(A, with_c, voters=(A,), incarnation=2)
    bench.pretend(msgspec.structs.replace(roster_of(A, B), run_id=with_c.run_id))
    assert not bench.machine.scheduler.leading
    bench.up(B)
    assert bench.machine.scheduler.leading


def test_a_sole_voter_that_a_newer_term_deposed_leads_again_at_once_where_it_reaches_all() -> None:
    """A former voter is in a newer term: no link has to come or go for the site of every vote to look again."""
    bench = Bench(A, roster_of(A, B, C), voters=(A,)).up(B, C)
    term = bench.machine.raft.term + 1
    newer = AppendResponse(
        term=term, success=False, match_index=0, previous_index=0, conflict_index=1, last_index=0, tenure=1
    )
    bench.hear(B, RaftEnvelope(message=newer))
    assert bench.machine.raft.term == term + 1 and bench.machine.scheduler.leading
    assert bench.machine.roster.site_ids() == (A, B, C)


def test_what_was_said_of_an_earlier_start_of_this_site_is_no_word_of_the_present_link() -> None:
    """A neighbour tells first what it knows of all links: that its link to the daemon before this one went down too."""
    bench = Bench(A, roster_of(A, B), voters=(A,), incarnation=2)
    bench.up(B)
    down(bench, B, A)
    assert bench.machine.scheduler.leading and bench.machine.link_is_up(A, B)
    assert bench.machine.roster.site_ids() == (A, B)


def test_a_learner_whose_daemon_was_restarted_is_removed() -> None:
    bench = leader_of(roster=roster_of(A, B, learners=(C,)))
    bench.handle(events.LinkUp(site=C, incarnation=2, address=""))
    assert bench.machine.roster.record(C) is None


def test_a_member_whose_daemon_was_restarted_is_renewed() -> None:
    bench = leader_of(B, C)
    bench.handle(events.LinkUp(site=C, incarnation=2, address=""))
    known = bench.machine.roster.record(C)
    assert known is not None and known.incarnation == 2
    assert [one for one in records(bench.out, "scale-in") if one.reason == "same site, standby"]


def test_a_joiner_that_is_lost_before_it_is_in_the_roster_ends_its_joining() -> None:
    bench = leader_of(B)
    bench.hear(B, report(bench))
    bench.up(D)
    request = JoinRequest(
        name="d", address="d:1", public_key=b"", incarnation=1, neighbours=(B,), model=MODEL, worker_round=0
    )
    bench.hear(D, request)
    lose(bench, D)
    assert not bench.machine.scheduler.negotiations
    assert records(bench.out, "scale-out")[-1].outcome == "failed"


def test_a_leaver_whose_last_round_is_everywhere_is_gone_with_its_links_however_long_the_next_one_takes() -> None:
    """Where a member lacks that round, it is resolved (story 119)."""
    links = (link(A, B), link(A, C), link(B, C))
    for done, resolves in ((5, False), (4, True)):
        bench = leader_of(roster=roster_of(A, B, C, links=links))
        bench.machine.rounds.begin_from_worker(5)
        after = make_view(PLANNER, first_round=6, members=(A, C), listeners=(), links=(link(A, C),))
        left = Departure(site=B, incarnation=1, last_round=5, cause="left", reason="its user")
        roster = bench.machine.roster
        bench.pretend(
            msgspec.structs.replace(
                roster,
                sites=tuple(one for one in roster.sites if one.site != B),
                links=(link(A, C),),
                views=(*roster.views, after),
                departed=(left,),
            )
        )
        bench.hear(C, report(bench, done_round=done))
        lose(bench, B)
        alive(bench, C, seconds=1.0)
        assert bench.machine.roster.resolving is resolves


def test_a_link_that_is_being_removed_on_request_is_not_removed_as_failed_besides() -> None:
    bench = training(B, C)
    real = refusing(bench)
    bench.hear(B, LinkRequest(request="r", other=C, add=False, reason="asked for by a user"))
    down(bench, B, C)
    alive(bench, B, C, seconds=2 * SETTINGS.link_grace_s, step_s=0.05)
    running = [one for one in bench.machine.scheduler.negotiations.values() if isinstance(one, DisconnectLink)]
    assert [one.request for one in running] == [(B, "r")]
    accepting(bench, real)
    assert bench.machine.roster.link(B, C) is None


def test_a_link_of_this_site_that_its_far_end_calls_down_is_removed() -> None:
    bench = training(B, C)
    assert bench.machine.link_is_up(A, B)
    down(bench, B, A)
    assert not bench.machine.link_is_up(A, B)
    alive(bench, B, C, seconds=2 * SETTINGS.link_grace_s, step_s=0.05)
    assert bench.machine.roster.link(A, B) is None


def test_a_refused_renewal_is_proposed_again() -> None:
    bench = leader_of(B, C)
    real = refusing(bench)
    bench.handle(events.LinkUp(site=C, incarnation=2, address=""))
    assert not [one for one in records(bench.out, "scale-in") if one.outcome == "done"]
    accepting(bench, real)
    known = bench.machine.roster.record(C)
    assert known is not None and known.incarnation == 2


def test_failures_are_looked_for_again_only_when_something_is_new() -> None:
    bench = leader_of(B, C)
    failures, looks = bench.machine.scheduler.term.failures, []
    bench.machine.link_is_up = lambda *key: bool(looks.append(key))  # type: ignore[func-returns-value,method-assign]
    assert failures.look(bench.now_s) == [] and not looks
    bench.machine.network.overlay_changed()
    assert failures.look(bench.now_s) and looks, "everything is down"


def started_again(bench: Bench, site: SiteId, *, by: SiteId, speaks: int) -> None:
    """A first word of its second start comes by a neighbour, before anybody has said what that speaks."""
    word = LinkStateAdvertisement(neighbour=by, incarnation=1, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    envelope = msgspec.structs.replace(bench.envelope(site, word, 2), version=speaks)
    bench.handle(events.EnvelopeReceived(neighbour=by, envelope=envelope))


def behind_b(**changes: Any) -> Bench:
    """A leads; C has a link with B alone."""
    bench = Bench(
        A, roster_of(*changes.pop("members", (A, B, C)), links=(link(A, B), link(B, C)), **changes), voters=(A,)
    )
    bench.up(B).wait(0.1)
    return bench


def test_a_restarted_site_is_renewed_with_the_version_that_it_says_itself() -> None:
    """As one of version 1, for want of a report, it kept all that follows from newer ones from the run (seed 26 of the
    simulator, 25 sites)."""
    bench = behind_b()
    started_again(bench, C, by=B, speaks=NEWEST)
    renewed = bench.machine.roster.record(C)
    assert renewed is not None and renewed.incarnation == 2
    assert renewed.versions.newest == NEWEST and bench.machine.roster.resolving


def test_a_restarted_site_that_cannot_read_what_was_agreed_has_failed() -> None:
    bench = behind_b(needs=NEWEST)
    started_again(bench, C, by=B, speaks=NEWEST - 1)
    assert bench.machine.roster.record(C) is None
    assert f"uses protocol {NEWEST}" in bench.machine.roster.departed[-1].reason


def test_a_restarted_learner_is_removed_as_soon_as_its_own_word_is_heard() -> None:
    bench = behind_b(members=(A, B), learners=(C,))
    started_again(bench, C, by=B, speaks=NEWEST)
    assert bench.machine.roster.record(C) is None
    assert bench.machine.roster.departed[-1].reason == "its daemon was restarted"
