"""How a site stands: what it asks again, when its state counts, when it may go; and what its user is told meanwhile."""

from __future__ import annotations

from tests.unit.protocols.follower import (
    Follower,
    finish_round,
    hello,
    keep_last_checkpoint,
    learner,
    of,
    plan,
    to_worker,
    training_member,
    views,
)
from tests.unit.protocols.one_site import (
    EPOCH,
    MODEL,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    heartbeat,
    link,
    moving,
    records,
    roster_of,
    sent,
)

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    AddLink,
    PromoteSite,
    RemoveLink,
    RemoveSite,
    Replicate,
    RoundResolved,
)
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.effects import (
    AnswerRequest,
    CancelTransfer,
    CloseLink,
    Dial,
    FetchState,
    ProbeLink,
    StopRound,
)
from chaos_protocols.links.desired import LINK_REQUEST_TRIES_MAX
from chaos_protocols.wire.control import (
    EVERYBODY,
    CaughtUp,
    ConnectOrder,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LinkAnswer,
    LinkReady,
    LinkRequest,
    LinkStateAdvertisement,
    RoundStatusQuery,
    RoundStatusReply,
    SiteStatus,
    StateRequest,
)
from chaos_protocols.wire.user_words import RunPaused, RunResumed
from chaos_protocols.wire.worker import LoadState, TrainFrom, WorkerRefused

# ---- how it stands, in words


def test_a_site_is_starting_joining_learner_member_leaving_and_removed() -> None:
    bench = Bench(D).up(A)
    assert bench.machine.membership.state.value == "starting"
    hello(bench)
    assert bench.machine.membership.state.value == "joining"
    assert learner().machine.membership.state.value == "learner"
    member = training_member()
    assert member.machine.membership.state.value == "member"
    member.handle(events.LeaveRequested(request="r", reason="done"))
    assert member.machine.membership.state.value == "leaving"
    member.hear(A, LeaveAnswer(incarnation=1, last_round=0, finished=True))
    keep_last_checkpoint(member, 1)
    assert member.machine.membership.state.value == "removed"


def test_the_user_is_told_why_nothing_moves_and_when_it_moves_again() -> None:
    bench = Bench(D).up(A)
    hello(bench)
    assert bench.machine.participation.pause.reason() == "asking to join"
    bench.wait(0.3)
    assert to_worker(bench.taken(), RunPaused)
    bench = Follower(B, roster_of(A, B, model=None))
    assert "founder" in bench.machine.participation.pause.reason()
    bench = Follower(B, roster_of(A, B, started=False, min_sites=3))
    assert bench.machine.participation.pause.reason() == "waiting for 3 sites; here: 2"


def test_a_site_without_a_scheduler_names_the_voters_that_it_lacks() -> None:
    bench = Bench(B, roster_of(A, B, C, links=(link(A, B), link(B, C))), voters=(A, B, C)).up(C)
    hello(bench)
    for _ in range(20):
        bench.handle(moving(C))
        bench.wait(0.2)
    assert "cannot reach aaaaaaaa" in bench.machine.participation.pause.reason()
    bench.up(A)
    assert "an election is under way" in bench.machine.participation.pause.reason()


def test_a_member_whose_state_nobody_has_says_so_after_a_while_and_what_can_be_done() -> None:
    bench = Follower(B, roster_of(A, B))
    hello(bench)
    bench.alive(2.5)
    assert "no member that trains has the state" in bench.machine.participation.pause.reason()
    assert to_worker(bench.taken(), RunPaused)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(B, A)))
    bench.alive(0.5)
    assert "will send it" in to_worker(bench.taken(), RunPaused)[-1].reason
    bench.handle(events.TransferProgressed(transfer="t", verified_bytes=MODEL.shard_bytes))
    bench.alive(0.5)
    assert to_worker(bench.taken(), RunResumed)


# ---- asking, and asking again


def test_a_joiner_asks_whoever_its_neighbours_name_and_asks_again() -> None:
    bench = Bench(D).up(B)
    assert not sent(hello(bench), JoinRequest), "nobody has named a scheduler yet"
    beat = heartbeat(scheduler=A, knows_you=False)
    bench.up(A)
    ((site, request),) = sent(bench.hear(B, beat), JoinRequest)
    assert site == A and request.neighbours == (A, B)
    bench.taken()
    for _ in range(12):
        bench.handle(moving(A))
        bench.wait(0.1)
    assert len(sent(bench.taken(), JoinRequest)) in (1, 2)


def test_a_joiner_that_asks_again_says_in_which_term_it_was_answered_last() -> None:
    """A release that does not say in which changes nothing of that."""
    bench = Bench(D).up(B)
    hello(bench)
    for term, told in ((0, 0), (5, 5), (0, 5), (6, 6)):
        bench.hear(B, JoinAnswer(incarnation=1, accepted=False, final=False, reason="later", term=term))
        bench.taken()
        for _ in range(12):
            bench.hear(B, heartbeat(scheduler=B, knows_you=False))
            bench.handle(moving(B))
            bench.wait(0.1)
        assert {request.answered_in for _, request in sent(bench.taken(), JoinRequest)} == {told}


def test_a_refusal_for_good_is_told_to_the_worker_and_a_refusal_for_now_is_not() -> None:
    bench = Bench(D).up(A)
    hello(bench)
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=False, reason="resolving"))
    assert bench.machine.participation.pause.reason() == "resolving"
    assert not to_worker(bench.out, WorkerRefused)
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=False, reason="resolving"))
    bench.hear(A, JoinAnswer(incarnation=9, accepted=False, final=True, reason="of another life"))
    assert len(records(bench.taken(), "scale-out")) == 1, "the same words once"
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=True, reason="banned"))
    (refused,) = to_worker(bench.taken(), WorkerRefused)
    assert "banned" in refused.reason
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=True, reason="still banned"))
    assert not to_worker(bench.taken(), WorkerRefused), "there is no worker any more"


def test_a_restarted_member_asks_for_its_state_with_the_reason() -> None:
    bench = Follower(B, roster_of(A, B))
    ((_, request),) = sent(hello(bench, 4), StateRequest)
    assert (request.worker_round, request.reason) == (4, "")


def test_a_site_that_no_way_leads_to_its_leader_from_knows_at_once_that_it_is_lost() -> None:
    bench = Follower(D, roster_of(A, B, D, links=(link(A, D), link(B, D))))
    bench.handle(events.LinkLost(site=B, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=B, reason="refused"))
    assert bench.machine.raft.leader_lost_s is None, "it reaches its leader"
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=A, reason="refused"))
    assert (bench.machine.raft.leader, bench.machine.raft.leader_lost_s) == (A, bench.now_s)


def test_a_cut_off_site_dials_any_site_it_knows_of() -> None:
    bench = Bench(D, roster_of(A, B, D, links=(link(A, D), link(A, B))), voters=(A,))
    bench.taken()
    bench.wait(4.0, step_s=0.2)
    assert B in {one.site for one in of(bench.taken(), Dial)}


# ---- the state: getting it


def test_a_learner_fetches_loads_reports_and_trains_when_it_was_promoted() -> None:
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    out = bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    assert [one.plan.transfer for one in of(out, FetchState)] == ["t"]
    bench.handle(events.TransferProgressed(transfer="other", verified_bytes=5))
    assert bench.machine.state.fetch.verified_bytes == 0
    bench.handle(events.TransferProgressed(transfer="t", verified_bytes=5))
    assert bench.machine.state.fetch.verified_bytes == 5
    bench.handle(events.TransferFinished(transfer="other"))
    assert to_worker(bench.handle(events.TransferFinished(transfer="t")), LoadState)
    bench.handle(events.WorkerLoaded(round=99))
    assert bench.machine.rounds.worker_round is None, "an answer to another question"
    ((_, level),) = sent(bench.handle(events.WorkerLoaded(round=0)), CaughtUp)
    assert level.transfer == "t"
    out = bench.agreed(PromoteSite(site=D, views=views(bench, 1, add_member=D)))
    assert to_worker(out, TrainFrom)


def test_a_failed_transfer_is_recorded_and_the_state_asked_for_at_once() -> None:
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    bench.taken()
    bench.handle(events.TransferFailed(transfer="other", reason="late"))
    assert bench.machine.state.fetch.plan is not None
    bench.handle(events.TransferFailed(transfer="t", reason="all sources are gone"))
    assert records(bench.out, "scale-out")[-1].reason.startswith("all sources are gone; 0 of ")
    assert sent(bench.alive(0.3), StateRequest)


def test_a_transfer_that_is_no_longer_agreed_is_ended_and_the_state_asked_for_at_once() -> None:
    """Its sources may not even know of it: they would say for minutes that their snapshot is not taken yet."""
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    bench.taken()
    bench.handle(events.TransferProgressed(transfer="t", verified_bytes=5))
    out = bench.agreed(Replicate(views=views(bench, 1), replication=plan(B, A, transfer="u")))
    assert [one.transfer for one in of(out, CancelTransfer)] == ["t"]
    assert bench.machine.state.fetch.plan is None
    assert sent(bench.alive(0.3), StateRequest)


def test_a_newer_plan_replaces_a_transfer_and_a_site_without_a_worker_fetches_nothing() -> None:
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    assert not of(bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B))), FetchState)
    out = bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, A, transfer="u")))
    assert [one.transfer for one in of(out, CancelTransfer)] == ["t"]


def test_a_site_that_was_removed_takes_part_no_more_and_ends_its_transfer() -> None:
    bench = Follower(D, roster_of(A, B, learners=(D,)))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(D, B)))
    gone = Departure(site=D, incarnation=1, last_round=0, cause="failed", reason="")
    out = bench.agreed(RemoveSite(departure=gone, resolve=True, views=bench.roster.views))
    assert of(out, CancelTransfer) and of(out, StopRound)
    assert bench.machine.membership.state.value == "joining"


def test_a_site_that_comes_in_while_the_roster_resolves_begins_after_that() -> None:
    bench = Follower(B, roster_of(A, B, resolving=True, resolved_round=3))
    assert not bench.machine.membership.begun
    question = bench.hear(A, RoundStatusQuery(epoch=EPOCH))
    assert sent(question, RoundStatusReply) == [(A, RoundStatusReply(epoch=EPOCH, done_round=0, digest=""))]
    resolved = RoundResolved(round=3, digest="", holders=(A,), views=views(bench, 4))
    bench.agreed(resolved)
    assert bench.machine.membership.begun and bench.machine.rounds.completed_round == 3


# ---- links


def test_a_users_link_request_is_asked_again_and_answered_or_given_up() -> None:
    bench = Follower(B, roster_of(A, B, C, links=(link(A, B), link(A, C))))
    bench.handle(events.LinkChangeRequested(request="r", other=C, add=True))
    bench.alive(1.7)
    assert len(sent(bench.taken(), LinkRequest)) >= 3
    bench.hear(A, LinkAnswer(request="r", done=True, reason=""))
    bench.hear(A, LinkAnswer(request="r", done=True, reason=""))
    assert of(bench.taken(), AnswerRequest) == [AnswerRequest(request="r", done=True, reason="")]
    bench.handle(events.LinkChangeRequested(request="s", other=C, add=False))
    bench.alive(2 * SETTINGS.retry_s * LINK_REQUEST_TRIES_MAX)
    (answer,) = of(bench.taken(), AnswerRequest)
    assert not answer.done and "chaosd status" in answer.reason


def test_the_last_word_on_a_link_is_the_one_that_is_asked_again() -> None:
    """No answer has come to the first, which the user has taken back since: asked again, it would undo what he wants
    now."""
    bench = Follower(B, roster_of(A, B, C, links=(link(A, B), link(A, C))))
    bench.handle(events.LinkChangeRequested(request="r", other=C, add=True))
    bench.handle(events.LinkChangeRequested(request="other", other=A, add=True))
    bench.taken()
    out = bench.handle(events.LinkChangeRequested(request="s", other=C, add=False))
    assert [(one.request, one.done) for one in of(out, AnswerRequest)] == [("r", False)]
    bench.taken()
    bench.alive(3 * SETTINGS.retry_s)
    assert {request.request for _, request in sent(bench.taken(), LinkRequest)} == {"other", "s"}


def test_what_a_site_asks_for_by_itself_is_over_when_a_user_has_removed_that_link() -> None:
    """Here, or at the far end: the answer to it was lost."""
    whole = (link(A, B), link(A, C), link(B, C))
    for here in (True, False):
        bench = Follower(B, roster_of(A, B, C, links=whole[:2]), peers=(A, C))
        assert {request.other for _, request in sent(bench.alive(0.5), LinkRequest)} == {C}
        there = bench.machine.roster
        bench.agreed(AddLink(link=whole[2], views=there.views))
        if here:
            bench.handle(events.LinkChangeRequested(request="s", other=C, add=False))
        bench.agreed(RemoveLink(one=B, other=C, resolve=False, views=there.views, reason="asked for by a user"))
        bench.hear(A, LinkAnswer(request="s", done=True, reason=""))
        bench.taken()
        bench.alive(3 * SETTINGS.retry_s)
        assert not sent(bench.taken(), LinkRequest)


def test_a_site_outside_the_run_changes_no_links() -> None:
    bench = Bench(D).up(A)
    (answer,) = of(bench.handle(events.LinkChangeRequested(request="r", other=A, add=True)), AnswerRequest)
    assert not answer.done


def test_a_configured_link_that_is_back_is_asked_for_by_itself() -> None:
    bench = Follower(B, roster_of(A, B, C, links=(link(A, B), link(A, C))), peers=(A, C))
    asked = sent(bench.alive(0.5), LinkRequest)
    assert {request.other for _, request in asked} == {C}
    bench.hear(A, LinkAnswer(request=asked[0][1].request, done=True, reason=""))
    assert not of(bench.out, AnswerRequest), "no user has asked"


def test_a_new_link_is_dialled_and_a_removed_one_closed_when_no_round_needs_it() -> None:
    bench = Follower(D, roster_of(A, B, D, links=(link(A, B), link(A, D))))
    bench.machine.links.unwant(B, "not yet")
    out = bench.agreed(AddLink(link=link(B, D), views=views(bench, 1)))
    assert {one.site for one in of(out, Dial)} == {B}
    bench.up(B)
    first = 2
    removed = RemoveLink(one=B, other=D, resolve=False, views=views(bench, first), reason="")
    assert not of(bench.agreed(removed), CloseLink)
    for _ in range(first):
        finish_round(bench)
    assert B in {one.site for one in of(bench.out, CloseLink)}
    told = [report for destination, report in sent(bench.out, LinkStateAdvertisement) if destination == EVERYBODY]
    assert (told[-1].neighbour, told[-1].up) == (B, False), "both ends may close at once: who else would say so?"


def test_a_removed_link_that_is_down_was_reported_when_it_went_down() -> None:
    bench = Follower(D, roster_of(A, B, D, links=(link(A, B), link(A, D), link(B, D))))
    bench.handle(events.LinkLost(site=B, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=B, reason="refused"))
    assert [report.up for _, report in sent(bench.taken(), LinkStateAdvertisement) if report.neighbour == B][-1:] == [
        False
    ]
    bench.agreed(RemoveLink(one=B, other=D, resolve=False, views=views(bench, 1), reason=""))
    assert not sent(bench.taken(), LinkStateAdvertisement) and B not in bench.machine.links.neighbours


def test_an_ordered_link_is_measured_and_answered_once_for_each_order() -> None:
    bench = Follower(B, roster_of(A, B, C))
    for name in ("x", "y"):
        bench.hear(A, ConnectOrder(negotiation=name, other=C, address="c:1", probe=True))
    assert len(of(bench.taken(), ProbeLink)) == 1, "one measurement for both"
    out = bench.handle(events.LinkProbed(site=C, rate_bytes_per_s=5.0, reason="built-in"))
    assert {ready.negotiation for _, ready in sent(out, LinkReady)} == {"x", "y"}
    assert all(ready.ready and ready.rate_bytes_per_s == 5.0 for _, ready in sent(out, LinkReady))


def test_orders_are_bounded_in_number_and_come_from_the_run_alone() -> None:
    bench = Follower(B, roster_of(A, B))
    for number in range(100):
        bench.hear(A, ConnectOrder(negotiation=f"n{number}", other=D, address="", probe=False))
    bench.taken()
    assert len(sent(bench.up(D).taken(), LinkReady)) == 64
    outside = Bench(D).up(A, B)
    outside.hear(B, ConnectOrder(negotiation="x", other=C, address="c:1", probe=False))
    assert C not in outside.machine.links.neighbours, "not from somebody that is neither known nor the scheduler"


def test_bytes_of_a_round_that_nobody_acknowledges_are_reported_after_a_failure_timeout() -> None:
    bench = training_member()
    waiting = events.ConnectionProgress(stream=0, received=False, acknowledged=False, waiting=True)
    bench.handle(events.LinkProgressed(site=B, connections=(waiting,)))
    assert {one.unacknowledged_by for _, one in sent(bench.alive(0.9), SiteStatus)} == {""}
    last = sent(bench.alive(0.5), SiteStatus)[-1][1]
    assert last.unacknowledged_by == B and last.unacknowledged_s >= SETTINGS.failure_timeout_s
