"""Every state of every negotiation, with every event: listed as handled or as expected and ignored, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from chaos_protocols.agreement.commands import (
    AddLink,
    AddSite,
    PromoteSite,
    RemoveLink,
    RemoveSite,
    Replicate,
    SetVoters,
)
from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.errors import LocalProtocolError
from chaos_protocols.names import SiteId
from chaos_protocols.scheduler.negotiation import (
    Committed,
    Conclude,
    ConnectLink,
    DeadlinePassed,
    DisconnectLink,
    EverybodyDone,
    LearnerCaughtUp,
    LinkAnswered,
    ProposalLost,
    Propose,
    Resolution,
    RoundNeverDone,
    ScaleIn,
    ScaleOut,
    SubjectGone,
    Tell,
)
from chaos_protocols.scheduler.negotiation.links import LinkState
from chaos_protocols.scheduler.negotiation.scale_in import ScaleInState
from chaos_protocols.scheduler.negotiation.scale_out import ScaleOutState
from chaos_protocols.wire.control import JoinRequest, LeaveAnswer

A, B, C = SiteId("a"), SiteId("b"), SiteId("c")
MODEL = ModelFacts(spec_digest="d", state_bytes=8, shard_bytes=4)
ANSWER = LinkAnswered(site=A, other=C, ready=True, rtt_s=0.01, rate_bytes_per_s=1e6, reason="")
EVENTS = {
    LinkAnswered: ANSWER,
    Committed: Committed(),
    ProposalLost: ProposalLost(reason="r", final=True),
    LearnerCaughtUp: LearnerCaughtUp(),
    Resolution: Resolution(),
    EverybodyDone: EverybodyDone(),
    RoundNeverDone: RoundNeverDone(round=9),
    SubjectGone: SubjectGone(reason="gone"),
    DeadlinePassed: DeadlinePassed(),
}


def request(*neighbours: SiteId) -> JoinRequest:
    return JoinRequest(
        name="c", address="c", public_key=b"", incarnation=1, neighbours=neighbours, model=MODEL, worker_round=0
    )


def scale_out(*neighbours: SiteId) -> ScaleOut:
    return ScaleOut("j", joiner=C, request=request(*neighbours), cause="asked", now_s=0.0)


def scale_in(*, graceful: bool, resolve: bool = False) -> ScaleIn:
    return ScaleIn("i", site=C, incarnation=1, graceful=graceful, resolve=resolve, cause="asked", now_s=0.0)


def connect() -> ConnectLink:
    return ConnectLink("l", one=C, other=A, request=(A, "r1"), cause="asked", now_s=0.0)


def disconnect(*, resolve: bool) -> DisconnectLink:
    return DisconnectLink("l", one=A, other=C, request=(A, "r1"), resolve=resolve, cause="asked", now_s=0.0)


MAKERS: dict[type, Any] = {
    ScaleOut: (ScaleOutState, lambda: scale_out(A)),
    ScaleIn: (ScaleInState, lambda: scale_in(graceful=True)),
    ConnectLink: (LinkState, connect),
    DisconnectLink: (LinkState, lambda: disconnect(resolve=True)),
}
PAIRS = [(kind, state, event) for kind, (states, _) in MAKERS.items() for state in states for event in EVENTS]


@pytest.mark.parametrize(("kind", "state", "event"), PAIRS)
def test_every_pair_of_state_and_event_does_what_the_table_says(kind: Any, state: Any, event: type) -> None:
    negotiation = MAKERS[kind][1]()
    negotiation.state = state
    listed = kind.TABLE.get((state, event), "refused")
    if listed == "refused":
        with pytest.raises(LocalProtocolError):
            negotiation.handle(EVENTS[event])
    elif listed is None:
        assert negotiation.handle(EVENTS[event]) == []
        assert negotiation.state is state
    else:
        assert isinstance(negotiation.handle(EVENTS[event]), list)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_table_names_only_methods_that_exist(kind: Any) -> None:
    for name in kind.TABLE.values():
        assert name is None or callable(getattr(kind, name))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_either_has_a_command_to_propose_or_says_that_it_has_none(kind: Any) -> None:
    for state in MAKERS[kind][0]:
        negotiation = MAKERS[kind][1]()
        negotiation.state = state
        if state in kind.COMMANDS:
            assert callable(getattr(negotiation, kind.COMMANDS[state]))
            assert (state, ProposalLost) in kind.TABLE, "it hears that the proposal was lost"
        else:
            assert (state, ProposalLost) not in kind.TABLE
            with pytest.raises(LocalProtocolError, match="proposes nothing"):
                negotiation.command(None)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_lost_subject_is_expected_in_every_state_but_the_last_ones(kind: Any) -> None:
    for state in MAKERS[kind][0]:
        listed = (state, SubjectGone) in kind.TABLE
        lasting = any(known is state and event is not SubjectGone for known, event in kind.TABLE)
        busy = state.name not in ("DONE", "FAILED") and lasting and (state, Resolution) in kind.TABLE
        assert listed == busy


def test_only_what_a_site_wanted_for_itself_comes_to_nothing_with_it() -> None:
    """Its removal does not, nor does that of a link to it."""
    for negotiation in (scale_out(A), scale_in(graceful=True), connect()):
        assert negotiation.concerns(C) and not negotiation.concerns(B)
    assert not scale_in(graceful=False).concerns(C) and not disconnect(resolve=True).concerns(C)


def test_a_joiner_is_admitted_when_all_neighbours_have_answered() -> None:
    join = scale_out(A, B)
    orders = join.begin(deadline_s=5.0)
    assert [order.site for order in orders if isinstance(order, Tell)] == [A, B]
    assert join.handle(ANSWER) == []
    other = LinkAnswered(site=B, other=C, ready=False, rtt_s=0, rate_bytes_per_s=0, reason="policy")
    assert join.handle(other) == [Propose(command=AddSite)]
    assert join.state is ScaleOutState.ADMITTING


def test_a_joiner_is_admitted_at_the_deadline_with_those_that_answered() -> None:
    join = scale_out(A, B)
    join.begin(deadline_s=5.0)
    join.handle(ANSWER)
    assert join.handle(DeadlinePassed()) == [Propose(command=AddSite)]


def test_a_joiner_that_is_to_be_admitted_may_wait_for_its_turn_beyond_the_deadline_of_its_links() -> None:
    answered, late = scale_out(A), scale_out(A, B)
    for join in (answered, late):
        join.begin(deadline_s=5.0)
        join.handle(ANSWER)
    assert late.deadline_s == 5.0, "B has not answered"
    late.handle(DeadlinePassed())
    for join in (answered, late):
        assert join.state is ScaleOutState.ADMITTING and join.deadline_s is None


def test_a_join_without_any_link_fails_and_says_why() -> None:
    join = scale_out(A)
    join.begin(deadline_s=5.0)
    (end,) = join.handle(DeadlinePassed())
    assert isinstance(end, Conclude)
    assert end.outcome == "failed"
    assert "no answer" in end.reason


def test_the_whole_way_of_a_joiner() -> None:
    join = scale_out(A)
    join.begin(deadline_s=5.0)
    join.handle(ANSWER)
    assert join.handle(Committed()) == []
    assert join.handle(LearnerCaughtUp()) == [Propose(command=PromoteSite)]
    (end,) = join.handle(Committed())
    assert isinstance(end, Conclude)
    assert (end.outcome, join.state, join.concluded) == ("done", ScaleOutState.DONE, True)


def test_a_restored_site_skips_the_connecting() -> None:
    restore = ScaleOut("s", joiner=C, request=None, cause="worker restarted", now_s=0.0)
    assert restore.begin(deadline_s=0.0) == [Propose(command=Replicate)]


def test_a_graceful_leave_tells_the_last_round_and_then_that_all_have_it() -> None:
    leave = scale_in(graceful=True)
    assert leave.begin() == [Propose(command=RemoveSite)]
    (told,) = leave.handle(Committed(last_round=7))
    assert told == Tell(site=C, message=LeaveAnswer(incarnation=1, last_round=7, finished=False))
    finished, release = leave.handle(EverybodyDone())
    assert finished == Tell(site=C, message=LeaveAnswer(incarnation=1, last_round=7, finished=True))
    assert release == Propose(command=SetVoters)
    (end,) = leave.handle(Committed())
    assert isinstance(end, Conclude)
    assert end.outcome == "done"


def test_a_leaver_need_not_wait_for_a_round_that_never_comes() -> None:
    leave = scale_in(graceful=True)
    leave.handle(Committed(last_round=7))
    assert leave.handle(RoundNeverDone(round=7)) == [] and leave.last_round == 6
    assert leave.handle(RoundNeverDone(round=9)) == [] and leave.last_round == 6


def test_the_last_word_of_a_learner_counts_when_its_promotion_is_proposed() -> None:
    join = scale_out(A)
    join.begin(deadline_s=5.0)
    join.handle(ANSWER)
    join.handle(Committed())
    join.handle(LearnerCaughtUp(waits=True))
    assert join._waits
    assert join.handle(LearnerCaughtUp(waits=False)) == [] and not join._waits


def test_a_leaver_that_dies_before_its_last_round_has_still_left() -> None:
    leave = scale_in(graceful=True)
    leave.handle(Committed())
    (end,) = leave.handle(SubjectGone(reason="killed"))
    assert isinstance(end, Conclude)
    assert end.outcome == "done"
    assert leave.left


def test_a_failed_site_is_resolved_before_its_removal_is_done() -> None:
    removal = scale_in(graceful=False, resolve=True)
    assert removal.handle(Committed()) == []
    assert removal.state is ScaleInState.SETTLING
    (end,) = removal.handle(Resolution())
    assert isinstance(end, Conclude)


def test_a_link_is_proposed_when_both_ends_have_it() -> None:
    link = connect()
    assert len(link.begin({A: "a", C: "c"}, deadline_s=1.0)) == 2
    assert link.handle(ANSWER) == []
    both = LinkAnswered(site=C, other=A, ready=True, rtt_s=0.02, rate_bytes_per_s=2e6, reason="")
    assert link.handle(both) == [Propose(command=AddLink)]
    assert (link.rtt_s, link.rate_bytes_per_s) == (0.02, 2e6)


def test_one_refusing_end_ends_the_link_and_answers_the_user() -> None:
    link = connect()
    link.begin({A: "a", C: "c"}, deadline_s=1.0)
    told, end = link.handle(LinkAnswered(site=C, other=A, ready=False, rtt_s=0, rate_bytes_per_s=0, reason="no"))
    assert isinstance(told, Tell)
    assert isinstance(end, Conclude)
    assert end.outcome == "failed"


def test_a_proposal_that_may_succeed_later_is_made_again() -> None:
    removal = disconnect(resolve=False)
    again = removal.handle(ProposalLost(reason="not now", final=False))
    assert again == [Propose(command=RemoveLink)]
    _, end = removal.handle(ProposalLost(reason="never", final=True))
    assert isinstance(end, Conclude)
    assert end.outcome == "refused"
