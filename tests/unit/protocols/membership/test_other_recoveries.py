"""What a site of a recovered run hears of others: of other recoveries, and of the former run (spec 21)."""

from __future__ import annotations

from typing import Any

from tests.rigs.keys import RigKeys
from tests.unit.protocols.follower import of
from tests.unit.protocols.membership.test_starting_over import ROUND, RUN, give_up, refusal, said_by, standing, told
from tests.unit.protocols.one_site import EPOCH, A, B, Bench, C, D, heartbeat, records, roster_of

from chaos_protocols.agreement.commands import encode_roster
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft.messages import Configuration, Snapshot, SnapshotRequest
from chaos_protocols.effects import StartOver
from chaos_protocols.events import LeaveRequested
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import RaftEnvelope
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.recovered import Origin, RunRecovered
from chaos_protocols.wishes import FollowWanted, RecoveryTold

STRANGER = SiteId("f" * 32)


def in_the_new_run(one: RunRecovered, *members: SiteId, **changes: Any) -> Bench:
    """Site A, which has made it or follows it, and these; B, C and D were in the former run, too."""
    roster = roster_of(A, *members, run_id=one.run_id, **changes)
    origin = Origin(statement=one, sites=(B, C, D))
    return Bench(A, roster, voters=(A,), ring=KeyRing(RigKeys(A)), origin=origin)


def test_who_was_banned_since_this_run_was_made_is_heard_no_more() -> None:
    """It was in the former run, so the origin names it for good."""
    for banned, heard in (((), 1), ((D,), 0)):
        bench = in_the_new_run(said_by(A), banned=banned)
        assert len(records(told(bench, said_by(D)), "recovered")) == heard
        assert len(bench.machine.participation.recovered.heard) == heard


def test_a_voter_of_this_run_that_brings_the_roster_of_the_former_one_changes_nothing() -> None:
    """Its index may be far above: by that alone it would replace what the new run has agreed on."""
    new = said_by(A).run_id
    for run, taken in ((RUN, False), ("", True), (new, True)):
        bench = Bench(C, roster_of(A, B, C, run_id=new), voters=(A, B, C), ring=KeyRing(RigKeys(C))).up(A, B)
        bench.hear(A, heartbeat(scheduler=A))
        roster = roster_of(A, B, C, D, run_id=run, epoch=EPOCH + 50)
        configuration = Configuration(voters=(A, B, C), learners=(D,))
        snapshot = Snapshot(index=EPOCH + 50, term=2, configuration=configuration, state=encode_roster(roster))
        bench.hear(A, RaftEnvelope(message=SnapshotRequest(term=2, leader=A, snapshot=snapshot, tenure=1)))
        assert (bench.machine.roster.epoch == EPOCH + 50) is taken
        assert taken or bench.machine.roster.run_id == new


def test_the_recovery_that_this_run_came_of_is_no_news_in_it() -> None:
    """Each of its sites shows it in every handshake; told, it would ask the operator to leave the run he is in."""
    one = said_by(D)
    bench = in_the_new_run(one, D)
    assert not records(told(bench, one), "recovered")
    assert not bench.machine.participation.recovered.heard


def test_an_older_recovery_of_a_site_does_not_take_the_place_of_its_newer_one() -> None:
    """Somebody keeps it, and shows it again: who followed it would be led into a run that is over."""
    older = said_by(D)
    newer = said_by(D, older.run_id, origin=Origin(statement=older))
    bench = standing()
    for one in (older, newer, older):
        told(bench, one)
    assert bench.machine.participation.recovered.heard[D].statement == newer
    (start,) = of(bench.handle(FollowWanted(request="f", by=D)), StartOver)
    assert start.origin.statement == newer


def test_who_was_banned_since_the_first_recovery_does_not_hear_of_the_second() -> None:
    """The origin names it, as it does all of the run before."""
    bench = in_the_new_run(said_by(A), banned=(C,))
    told(bench, said_by(D))
    (start,) = of(bench.handle(FollowWanted(request="f", by=D)), StartOver)
    assert start.origin.sites == (B, D)


def test_who_follows_takes_nothing_along_that_was_reached_in_the_former_run() -> None:
    """What it has promised of rounds is of the run that it gives up."""
    bench = standing(reached=Reached(round=ROUND + 3))
    told(bench, said_by(D))
    (start,) = of(bench.handle(FollowWanted(request="f", by=D)), StartOver)
    assert start.reached == Reached() and start.hard_state.vote is None


def test_a_site_that_leaves_follows_nobody() -> None:
    bench = standing()
    told(bench, said_by(D))
    bench.handle(LeaveRequested(request="l", reason="done"))
    assert "is leaving the run" in refusal(bench.handle(FollowWanted(request="f", by=D)))
    assert "is leaving the run" in refusal(give_up(bench, B, C))


def via(bench: Bench, site: SiteId, address: str, one: RunRecovered) -> tuple[SiteId, str]:
    """Whom it would dial, and believe, to follow, after `site` has shown this."""
    bench.handle(RecoveryTold(site=site, address=address, statement=one))
    heard = bench.machine.participation.recovered.heard[one.by]
    return heard.via, heard.address


def test_a_guest_that_shows_a_true_statement_is_not_whom_the_operator_follows() -> None:
    """The site gives its journal up, and believes whom it dials like a peer of its configuration: that guest would
    make it a run of its own."""
    bench, one = standing(), said_by(D)
    assert via(bench, STRANGER, "f.example:7400", one) == (D, "d.example:7400"), "where the roster has it"
    assert via(bench, C, "c.example:7400", one) == (C, "c.example:7400"), "a site of the former run that follows"
    assert via(bench, STRANGER, "f.example:7400", one) == (C, "c.example:7400")


def test_who_has_recovered_the_run_is_followed_where_it_was_heard_itself() -> None:
    bench, one = standing(), said_by(D)
    assert via(bench, D, "d2.example:7400", one) == (D, "d2.example:7400")
    assert via(bench, C, "c.example:7400", one) == (D, "d2.example:7400")
    newer = said_by(D, one.run_id, origin=Origin(statement=one))
    assert via(bench, C, "c.example:7400", newer) == (C, "c.example:7400"), "of a newer one D has said nothing"
