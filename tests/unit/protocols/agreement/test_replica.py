"""A site's copy of what was agreed: entries, snapshots, the role that is lost again, the fence before a change."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.follower import (
    Follower,
    of,
    plan,
    training_member,
    views,
)
from tests.unit.protocols.one_site import (
    EPOCH,
    PLANNER,
    A,
    B,
    Bench,
    C,
    D,
    link,
    record,
    records,
    roster_of,
)
from tests.unit.protocols.scheduler.scheduler_kit import elect

from chaos_protocols import events
from chaos_protocols.agreement.commands import (
    AddSite,
    Replicate,
    RetryRound,
    decode_roster,
    encode_command,
    encode_roster,
)
from chaos_protocols.agreement.key_ring import NoKeys
from chaos_protocols.agreement.raft.messages import (
    AppendRequest,
    AppendResponse,
    Configuration,
    LogEntry,
    Snapshot,
    SnapshotRequest,
)
from chaos_protocols.effects import Contribute
from chaos_protocols.membership.facts import SiteFacts, bootstrap_roster, last_known_roster
from chaos_protocols.wire.control import (
    LinkRequest,
    RaftEnvelope,
)
from chaos_protocols.wire.versions import SPOKEN, Versions


def test_an_entry_without_a_command_as_every_new_leader_appends_it_changes_nothing() -> None:
    bench = Follower(B, roster_of(A, B))
    bench._say(LogEntry(index=EPOCH + 1, term=2, command=b""))
    assert bench.machine.inbound.rejected == 0 and bench.roster.epoch == EPOCH
    bench.agreed(RetryRound(views=bench.roster.views, reason=""))
    assert bench.roster.epoch == EPOCH + 2


def test_a_site_whose_log_is_too_old_takes_the_roster_from_a_snapshot() -> None:
    bench = Follower(B, roster_of(A, B))
    new = msgspec.structs.replace(roster_of(A, B, C), epoch=EPOCH + 50)
    snapshot = Snapshot(
        index=EPOCH + 50, term=2, configuration=Configuration(voters=(A,), learners=(B, C)), state=encode_roster(new)
    )
    bench.hear(A, RaftEnvelope(message=SnapshotRequest(term=2, leader=A, snapshot=snapshot, tenure=1)))
    assert bench.roster.site_ids() == (A, B, C) and bench.roster.epoch == EPOCH + 50


def test_a_scheduler_that_hears_of_a_newer_term_gives_the_role_up_and_says_so() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C)).up(B, C)
    elect(bench)
    newer = AppendResponse(
        term=bench.machine.term + 1, success=False, match_index=0, previous_index=0, conflict_index=0, last_index=0,
        tenure=0,
    )  # fmt: skip
    bench.taken()
    bench.hear(B, RaftEnvelope(message=newer))
    assert not bench.machine.scheduler.leading
    assert "no longer the scheduler" in records(bench.out, "election")[-1].reason


def test_a_site_gives_nothing_to_the_round_of_a_planned_change_before_its_fate_is_known() -> None:
    bench = Bench(A, roster_of(A, B, C), voters=(A, B, C)).up(B, C)
    elect(bench)
    tag = bench.machine.rounds.running
    bench.hear(B, LinkRequest(request="r", other=C, add=False, reason="asked for by a user"))
    assert bench.machine.rounds.own.fence_round is not None, "proposed, not committed"
    bench.taken()
    old = AppendResponse(
        term=bench.machine.term, success=True, match_index=EPOCH, previous_index=EPOCH, conflict_index=0,
        last_index=EPOCH, tenure=0,
    )  # fmt: skip
    bench.hear(B, RaftEnvelope(message=old))
    assert bench.machine.rounds.own.fence_round is not None and bench.machine.rounds.running == tag
    assert bench.machine.roster.link(B, C) is not None


def test_what_was_held_back_for_a_planned_change_is_given_to_its_views() -> None:
    bench = training_member()
    machine = bench.machine
    machine.replica.fence(bench.last + 1)
    machine.rounds.fence(2)
    bench.handle(events.WorkerContributed(round=2, weight=1.0))
    assert not of(bench.taken(), Contribute), "the change has not been decided"
    bench.agreed(Replicate(views=views(bench, 2), replication=plan(C, B)))
    given = of(bench.taken(), Contribute)
    assert given and {one.tag for one in given} == {machine.rounds.running}, "nothing under the tag of before"


def test_a_leaver_that_the_agreement_still_counts_is_heard_and_a_stranger_is_not() -> None:
    roster = roster_of(A, B)
    with_site = msgspec.structs.replace(roster, sites=(*roster.sites, *roster_of(D).sites))
    bench = Bench(B, with_site, voters=(A, D)).up(A, C, D)
    bench.machine._roster = roster
    said = RaftEnvelope(
        message=AppendRequest(
            term=2, leader=D, previous_index=EPOCH, previous_term=1, entries=(), commit_index=EPOCH, tenure=1
        )
    )
    bench.hear(C, said)
    assert bench.machine.inbound.rejected == 1 and bench.machine.raft.leader is None
    bench.hear(D, said)
    assert bench.machine.inbound.rejected == 1 and bench.machine.raft.leader == D


def test_a_run_begins_with_its_founder_alone_which_schedules_at_once() -> None:
    facts = SiteFacts(site=A, name="site a", address="a:1", public_key=b"", incarnation=1, run="hearts", min_sites=2)
    roster = bootstrap_roster(facts, PLANNER, "ab" * 16)
    assert roster.member_ids() == (A,) and not roster.started and roster.model is None and roster.min_sites == 2
    bench = Bench(A, roster)
    bench.wait(0.1)
    assert bench.machine.scheduler.leading


def test_a_founder_that_says_below_how_many_rounds_wait_is_joined_by_those_that_know_of_it() -> None:
    facts = SiteFacts(site=A, name="site a", address="a:1", public_key=b"", incarnation=1, run="hearts", floor_sites=2)
    roster = bootstrap_roster(facts, PLANNER, "ab" * 16)
    assert roster.floor_sites == 2 and "install" in roster.version_problem(Versions(oldest=2, newest=5))
    assert not roster.version_problem(SPOKEN)
    for agreed in (roster.views, ()):
        assert decode_roster(encode_roster(msgspec.structs.replace(roster, views=agreed))).floor_sites == 2


def test_what_a_journal_names_beyond_its_snapshot_is_known_for_dialling() -> None:
    roster = roster_of(A, B)
    added = AddSite(record=record(C), links=(link(A, C),), views=roster.views, replication=plan(C, A))
    entries = (
        LogEntry(index=EPOCH, term=1, command=encode_command(RetryRound(views=(), reason="is in the snapshot"))),
        LogEntry(index=EPOCH + 1, term=1, command=b""),
        LogEntry(index=EPOCH + 2, term=1, command=encode_command(added)),
    )
    known = last_known_roster(roster, entries, NoKeys())
    assert known.site_ids() == (A, B, C) and not known.resolving and known.views
