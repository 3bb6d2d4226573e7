"""Why a site stands: the nearest cause, at the script, in the status and in the history (spec 12.11)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.protocols.follower import Follower, hello, to_worker, training_member
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
from chaos_protocols.causes import Cause, Why
from chaos_protocols.effects import StopDaemon
from chaos_protocols.wire.control import Heartbeat, JoinAnswer, JoinRequest
from chaos_protocols.wire.user_words import RunPaused

ONE, OTHER = "1" * 32, "2" * 32


def why(bench: Bench) -> Why:
    found = bench.machine.participation.pause.why()
    assert found is not None
    return found


def failed(bench: Bench, cause: Cause, **found: Any) -> None:
    bench.handle(events.DialFailed(site=B, reason="refused", why=cause.told(**found)))


def beat_of(run_id: str, **more: Any) -> Heartbeat:
    made = heartbeat(**more)
    return Heartbeat(**{**{name: getattr(made, name) for name in made.__struct_fields__}, "run_id": run_id})


def joiner(*peers: Any) -> Bench:
    bench = Bench(D, peers=peers)
    hello(bench)
    return bench


def test_a_site_whose_script_is_not_there_waits_for_it_before_anything_else() -> None:
    assert why(Bench(D, peers=(B,))).cause is Cause.NO_WORKER


def test_a_site_without_a_peer_is_told_that_nobody_is_named() -> None:
    assert why(joiner()).cause is Cause.NO_PEER


@pytest.mark.parametrize(
    ("cause", "found"),
    [
        (Cause.NOT_RUNNING, {"site": "b", "address": "b:1"}),
        (Cause.UNREACHABLE, {"site": "b", "address": "b:1", "reason": "timed out"}),
        (Cause.DISTRUSTED, {"site": "b", "own": D, "words": "acorn"}),
        (Cause.OTHER_VERSION, {"site": "b", "reason": "2 and 3"}),
        (Cause.OTHER_NAME, {"site": "b", "reason": "lungs"}),
        (Cause.OTHER_RUN, {"site": "b", "there": "11", "here": "22"}),
        (Cause.ANOTHER_SITE, {"site": "b", "address": "b:1", "reason": "it is c"}),
    ],
    ids=lambda one: one.code if isinstance(one, Cause) else "",
)
def test_a_joiner_without_a_link_is_told_what_came_of_its_dials(cause: Cause, found: dict[str, str]) -> None:
    bench = joiner(B)
    assert why(bench).cause is Cause.ASKING, "the first dial is under way"
    failed(bench, cause, **found)
    assert why(bench).cause is Cause.NO_LINK and cause.told(**found).text in why(bench).text
    bench.wait(0.3)
    assert to_worker(bench.out, RunPaused)[-1].reason == why(bench).text, "its script is told the same"


def test_what_somebody_has_to_take_away_is_told_before_what_may_pass() -> None:
    bench = joiner(A, B)
    bench.handle(events.DialFailed(site=A, reason="refused", why=Cause.NOT_RUNNING.told(site=A[:8], address="a:1")))
    failed(bench, Cause.DISTRUSTED, site=B[:8], own=D, words="acorn")
    assert why(bench).text.index("waiting for the operator") < why(bench).text.index("does not run")
    assert D in why(bench).text, "the whole id, to be sent to the peer's operator"


def test_a_refusal_is_in_the_history_once_and_again_after_there_was_a_link() -> None:
    bench = joiner(B)

    def told() -> list[str]:
        return [one.cause for one in records(bench.taken(), "refused")]

    for _ in range(3):
        failed(bench, Cause.DISTRUSTED, site=B[:8], own=D, words="acorn")
        bench.wait(0.6)
    assert told() == ["peer-does-not-trust"]
    failed(bench, Cause.NOT_RUNNING, site=B[:8], address="b:1")
    assert told() == [], "that passes by itself"
    bench.up(B)
    bench.handle(events.LinkLost(site=B, incarnation=1, reason="end of file"))
    failed(bench, Cause.DISTRUSTED, site=B[:8], own=D, words="acorn")
    assert told() == ["peer-does-not-trust"]


def test_sites_that_all_wait_are_told_that_nobody_has_founded_the_run() -> None:
    bench = joiner(B).up(B)
    assert why(bench).cause is Cause.ASKING, "it has not been heard yet"
    bench.hear(B, heartbeat(epoch=0, knows_you=False))
    assert why(bench).cause is Cause.NO_FOUNDER and B[:8] in why(bench).text


def test_a_member_without_a_vote_says_soon_that_no_way_leads_to_its_scheduler() -> None:
    """It takes the scheduler for one until an election timeout has passed, two at most (seed 252 of the simulator)."""
    bench = training_member()
    for site in (A, B):
        bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file"))
        bench.handle(events.DialFailed(site=site, reason="timed out", why=Cause.UNREACHABLE.told(
            site=site[:8], address="x:1", reason="timed out"
        )))  # fmt: skip
    bench.wait(SETTINGS.failure_timeout_s + 0.2)
    assert bench.machine.raft.leader == A, "it may come back"
    assert why(bench).cause is Cause.NO_QUORUM and A[:8] in why(bench).text
    while bench.machine.raft.leader is not None:
        bench.wait(0.25)
        assert why(bench).cause is Cause.NO_QUORUM, "without a break"
    bench.wait(0.25)
    assert why(bench).cause is Cause.NO_QUORUM
    bench.up(A)
    bench.alive(0.5)
    assert bench.machine.participation.pause.why() is None


def test_a_member_says_in_bounded_time_that_its_scheduler_is_silent_whatever_time_it_has_drawn() -> None:
    """One that has given up its role says nothing, and every link stands (seed 9873 of the simulator)."""
    bench = training_member()
    silent_s = SETTINGS.election_timeout_s + SETTINGS.failure_timeout_s
    bench.machine.raft._core.elect_at(bench.now_s + 2 * SETTINGS.election_timeout_s)
    for _ in range(round(2 * silent_s / 0.1)):
        for site in bench.machine.links.up_sites():
            bench.handle(moving(site))
        bench.wait(0.1)
        silent_s -= 0.1
        if silent_s > 0.05:
            assert bench.machine.participation.pause.why() is None, "an election would be over by then"
        elif silent_s < -0.05:
            assert why(bench).cause is Cause.ELECTION, "without a break, whether a leader is still known or not"
    assert bench.machine.raft.leader is None


def test_a_member_says_soon_that_its_scheduler_says_itself_that_it_is_none() -> None:
    """It hears the site that has lost its majority, over a link that stands (seed 710120 of the simulator)."""
    bench = training_member()
    bench.machine.raft._core.elect_at(bench.now_s + 2 * SETTINGS.election_timeout_s)
    for _ in range(round(SETTINGS.failure_timeout_s / 0.1) + 2):
        bench.handle(moving(A))
        bench.handle(moving(B))
        bench.hear(A, heartbeat(scheduler=None))
        bench.wait(0.1)
    assert bench.machine.raft.leader == A, "its silence does not last long enough yet"
    assert why(bench).cause is Cause.ELECTION
    bench.hear(A, heartbeat(scheduler=A))
    bench.alive(0.5)
    assert bench.machine.participation.pause.why() is None, "it leads again"


def test_a_run_without_a_scheduler_is_no_run_without_a_founder() -> None:
    bench = joiner(B).up(B)
    bench.hear(B, heartbeat(epoch=EPOCH, knows_you=False))
    assert why(bench).cause is Cause.RUN_WITHOUT_SCHEDULER


def test_a_site_whose_journal_knows_none_of_its_neighbours_says_whom_it_knows() -> None:
    """All that it knows may be gone for good, and it asks nobody else (`--operators`, seed 2671, 3 sites)."""

    def told(bench: Bench, scheduler: Any = None) -> Cause:
        bench.hear(C, heartbeat(epoch=EPOCH + 9, scheduler=scheduler, knows_you=False))
        return why(bench).cause

    def back(*knows: Any) -> Bench:
        bench = Bench(D, roster_of(*knows), voters=(A,), incarnation=2, peers=(C,)).up(C)
        hello(bench)
        return bench

    bench = back(A, D)
    assert told(bench) is Cause.UNKNOWN_MEMBERS
    assert A[:8] in why(bench).text and C[:8] in why(bench).text and D[:8] not in why(bench).text
    assert told(back(A, D), B) is Cause.UNKNOWN_MEMBERS, "it does not believe it"
    assert told(back(A, C, D), B) is not Cause.UNKNOWN_MEMBERS
    newcomer = joiner(C).up(C)
    assert told(newcomer) is Cause.RUN_WITHOUT_SCHEDULER, "it believes its peer"


def test_a_joiner_says_that_whoever_it_asks_does_not_answer() -> None:
    """Its neighbour named a scheduler, which is gone since: the name alone is no sign of life."""

    def asks(seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            bench.handle(moving(B))
            bench.hear(B, heartbeat(epoch=EPOCH, knows_you=False, scheduler=A))
            bench.wait(0.1)

    bench = joiner(B).up(B)
    asks(SETTINGS.waits_stale_s - 0.5)
    assert why(bench).cause is Cause.ASKING
    asks(1.0)
    assert why(bench).cause is Cause.RUN_WITHOUT_SCHEDULER
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=False, reason="later", cause="resolving"))
    assert why(bench).cause is Cause.RESOLVING
    asks(SETTINGS.waits_stale_s + 1.0)
    assert why(bench).cause is Cause.RUN_WITHOUT_SCHEDULER, "what it answered once is no sign of life, either"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (JoinAnswer(incarnation=1, accepted=True, final=False, reason="the negotiation runs"), Cause.ADMISSION),
        (
            JoinAnswer(incarnation=1, accepted=False, final=False, reason="later", cause="resolving"),
            Cause.RESOLVING,
        ),
        (JoinAnswer(incarnation=1, accepted=False, final=False, reason="of an older release"), Cause.NOT_NOW),
        (JoinAnswer(incarnation=1, accepted=False, final=True, reason="no", cause="banned"), Cause.BANNED),
    ],
    ids=lambda one: one.code if isinstance(one, Cause) else "",
)
def test_what_the_run_answers_is_the_cause(answer: JoinAnswer, cause: Cause) -> None:
    bench = joiner(B).up(B)
    bench.hear(B, heartbeat(epoch=EPOCH, scheduler=B, knows_you=False))
    bench.hear(B, answer)
    assert why(bench).cause is cause
    assert answer.accepted or why(bench).text == answer.reason


def test_a_cause_that_lasts_is_in_the_history_and_one_that_passes_is_not() -> None:
    bench = joiner(B)
    bench.wait(0.3)
    assert [one.cause for one in records(bench.taken(), "pause")] == ["asking to join"]
    failed(bench, Cause.NOT_RUNNING, site=B[:8], address="b:1")
    bench.wait(1.0)
    assert records(bench.taken(), "pause") == []
    bench.wait(1.5)
    (last,) = records(bench.taken(), "pause")
    assert "does not run" in last.cause
    bench.wait(5.0)
    assert records(bench.taken(), "pause") == [], "once"


def test_how_long_it_stands_counts_from_the_first_cause_until_it_goes_on() -> None:
    bench = joiner(B)
    bench.wait(0.3)
    since_s = bench.machine.participation.pause.since_s
    assert since_s is not None and bench.now_s - 0.3 <= since_s <= bench.now_s
    failed(bench, Cause.NOT_RUNNING, site=B[:8], address="b:1")
    bench.wait(SETTINGS.stateless_s + 0.5)
    assert len(records(bench.taken(), "pause")) == 2 and bench.machine.participation.pause.since_s == since_s
    bench = training_member()
    pause = bench.machine.participation.pause
    for site in (A, B):
        bench.handle(events.LinkLost(site=site, incarnation=1, reason="end of file"))
        bench.handle(events.DialFailed(site=site, reason="refused"))
    bench.wait(SETTINGS.failure_timeout_s + 0.5)
    assert pause.since_s is not None, "it has no scheduler"
    bench.up(A)
    bench.alive(0.5)
    assert pause.since_s is None


# -- two runs


def test_a_member_closes_a_link_over_which_another_run_is_heard_and_both_are_told_once() -> None:
    bench = Bench(A, roster_of(A, C, run_id=ONE)).up(B, C)
    bench.taken()
    bench.hear(B, beat_of(OTHER, epoch=EPOCH + 90, scheduler=B, knows_you=False))
    assert not bench.machine.links.is_up(B) and bench.machine.links.is_up(C)
    assert [one.cause for one in records(bench.out, "refused")] == ["peer-in-other-run"]
    assert bench.machine.membership.in_roster, "its far epoch puts nobody out"
    bench.up(B)
    bench.hear(B, beat_of(ONE, epoch=EPOCH, scheduler=A))
    assert bench.machine.links.is_up(B), "the same run"
    bench.hear(B, heartbeat())
    assert bench.machine.links.is_up(B), "a release that does not say"


def test_who_is_no_peer_keeps_no_newcomer_out_by_naming_another_run() -> None:
    """Its word counts for nothing else there; where everybody may connect it could be anybody."""
    bench = joiner(B).up(B, C)
    bench.hear(B, beat_of(ONE, epoch=EPOCH, scheduler=B, knows_you=False))
    bench.hear(C, beat_of(OTHER, epoch=EPOCH, scheduler=C, knows_you=False))
    bench.taken()
    bench.wait(1.0)
    assert why(bench).cause is not Cause.TWO_RUNS
    assert [site for site, _ in sent(bench.taken(), JoinRequest)] == [B]


def test_a_site_that_was_in_no_run_asks_neither_of_two() -> None:

    bench = joiner(B, C).up(B, C)
    bench.hear(B, beat_of(ONE, epoch=EPOCH, scheduler=B, knows_you=False))
    assert sent(bench.taken(), JoinRequest), "one run is asked"
    bench.hear(C, beat_of(OTHER, epoch=EPOCH, scheduler=C, knows_you=False))
    bench.wait(0.2)
    bench.taken()
    bench.wait(0.7)
    assert why(bench).cause is Cause.TWO_RUNS and B[:8] in why(bench).text and C[:8] in why(bench).text
    assert sent(bench.taken(), JoinRequest) == []
    bench.handle(events.LinkLost(site=C, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=C, reason="refused"))
    bench.hear(B, beat_of(ONE, epoch=EPOCH - 1, scheduler=B, knows_you=False))
    bench.wait(0.6)
    assert sent(bench.taken(), JoinRequest), "one of them is gone"


def test_a_new_reason_for_the_same_pause_is_told_to_the_worker_and_not_recorded_again() -> None:
    bench = Bench(D).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.wait(0.3)
    bench.taken()
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=False, reason="resolving"))
    bench.wait(0.3)
    assert [one.reason for one in to_worker(bench.out, RunPaused)] == ["resolving"]
    assert not records(bench.out, "pause")


def test_who_is_shown_that_its_key_is_in_use_elsewhere_ends_with_the_sentence() -> None:

    bench = Bench(A, roster_of(A, B))
    hello(bench)
    found = Cause.KEY_ELSEWHERE.told(site=B[:8])
    out = bench.handle(events.DialFailed(site=B, reason="refused", why=found))
    (end,) = [one for one in out if isinstance(one, StopDaemon)]
    assert (end.graceful, end.cause, end.reason) == (False, Cause.KEY_ELSEWHERE, found.text)


def test_a_late_word_of_a_scheduler_to_which_no_way_leads_keeps_nobody_waiting_for_its_silence() -> None:
    """Row 154: it came over a third site, and was taken for a sign of life until an election would have been due."""
    bench = Follower(D, roster_of(A, B, D, links=(link(A, D), link(B, D))))
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=A, reason="refused"))
    bench.wait(1.2)
    assert why(bench).cause is Cause.NO_QUORUM
    bench.says_once_more(by=B)
    for _ in range(11):
        bench.handle(moving(B))
        bench.wait(0.1)
    assert bench.machine.participation.client.is_apart and why(bench).cause is Cause.NO_QUORUM


def test_a_scheduler_whose_words_come_over_an_outsider_alone_is_out_of_reach() -> None:
    """Row 156: it lives, and its words arrive all the while, but nothing can be agreed, and no round be done."""
    bench = Follower(D, roster_of(A, D, links=(link(A, D),)))
    bench.up(B)
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="end of file"))
    bench.handle(events.DialFailed(site=A, reason="refused"))
    for _ in range(15):
        bench.says_once_more(by=B)
        bench.handle(moving(B))
        bench.wait(0.1)
    assert bench.machine.raft.leader == A and bench.machine.raft.leader_silence_s(bench.machine.now_s) < 0.5
    told = why(bench)
    assert told.cause is Cause.NO_QUORUM and f"cannot reach {A[:8]}" in told.text
