"""A majority of the voters is gone for good: what an operator is told, what is refused, and what is made (spec 21)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.rigs.keys import RigKeys
from tests.unit.protocols.follower import of
from tests.unit.protocols.one_site import EPOCH, MODEL, A, B, Bench, C, D, E, heartbeat, moving, records, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import elect, lose

from chaos_protocols import events
from chaos_protocols.agreement.commands import RoundResolved, decode_roster, encode_command
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft.messages import HEAD_BYTES, LogEntry
from chaos_protocols.causes import Cause
from chaos_protocols.effects import AnswerRequest, Record, StartOver, StopDaemon
from chaos_protocols.events import CheckpointsFound
from chaos_protocols.membership.recovered_runs import HEARD_MAX, TOLD_OF_EACH_MAX
from chaos_protocols.membership.starting_over import QUIET_FACTOR, RULES
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import LinkStateAdvertisement
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.recovered import (
    FORMER_MAX,
    NUMBER_BYTES,
    Origin,
    RunRecovered,
    is_true,
    make_statement,
    recovered_words,
)
from chaos_protocols.wishes import FollowWanted, RecoverWithout, RecoveryTold

RUN, OTHER = "ab" * 16, "cd" * 16
NUMBER = bytes(range(NUMBER_BYTES))
ROUND = 40


def standing(
    *near: SiteId, voters: tuple[SiteId, ...] = (A, B, C), round: int = ROUND, quiet: bool = True, **more: Any
) -> Bench:
    """Site A of A to D, whose scheduler was lost; it reaches `near` alone, and its worker has the state of a round."""
    roster = more.pop("roster", None) or roster_of(A, B, C, D, run_id=RUN, banned=(E,))
    bench = Bench(A, roster, voters=voters, ring=KeyRing(RigKeys(A)), **({"incarnation": 2} | more))
    if round:
        bench.handle(events.WorkerReady(model=MODEL, round=round))
    bench.up(*near)
    for one in near:
        for other in {B, C, D} - {one, *near}:
            down = LinkStateAdvertisement(
                neighbour=other, incarnation=1, up=False, rtt_s=0.0, rate_bytes_per_s=0.0, reason="gone"
            )
            bench.hear(one, down)
    if quiet:
        alive(bench, *near, seconds=QUIET_FACTOR * bench.machine.settings.failure_timeout_s + 1.0)
    bench.taken()
    return bench


def alive(bench: Bench, *near: SiteId, seconds: float, **said: Any) -> None:
    """Time passes, and these are heard."""
    for _ in range(round(seconds / 0.1)):
        for site in near:
            bench.handle(moving(site))
            bench.hear(site, msgspec.structs.replace(heartbeat(**said), sequence=bench.sequence))
        bench.wait(0.1)


def give_up(bench: Bench, *without: SiteId) -> list[Any]:
    return bench.handle(RecoverWithout(request="r", without=without, number=NUMBER))


def answer(out: list[Any]) -> tuple[bool, str]:
    (told,) = of(out, AnswerRequest)
    return told.done, told.reason


def refusal(out: list[Any]) -> str:
    done, reason = answer(out)
    assert not done and not of(out, StartOver) and not of(out, StopDaemon)
    return reason


# -- what is refused, each with a sentence


def test_a_run_that_has_a_scheduler_is_not_recovered() -> None:
    bench = Bench(A, roster_of(A, B, run_id=RUN), voters=(A,), ring=KeyRing(RigKeys(A)))
    bench.up(B).wait(1.0)
    assert "this site schedules the run" in refusal(give_up(bench, B))


def test_one_of_two_voters_that_was_elected_just_before_the_other_was_lost_says_so_and_may_be_recovered() -> None:
    """It stays the leader, since nobody else can be elected, and can have nothing agreed (guest seed 6006480)."""
    bench = Bench(A, roster_of(A, B, run_id=RUN), voters=(A, B), ring=KeyRing(RigKeys(A)))
    bench.handle(events.WorkerReady(model=MODEL, round=ROUND))
    elect(bench.up(B), at_work=False)
    lose(bench, B)
    assert "this site schedules the run" in refusal(give_up(bench, B))
    bench.wait(5.0)
    why = bench.machine.participation.pause.why()
    assert why is not None and why.cause is Cause.NO_QUORUM and "cannot reach" in why.text
    assert "was heard 5 s ago; ask again when none was heard for 10 s" in refusal(give_up(bench, B))
    bench.wait(QUIET_FACTOR * bench.machine.settings.failure_timeout_s)
    assert bench.machine.scheduler.leading
    (_,) = of(give_up(bench, B), StartOver)


def test_it_takes_a_while_without_a_scheduler_and_a_daemon_that_was_just_started_has_heard_none() -> None:
    bench = standing(quiet=False)
    bench.wait(3.0)
    told = refusal(give_up(bench, B, C))
    assert "this daemon was started 3 s ago; ask again when none was heard for 10 s" in told
    assert bench.machine.starting_over.outlook().since_start


def test_a_majority_that_is_in_reach_elects() -> None:
    assert "a majority of the voters is in reach" in refusal(give_up(standing(B), C))


def test_a_voter_that_came_back_without_its_journal_has_no_vote_and_may_be_given_up() -> None:
    """Linked, it asks to join: of two sites the one with the vote would stop the other for good."""
    bench = standing(B, quiet=False, voters=(B,))
    alive(bench, B, seconds=QUIET_FACTOR * bench.machine.settings.failure_timeout_s + 1.0, scheduler=None, epoch=0)
    why = bench.machine.participation.pause.why()
    assert why is not None and why.cause is Cause.NO_QUORUM and f"{B[:8]} came back without its journal" in why.text
    seen = bench.machine.starting_over.outlook()
    assert (seen.missing, seen.in_reach, seen.problem) == ((B,), (), "")
    (_,) = of(give_up(bench, B), StartOver)


@pytest.mark.parametrize(
    ("near", "without", "told"),
    [
        ((), (B,), f"{C[:8]} cannot be reached, or has lost its journal, and has a vote: say `--without {C[:8]}`"),
        ((), (B, C, A), "this site cannot be given up here"),
        ((D,), (B, C, D), f"{D[:8]} is in reach, so it is not lost: `chaosd ban`"),
        ((), (B, C, E), f"{E[:8]} is no site of the run"),
    ],
)
def test_all_voters_that_are_missing_are_named_and_nobody_else(
    near: tuple[SiteId, ...], without: tuple[SiteId, ...], told: str
) -> None:
    assert told in refusal(give_up(standing(*near), *without))


def test_a_member_that_has_no_vote_need_not_be_named_and_may_be() -> None:
    for without in ((B, C), (B, C, D)):
        assert answer(give_up(standing(), *without))[0]


def test_a_site_without_a_state_recovers_nothing() -> None:
    assert "has no state of the run: start its script" in refusal(give_up(standing(round=0), B, C))


def test_a_checkpoint_of_the_runs_model_is_a_state() -> None:
    for digest, done in ((MODEL.spec_digest, True), ("0" * 64, False)):
        bench = standing(round=0)
        found = CheckpointFacts(lineage=0, round=30, spec_digest=digest)
        bench.handle(CheckpointsFound(checkpoints=(found,)))
        assert answer(give_up(bench, B, C))[0] is done


def test_a_copy_in_the_daemons_memory_goes_to_a_worker_first() -> None:
    bench = standing(round=0)
    bench.machine.state.memory.round = 41
    assert "holds the state of round 41 in its memory" in refusal(give_up(bench, B, C))
    bench = standing(round=41)
    bench.machine.state.memory.round = 41
    assert answer(give_up(bench, B, C))[0], "its worker has it"


def test_a_site_in_reach_that_is_further_does_it() -> None:
    bench = standing(D)
    alive(bench, D, seconds=0.4, round=ROUND)
    assert bench.machine.starting_over.outlook().problem == "", "it has the same"
    for number, epoch in ((ROUND + 1, EPOCH), (ROUND, EPOCH + 1)):
        alive(bench, D, seconds=0.4, round=number, epoch=epoch)
        assert f"{D[:8]} is in reach and further" in refusal(give_up(bench, B, C))


def test_who_has_no_worker_is_not_further() -> None:
    bench = standing(D)
    bench.hear(D, msgspec.structs.replace(heartbeat(round=99), sequence=bench.sequence, phase="standby"))
    assert answer(give_up(bench, B, C))[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"run_id": ""}, "drew no run ids"),
        ({"model": None}, "has not begun"),
        ({"started": False}, "has not begun"),
    ],
)
def test_a_run_that_cannot_be_named_or_has_not_begun_is_founded_anew(changes: dict[str, Any], told: str) -> None:
    roster = roster_of(A, B, C, D, **({"run_id": RUN} | changes))
    assert told in refusal(give_up(standing(roster=roster), B, C))


def test_a_learner_and_a_stranger_recover_nothing() -> None:
    learner = standing(roster=roster_of(B, C, D, learners=(A,), run_id=RUN), voters=(B, C, D))
    assert "still fetching the state" in refusal(give_up(learner, B, C, D))
    assert "not in the run" in refusal(give_up(Bench(A, ring=KeyRing(RigKeys(A))), B))


# -- what is made


def test_the_new_run_is_this_site_alone_and_counts_on() -> None:
    bench = standing(D)
    before = bench.machine.roster
    out = give_up(bench, B, C)
    (start,) = of(out, StartOver)
    kinds = [type(one) for one in out]
    assert kinds.index(StartOver) < kinds.index(Record) < kinds.index(AnswerRequest) < kinds.index(StopDaemon)
    assert of(out, StopDaemon)[0].again and answer(out)[0]
    assert start.snapshot is not None
    roster = decode_roster(start.snapshot.state)
    statement = start.origin.statement
    assert roster.run_id == statement.run_id != RUN
    assert roster.site_ids() == roster.views[-1].members == start.snapshot.configuration.voters == (A,)
    assert (roster.started, roster.model, roster.resolving, roster.departed) == (True, MODEL, False, ())
    assert roster.restore_epoch == before.restore_epoch and roster.banned == (E,)
    assert start.snapshot.index == roster.epoch > before.epoch and start.snapshot.term > bench.machine.term - 1
    assert start.hard_state.term == start.snapshot.term and start.hard_state.vote is None
    assert roster.rules == start.reached.rules == RULES and roster.needs >= RULES
    assert len(start.snapshot.chain) == HEAD_BYTES
    assert start.origin.sites == (B, C, D), "they may hear of it; who is banned may not"
    assert statement.former == (RUN,) and (statement.generation, statement.by, statement.without) == (2, A, (B, C))
    assert is_true(statement, RigKeys(A).verify)


def test_what_the_log_holds_counts_though_nobody_here_knows_that_it_was_agreed() -> None:
    roster = roster_of(A, B, C, D, run_id=RUN)
    command = encode_command(RoundResolved(round=44, digest="d" * 64, holders=(B,), views=roster.views))
    entry = LogEntry(index=EPOCH + 1, term=1, command=command)
    (start,) = of(give_up(standing(roster=roster, entries=(entry,)), B, C), StartOver)
    assert start.snapshot is not None and start.snapshot.index == EPOCH + 2
    made = decode_roster(start.snapshot.state)
    assert (made.resolved_round, made.resolved_digest) == (44, ""), "its result may be with those that are gone"


def test_two_recoveries_are_two_runs() -> None:
    numbers = [NUMBER, bytes(NUMBER_BYTES)]
    made = {
        make_statement(None, RUN, site, (C,), number, RigKeys(site)).run_id for site in (A, B) for number in numbers
    }
    assert len(made) == 4


def test_generations_are_counted_and_the_former_runs_remembered() -> None:
    origin = None
    run, runs = RUN, [RUN]
    for generation in range(2, FORMER_MAX + 4):
        one = make_statement(origin, run, A, (B,), NUMBER, RigKeys(A))
        assert one.generation == generation and list(one.former) == runs[::-1][:FORMER_MAX]
        origin, run = Origin(statement=one), one.run_id
        runs.append(run)
    assert len(set(runs)) == len(runs)


# -- what others hear, and what moves them


def said_by(site: SiteId, run: str = RUN, *, number: bytes = NUMBER, origin: Origin | None = None) -> RunRecovered:
    return make_statement(origin, run, site, (B,), number, RigKeys(site))


def told(bench: Bench, one: RunRecovered, via: SiteId = D) -> list[Any]:
    return bench.handle(RecoveryTold(site=via, address="d.example:7400", statement=one))


def test_a_recovery_is_told_once_and_moves_nobody() -> None:
    bench = standing(incarnation=1)
    before = bench.machine.roster
    out = told(bench, said_by(D))
    (line,) = records(out, "recovered")
    assert f"as generation 2 by {D[:8]}, without {B[:8]}" in line.reason
    assert f"`chaosd recover --follow {D[:8]}`" in line.reason
    assert not records(told(bench, said_by(D)), "recovered")
    assert f"chaosd recover --follow {D[:8]}" in bench.machine.participation.pause.reason()
    assert bench.machine.roster is before and not of(bench.taken(), StartOver)


def false_words() -> dict[str, RunRecovered]:
    true, stranger = said_by(D), SiteId("f" * 32)
    return {
        "of a site that is not in the run": said_by(stranger),
        "of a banned site": said_by(E),
        "of another run": said_by(D, OTHER),
        "of the run that this site is in": msgspec.structs.replace(true, run_id=RUN),
        "signed by nobody": msgspec.structs.replace(true, signature=b""),
        "signed by another": msgspec.structs.replace(true, signature=RigKeys(C).sign(recovered_words(true))),
        "with more sites given up": msgspec.structs.replace(true, without=(B, C)),
        "of a run that does not follow": resigned(msgspec.structs.replace(true, run_id=OTHER)),
        "of no run": resigned(msgspec.structs.replace(true, former=())),
        "of this site": said_by(A),
    }


def resigned(one: RunRecovered) -> RunRecovered:
    return msgspec.structs.replace(one, signature=RigKeys(one.by).sign(recovered_words(one)))


@pytest.mark.parametrize("name", false_words())
def test_a_false_word_counts_for_nothing(name: str) -> None:
    bench = standing()
    assert not records(told(bench, false_words()[name]), "recovered")
    assert not bench.machine.participation.recovered.heard


def test_a_member_that_says_much_fills_nothing() -> None:
    bench = standing()
    lines = [told(bench, said_by(D, number=bytes([n]) * NUMBER_BYTES)) for n in range(200)]
    assert sum(len(records(one, "recovered")) for one in lines) == TOLD_OF_EACH_MAX
    assert len(bench.machine.participation.recovered.heard) == 1


def test_of_many_that_say_so_the_newest_are_kept() -> None:
    sites = [SiteId(f"{n:032x}") for n in range(1, 2 * HEARD_MAX)]
    bench = standing(roster=roster_of(A, B, C, *sites, run_id=RUN))
    for site in sites:
        told(bench, said_by(site))
    assert list(bench.machine.participation.recovered.heard) == sites[-HEARD_MAX:]


def test_an_operator_has_his_site_follow() -> None:
    bench = standing()
    assert "nothing was heard here" in refusal(bench.handle(FollowWanted(request="f", by=D)))
    one = said_by(D)
    told(bench, one)
    assert "nothing was heard" in refusal(bench.handle(FollowWanted(request="f", by=C)))
    out = bench.handle(FollowWanted(request="f", by=D))
    (start,) = of(out, StartOver)
    assert answer(out)[0] and of(out, StopDaemon)[0].again
    assert start.snapshot is None and start.hard_state.term == 0 and start.reached.round == 0
    assert start.origin == Origin(statement=one, sites=(B, C, D))


def test_who_follows_is_in_the_other_run_by_name_before_it_is_let_in() -> None:
    one = said_by(D)
    bench = Bench(A, ring=KeyRing(RigKeys(A)), origin=Origin(statement=one, sites=(B, C, D)), peers=(D,))
    assert bench.machine.roster.run_id == one.run_id and not bench.machine.roster.sites
    bench.up(C)
    former = msgspec.structs.replace(heartbeat(), run_id=RUN)
    bench.hear(C, former)
    assert C not in bench.machine.links.up_sites(), "the run that it has given up is another one"
    bench.up(D)
    bench.hear(D, msgspec.structs.replace(heartbeat(), run_id=one.run_id))
    assert D in bench.machine.links.up_sites()


def test_of_two_recoveries_of_one_run_each_hears_of_the_other() -> None:
    mine, theirs = said_by(A), said_by(D)
    roster = roster_of(A, run_id=mine.run_id)
    bench = Bench(A, roster, voters=(A,), ring=KeyRing(RigKeys(A)), origin=Origin(statement=mine, sites=(B, C, D)))
    assert records(told(bench, theirs), "recovered")
    (start,) = of(bench.handle(FollowWanted(request="f", by=D)), StartOver)
    assert start.origin.statement == theirs and start.snapshot is None
