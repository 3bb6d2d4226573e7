"""Whose word counts: the sites of the run that a site's journal knows, right after a restart too (spec 4.12, 12.3)."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.protocols.follower import to_worker
from tests.unit.protocols.membership.test_outsiders import AGREEMENT, ORDERS, append, facts
from tests.unit.protocols.one_site import (
    EPOCH,
    MODEL,
    SETTINGS,
    A,
    B,
    Bench,
    C,
    D,
    E,
    heartbeat,
    roster_of,
    sent,
)
from tests.unit.protocols.scheduler.scheduler_kit import alive

from chaos_protocols import events
from chaos_protocols.agreement.commands import encode_roster
from chaos_protocols.agreement.raft import Persist
from chaos_protocols.agreement.raft.messages import (
    Configuration,
    LogEntry,
    PreVoteRequest,
    Snapshot,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
)
from chaos_protocols.membership.scheduler_client import EPOCHS_AHEAD_MAX
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import (
    Heartbeat,
    JoinAnswer,
    LeaveAnswer,
    LinkAnswer,
    LinkStateAdvertisement,
    Message,
    RaftEnvelope,
)
from chaos_protocols.wire.recovery import RecoverAnswer
from chaos_protocols.wire.versions import NEWEST, Versions
from chaos_protocols.wire.worker import WorkerRefused

FAR = (1 << 53) - 1


def restarted() -> Bench:
    """B, a voter, was just started again: nothing of its new life is in the roster yet. D may connect, no more."""
    return Bench(B, roster_of(A, B, C), incarnation=2).up(A, C, D)


def test_a_site_that_does_not_lead_names_itself_to_nobody_though_others_still_do() -> None:
    """A follower that takes it for the scheduler would hear its own word back."""
    bench = Bench(A, roster_of(A, B, C)).up(B, C)
    bench.hear(B, heartbeat(scheduler=A))
    assert not bench.machine.replica.leads and bench.machine.participation.client.scheduler is None
    beats = sent(bench.wait(2 * SETTINGS.beat_s), Heartbeat)
    assert beats and all(beat.scheduler is None for _, beat in beats)


def test_a_voter_whose_leader_says_itself_that_it_is_none_asks_for_votes_at_once() -> None:
    bench = Bench(B, roster_of(A, B, C)).up(A, C)
    bench.hear(A, RaftEnvelope(message=append()))
    assert bench.machine.raft.leader == A
    bench.hear(C, heartbeat(scheduler=None))
    assert not sent(bench.wait(SETTINGS.raft_heartbeat_s), RaftEnvelope), "it is not C that leads"
    bench.hear(A, heartbeat(scheduler=None))
    asked = sent(bench.wait(SETTINGS.raft_heartbeat_s), RaftEnvelope)
    assert asked and all(isinstance(one.message, PreVoteRequest) for _, one in asked)


def forged(leader: SiteId) -> RaftEnvelope:
    """A roster that `leader` has made up, with itself alone in it and the site that it is sent to."""
    snapshot = Snapshot(
        index=FAR - 1,
        term=9,
        configuration=Configuration(voters=(leader,), learners=(B,)),
        state=encode_roster(roster_of(leader, learners=(B,), epoch=FAR - 1)),
    )
    return RaftEnvelope(message=SnapshotRequest(term=9, leader=leader, snapshot=snapshot, tenure=1))


def test_a_guest_cannot_replace_the_roster_of_a_voter_that_was_just_restarted() -> None:
    bench = restarted()
    assert not bench.machine.membership.in_roster
    before = facts(bench)
    out = bench.hear(D, heartbeat(epoch=EPOCH + 9, scheduler=D, knows_you=True))
    out += bench.hear(D, forged(D))
    assert facts(bench) == before and not [one for one in out if isinstance(one, Persist)]
    assert not sent(out, RaftEnvelope)


def test_a_guest_cannot_replace_the_roster_of_a_voter_that_knows_no_scheduler() -> None:
    bench = Bench(B, roster_of(A, B, C)).up(C, D)
    alive(bench, C, D, seconds=3 * SETTINGS.election_timeout_s)
    assert bench.machine.raft.leader is None and bench.machine.membership.in_roster
    roster, index = bench.machine.roster, bench.machine.raft.last_index
    bench.hear(D, heartbeat(epoch=EPOCH + 9, scheduler=D, knows_you=True))
    bench.hear(D, forged(D))
    assert bench.machine.roster == roster and bench.machine.raft.last_index == index


@pytest.mark.parametrize(
    "message", [*(RaftEnvelope(message=one) for one in AGREEMENT), *ORDERS], ids=lambda one: str(type(one).__name__)
)
def test_nothing_that_binds_is_taken_from_a_guest_after_a_restart(message: Message) -> None:
    bench = restarted()
    before, rejected = facts(bench), bench.machine.inbound.rejected
    bench.hear(D, message)
    assert facts(bench) == before and bench.machine.inbound.rejected == rejected + 1


def test_a_voter_that_is_to_be_removed_is_heard_until_that_is_known_to_be_committed() -> None:
    """All were started again, with nothing known to be committed but the first roster; of three voters each of two had
    an entry without one of the others, and nobody was elected (seed 9060577, 3 sites)."""
    removal = LogEntry(index=EPOCH + 1, term=1, command=b"", configuration=Configuration(voters=(A, B), learners=()))
    bench = Bench(A, roster_of(A), voters=(A, B, C), entries=(removal,), incarnation=2).up(B, C, D)
    assert bench.machine.is_trusted(C) and not bench.machine.is_trusted(D)


def test_a_restarted_site_follows_the_scheduler_that_its_journal_knows() -> None:
    bench = restarted()
    bench.hear(A, RaftEnvelope(message=append()))
    assert bench.machine.raft.leader == A


def test_a_restarted_site_follows_a_new_scheduler_that_a_site_of_its_journal_names() -> None:
    """All of the run may be new since, as long as one that it knows is there to say who leads."""
    bench = restarted()
    bench.hear(C, heartbeat(epoch=EPOCH + 9, scheduler=D, knows_you=True))
    assert bench.machine.is_trusted(D) and not bench.machine.is_trusted(E)
    bench.hear(D, forged(D))
    assert bench.machine.roster.epoch == FAR - 1


def test_a_new_site_believes_its_peers_and_whom_they_name() -> None:
    bench = Bench(B, peers=(A,)).up(A, D)
    bench.hear(D, heartbeat(epoch=5, scheduler=D, knows_you=True))
    bench.hear(D, forged(D))
    assert bench.machine.raft.snapshot is None and bench.machine.scheduler_site() is None
    bench.hear(A, heartbeat(epoch=3, scheduler=C, knows_you=False))
    assert bench.machine.scheduler_site() == C and bench.machine.is_trusted(C) and not bench.machine.is_trusted(D)
    bench.hear(C, forged(C), by=A)
    assert bench.machine.roster.member_ids() == (C,)


def test_a_new_site_that_names_no_peer_believes_who_is_linked_with_it() -> None:
    """Nobody can be linked with it whom its operator has not let in."""
    bench = Bench(B).up(A)
    bench.hear(A, heartbeat(epoch=3, scheduler=A, knows_you=False))
    bench.hear(A, forged(A))
    assert bench.machine.roster.member_ids() == (A,)


def test_a_peer_that_is_configured_later_is_believed_by_a_site_that_was_in_no_run() -> None:
    bench = Bench(B, peers=(A,)).up(C)
    assert not bench.machine.is_trusted(C)
    bench.handle(events.PeersChanged(peers=((C, "c.example:7400"),)))
    assert bench.machine.is_trusted(C) and not bench.machine.is_trusted(A)


def test_a_peer_of_the_configuration_is_a_guest_to_a_site_that_knows_its_run() -> None:
    bench = Bench(B, roster_of(A, B, C), incarnation=2, peers=(D,)).up(D)
    bench.hear(D, forged(D))
    assert not bench.machine.is_trusted(D) and bench.machine.roster.record(A) is not None


def test_whom_a_site_named_that_is_no_longer_of_the_run_stands_in_the_way_of_nobodys_word() -> None:
    """A roster came without it. What it says from then on does not count, so its old word would hold for ever."""
    bench = restarted()
    bench.hear(C, heartbeat(epoch=EPOCH + 9, scheduler=A))
    bench.hear(A, forged(A))
    assert bench.machine.roster.member_ids() == (A,) and bench.machine.network.links.is_up(C)
    bench.hear(A, heartbeat(epoch=3, scheduler=D))
    assert bench.machine.scheduler_site() == D and bench.machine.is_trusted(D)


def test_a_guest_points_nobody_to_a_scheduler() -> None:
    bench = restarted()
    bench.hear(D, heartbeat(epoch=EPOCH + 9, scheduler=D))
    assert bench.machine.scheduler_site() is None
    bench.hear(C, heartbeat(epoch=EPOCH, scheduler=A))
    bench.hear(D, heartbeat(epoch=EPOCH + 9, scheduler=D))
    assert bench.machine.scheduler_site() == A


def test_an_epoch_that_nobody_can_have_reached_names_no_scheduler_and_puts_nobody_out() -> None:
    bench = restarted()
    bench.hear(C, heartbeat(epoch=EPOCH + EPOCHS_AHEAD_MAX + 1, scheduler=D))
    assert bench.machine.scheduler_site() is None
    bench.hear(C, heartbeat(epoch=EPOCH + EPOCHS_AHEAD_MAX, scheduler=A))
    assert bench.machine.scheduler_site() == A
    bench = Bench(B, roster_of(A, B, C)).up(C)
    bench.hear(C, heartbeat(epoch=EPOCH + EPOCHS_AHEAD_MAX + 1, knows_you=False))
    assert bench.machine.membership.in_roster


def test_a_word_of_a_far_epoch_counts_no_longer_than_its_link() -> None:
    """Otherwise a newcomer would be pointed to a false scheduler for ever."""
    bench = Bench(B, peers=(A, C)).up(A, C)
    bench.hear(A, heartbeat(epoch=EPOCHS_AHEAD_MAX, scheduler=E))
    bench.hear(C, heartbeat(epoch=9, scheduler=C))
    assert bench.machine.scheduler_site() == E
    bench.handle(events.LinkLost(site=A, incarnation=1, reason="connection reset"))
    bench.handle(events.DialFailed(site=A, reason="refused"))
    bench.hear(C, heartbeat(epoch=9, scheduler=C))
    assert bench.machine.scheduler_site() == C


def member() -> Bench:
    """B, that hears its scheduler A, and trains."""
    bench = Bench(B, roster_of(A, B, C), voters=(A,)).up(A, C)
    bench.hear(A, RaftEnvelope(message=append()))
    return bench


def test_a_member_that_hears_its_scheduler_is_not_put_out_by_another_one() -> None:
    bench = member()
    bench.hear(C, heartbeat(epoch=EPOCH + 9, knows_you=False))
    assert bench.machine.membership.in_roster
    bench.hear(A, heartbeat(epoch=EPOCH + 9, knows_you=False))
    assert not bench.machine.membership.in_roster


def test_a_member_that_has_not_heard_its_scheduler_for_a_while_believes_that_it_was_removed() -> None:
    bench = member()
    alive(bench, C, seconds=SETTINGS.failure_timeout_s + 0.1)
    bench.hear(D, heartbeat(epoch=EPOCH + 9, knows_you=False))
    assert bench.machine.membership.in_roster
    bench.hear(C, heartbeat(epoch=EPOCH + 9, knows_you=False))
    assert not bench.machine.membership.in_roster


def with_a_learner() -> Bench:
    """B, that hears its scheduler A; D is a learner of the run."""
    bench = Bench(B, roster_of(A, B, C, learners=(D,)), voters=(A, B, C)).up(A, C, D)
    bench.hear(A, RaftEnvelope(message=append()))
    bench.taken()
    return bench


def test_a_learner_does_not_lead_by_saying_so() -> None:
    bench = with_a_learner()
    before = facts(bench)
    bench.hear(D, heartbeat(epoch=EPOCH + 9, scheduler=D))
    for message in (msgspec.structs.replace(append(term=9), leader=D), TimeoutNow(term=2)):
        out = bench.hear(D, RaftEnvelope(message=message))
        assert not [one for one in out if isinstance(one, Persist)]
    bench.hear(D, forged(D))
    assert facts(bench) == before


def test_only_the_scheduler_answers_what_only_it_was_asked() -> None:
    """A final refusal sends the worker away: one member's word could end the training of another."""
    bench = with_a_learner()
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.taken()
    answers: list[Message] = [
        JoinAnswer(incarnation=1, accepted=False, final=True, reason="go away"),
        LeaveAnswer(incarnation=1, last_round=0, finished=True),
        LinkAnswer(request="x", done=True, reason=""),
        RecoverAnswer(request="operator", done=True, reason=""),
    ]
    for source in (C, D):
        for answer in answers:
            before = bench.machine.inbound.rejected
            assert not to_worker(bench.hear(source, answer), WorkerRefused)
            assert bench.machine.inbound.rejected == before + 1
    assert bench.machine.participation.joining.answer is None
    refused = to_worker(bench.hear(A, answers[0]), WorkerRefused)
    assert [one.reason for one in refused] == ["the run refuses this site: go away"], "the test can see"


def test_a_learner_does_not_end_the_term_of_a_leader_that_is_heard() -> None:
    bench = with_a_learner()
    asks = VoteRequest(term=9, last_index=FAR, last_term=8, transfer=True)
    bench.hear(D, RaftEnvelope(message=asks))
    assert bench.machine.raft.term == 2 and bench.machine.raft.leader == A
    bench.hear(C, RaftEnvelope(message=asks))
    assert bench.machine.raft.term == 9, "a voter may have been handed the role"


def test_a_site_that_got_its_vote_meanwhile_leads_when_a_voter_names_it() -> None:
    """The entry with its vote may not have come here yet."""
    bench = with_a_learner()
    claim = RaftEnvelope(message=msgspec.structs.replace(append(term=9), leader=D))
    bench.hear(C, heartbeat(epoch=EPOCH + 9, scheduler=D))
    bench.hear(D, heartbeat(epoch=EPOCH + 9, scheduler=D))
    bench.hear(D, claim)
    assert bench.machine.raft.leader == D and bench.machine.raft.term == 9


def test_a_site_that_got_its_vote_meanwhile_is_named_by_a_voter_that_was_left_behind_too() -> None:
    """D has led with the only vote since A and C left, and says so with the newest roster; in B's journal that is the
    word of a learner. C, that comes back as B does, knows D's vote, and has an old roster (seed 2282, 4 sites)."""
    bench = Bench(B, roster_of(A, B, C, learners=(D,)), voters=(A, B, C), incarnation=2).up(C, D)
    claim = RaftEnvelope(message=msgspec.structs.replace(append(term=9), leader=D))
    bench.hear(D, heartbeat(epoch=EPOCH + 9, scheduler=D))
    bench.hear(D, claim)
    assert bench.machine.raft.leader is None
    bench.hear(C, heartbeat(epoch=EPOCH - 1, scheduler=D))
    assert bench.machine.scheduler_site() == D, "the newest roster names it, too"
    bench.hear(D, heartbeat(epoch=EPOCH + 9, scheduler=D))
    bench.hear(D, claim)
    assert bench.machine.raft.leader == D
    bench.hear(C, heartbeat(epoch=EPOCH - 1, scheduler=A))
    bench.hear(D, RaftEnvelope(message=msgspec.structs.replace(append(term=10), leader=D)))
    assert bench.machine.raft.term == 9, "C has taken its word back"


def test_whom_a_site_follows_it_goes_on_believing_before_the_roster_with_him_has_come() -> None:
    """D came back, and got its vote and the role, while B was cut off. Its first word fits nowhere in B's log, so what
    B lacks comes with a later one (seed 710185, 3 sites)."""
    bench = Bench(B, roster_of(A, B, C), voters=(C,)).up(C, D, E)
    missed = [LogEntry(index=EPOCH + 1, term=3, command=b""), LogEntry(index=EPOCH + 2, term=3, command=b"")]
    first = msgspec.structs.replace(append(term=3), leader=D, previous_index=EPOCH + 2, previous_term=3)
    later = msgspec.structs.replace(append(*missed, term=3), leader=D)
    bench.hear(C, heartbeat(epoch=EPOCH + 9, scheduler=D))
    bench.hear(D, RaftEnvelope(message=first))
    assert bench.machine.raft.leader == D and bench.machine.raft.last_index == EPOCH
    bench.hear(D, RaftEnvelope(message=later))
    assert bench.machine.raft.last_index == EPOCH + 2
    bench.hear(C, heartbeat(epoch=EPOCH + 9, scheduler=E))
    assert bench.machine.is_trusted(D) and not bench.machine.is_trusted(E), "it follows one of them"


def test_a_change_that_takes_a_vote_takes_it_once_it_is_agreed() -> None:
    """A has proposed that D votes no more, and gave up its role before a majority had that; those without it may elect
    D. C, that is outside, still names A (seed 679, 3 sites)."""
    without_d = Configuration(voters=(A, B), learners=(C, D))
    proposed = LogEntry(index=EPOCH + 1, term=2, command=b"", configuration=without_d)
    claim = RaftEnvelope(message=msgspec.structs.replace(append(term=3), leader=D))
    for committed in (False, True):
        bench = Bench(B, roster_of(A, B, C, D), voters=(A, B, D)).up(A, C, D)
        bench.hear(A, RaftEnvelope(message=append(proposed)))
        if committed:
            heard = msgspec.structs.replace(append(), previous_index=EPOCH + 1, previous_term=2, commit_index=EPOCH + 1)
            bench.hear(A, RaftEnvelope(message=heard))
        bench.hear(C, heartbeat(epoch=EPOCH + 9, scheduler=A))
        assert bench.machine.raft.configuration == without_d
        bench.hear(D, claim)
        assert (bench.machine.raft.leader == D) is not committed


def test_a_neighbour_that_was_started_again_with_an_older_roster_takes_its_former_word_back() -> None:
    """Until then B named itself, with a newer roster; its new daemon has the one of its disk, and names another (seed
    5255, 7 sites)."""
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C), incarnation=2).up(B, C)
    bench.hear(B, heartbeat(epoch=EPOCH + 9, scheduler=B))
    bench.hear(C, heartbeat(epoch=EPOCH + 8, scheduler=C))
    assert bench.machine.scheduler_site() == B, "the newest roster counts"
    bench.hear(B, heartbeat(epoch=EPOCH, scheduler=D))
    assert bench.machine.scheduler_site() == D


def test_what_a_guest_says_of_a_members_daemon_is_forgotten_after_a_restart_too() -> None:
    bench = restarted()
    told = LinkStateAdvertisement(neighbour=C, incarnation=FAR, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="")
    bench.hear(D, told)
    assert bench.machine.restarted_as(C) == 1


def start_of(site: SiteId, incarnation: int, versions: Versions | None = None) -> LinkStateAdvertisement:
    """Said of a link to that start of the site's daemon."""
    return LinkStateAdvertisement(
        neighbour=site, incarnation=incarnation, up=True, rtt_s=0.0, rate_bytes_per_s=0.0, reason="", versions=versions
    )


def test_a_members_word_restarts_nobody_else() -> None:
    """One that is believed would lock the other out: its daemon never reaches that number (spec 4.11)."""
    bench = Bench(A, roster_of(A, B, C), voters=(A,)).up(B, C)
    bench.taken()
    for incarnation in (2, FAR):
        bench.hear(B, start_of(C, incarnation))
        assert bench.machine.restarted_as(C) == 1
    bench.wait(0.3)
    record = bench.machine.roster.record(C)
    assert record is not None and record.incarnation == 1


def test_who_was_started_again_is_known_by_its_own_word_however_it_comes() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A,)).up(B)
    older, newer = Versions(oldest=2, newest=3), Versions(oldest=2, newest=NEWEST)
    spoken = bench.machine.network.versions
    bench.hear(B, start_of(C, 1, newer))
    bench.hear(B, start_of(C, 2, older))
    assert spoken.of(C) == newer, "of a start that nobody knows of nothing is believed yet"
    bench.hear(B, start_of(C, 2))
    bench.hear(C, start_of(B, 1), by=B, incarnation=2)
    assert bench.machine.restarted_as(C) == 2 and spoken.of(C) == older
