"""What the judge of operators' words speaks at, and what not."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest
from tests.simulator.batch import attempt
from tests.simulator.disk import Disk, JournalDisk
from tests.simulator.faults import Trial, run_trial
from tests.simulator.operators import could_be_elected
from tests.simulator.oracles_operators import BANNED_S, GONE_ON_ROUNDS, GONE_ON_S, HEARD_S, UNKNOWN, OperatorsOracle
from tests.simulator.outside import Outside
from tests.simulator.violation import Violation
from tests.simulator.world import World
from tests.unit.protocols.one_site import MODEL, PLANNER, A, B, C, D, record, roster_of

from chaos_protocols import effects, events
from chaos_protocols.agreement.commands import SetRestorePoint
from chaos_protocols.agreement.raft import HardState, Persist
from chaos_protocols.agreement.raft.messages import LogEntry
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.agreement.views import make_view
from chaos_protocols.names import SiteId
from chaos_protocols.settings import SiteSettings
from chaos_protocols.wishes import BansChanged

TERM = 2
BEFORE = msgspec.structs.replace(roster_of(A, B, C), model=MODEL)


class Court:
    """The judge, and what it says; `at` is the time."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []
        worker: Any = object()
        self.nodes = {
            site: SimpleNamespace(
                site=site, name=site[:1], stray="", stopped=False, worker=worker, machine=SimpleNamespace(incarnation=1)
            )
            for site in (A, B, C, D)
        }
        self.world: Any = SimpleNamespace(now_s=100.0, nodes=self.nodes, settings=SiteSettings())
        self.judge = OperatorsOracle(self._fail, self.world)

    def _fail(self, number: int, text: str) -> NoReturn:
        self.said.append((number, text))
        raise Violation(number, text, "here", [])

    def node(self, site: SiteId) -> Any:
        return self.nodes[site]

    def asks(self, request: str = "user-1", origin: str = B, number: int = 7) -> None:
        asked = events.RecoverRequested(request=request, origin=origin, round=number)
        self.judge.asks(self.node(C), asked)

    def hears(self, *, done: bool, reason: str, request: str = "user-1") -> None:
        with suppress(Violation):
            self.judge.answered(self.node(C), effects.AnswerRequest(request=request, done=done, reason=reason))

    def decided(self, index: int) -> None:
        """An entry is written first, now."""
        entry = LogEntry(index=index, term=TERM, command=b"", configuration=None)
        self.judge.persisted(
            self.node(A),
            Persist(hard_state=HardState(TERM, None), truncate_from=None, entries=(entry,), snapshot=None),
        )

    def goes_on(
        self, index: int = 30, site: SiteId = B, number: int = 7, by: str = "user-1", before: Roster = BEFORE
    ) -> list[int]:
        """The run does, from that state: which invariants are broken, as the judge says."""
        self.decided(index)
        view = make_view(PLANNER, first_round=number + 1, members=(A, B, C), listeners=(), links=before.links)
        command = SetRestorePoint(record=record(site), links=(), round=number, model=MODEL, views=(view,), operator=by)
        return self.agreed(index, command, before, before)

    def agreed(self, index: int, command: SetRestorePoint | None, before: Roster, after: Roster) -> list[int]:
        with suppress(Violation):
            self.judge.committed(index, TERM, command, before, after)
        return [number for number, _ in self.said]


def test_an_operators_word_is_carried_out_as_he_has_said_it_and_he_hears_so() -> None:
    for origin in (B, B[:4], "site b"):
        court = Court()
        court.asks(origin=origin)
        assert court.goes_on() == []
        court.hears(done=True, reason="the run goes on from the state of round 7 of site b")
        assert court.said == []


@pytest.mark.parametrize(
    "otherwise", [{"by": "user-2"}, {"number": 6}, {"site": A}, {"by": "user-1", "number": 0}], ids=str
)
def test_another_state_than_he_has_named_or_a_word_that_nobody_has_said_is_none(otherwise: dict[str, Any]) -> None:
    court = Court()
    court.asks()
    assert 10 in court.goes_on(**otherwise)


def test_a_word_that_was_refused_is_not_carried_out_later() -> None:
    for later_s, broken in ((HEARD_S / 2, []), (2 * HEARD_S, [10])):
        court = Court()
        court.asks()
        court.hears(done=False, reason="members train")
        court.world.now_s += later_s
        assert court.goes_on() == broken


def test_a_word_of_which_nothing_is_known_where_it_was_given_may_be_carried_out_still() -> None:
    """Its site is cut off, and asks no more; the scheduler has it, and the run stands (seed 1106, 4 sites)."""
    court = Court()
    court.asks()
    court.hears(done=False, reason=f"no scheduler has answered: whether it is carried out is {UNKNOWN}")
    court.world.now_s += 60.0
    assert court.goes_on() == []


def test_a_word_is_over_when_the_run_has_gone_on_since() -> None:
    for rounds, broken in ((1, []), (GONE_ON_ROUNDS, [10])):
        court = Court()
        court.asks()
        for number in range(rounds):
            court.world.now_s += GONE_ON_S / rounds + 0.1
            court.judge.round_done(8 + number)
        court.world.now_s += 1.0
        assert court.goes_on() == broken


def test_a_word_is_carried_out_once() -> None:
    court = Court()
    court.asks()
    heeded = msgspec.structs.replace(BEFORE, restored_by="user-1")
    assert court.goes_on() == [] and court.goes_on(31, before=heeded) == []
    assert court.goes_on(33, before=msgspec.structs.replace(BEFORE, restored_by="user-2")) == [10]


def test_what_an_operator_hears_is_true() -> None:
    for done, reason in (
        (True, "the run goes on from the state of round 7 of b"),
        (True, "it is done"),
        (False, "members train"),
    ):
        court = Court()
        court.asks()
        if not done or reason == "it is done":
            court.goes_on()
        court.hears(done=done, reason=reason)
        assert court.said and court.said[0][0] == 8, (done, reason)


def test_who_was_chosen_and_reads_its_checkpoint_is_not_passed_over() -> None:
    """Nor is it where it was restarted, its worker has gone, it has read, or its time is over."""
    for what, broken in (("reads", [10]), ("again", []), ("worker", []), ("read", []), ("late", [])):
        court = Court()
        court.asks()
        court.goes_on()
        court.judge.reads(court.node(B))
        court.world.now_s += 1.0
        if what == "again":
            court.judge.started(court.node(B))
        elif what == "worker":
            court.node(B).worker = object()
        elif what == "read":
            court.judge.has_read(court.node(B))
        elif what == "late":
            court.world.now_s += court.world.settings.transfer_stall_s
        heeded = msgspec.structs.replace(BEFORE, restored_by="user-1")
        assert court.goes_on(32, A, 5, "user-1", heeded) == broken, what


def banned(*by: SiteId, for_s: float = 2 * BANNED_S) -> Court:
    """Whose operators have wanted D out, for so long, while the same site led."""
    court = Court()
    court.decided(20)
    for site in by:
        court.judge.wants_out(court.node(site), BansChanged(sites=(D,)))
    court.world.now_s += for_s
    return court


def test_whom_most_want_out_is_not_let_in_nor_its_state_taken() -> None:
    for by, for_s, broken in (((A, B), 2 * BANNED_S, [5]), ((A,), 2 * BANNED_S, []), ((A, B), BANNED_S / 2, [])):
        court = banned(*by, for_s=for_s)
        court.asks(origin=D)
        assert court.goes_on(site=D) == broken
        court = banned(*by, for_s=for_s)
        court.decided(30)
        assert court.agreed(30, None, BEFORE, roster_of(A, B, C, D)) == broken


def test_who_takes_it_back_or_was_restarted_a_moment_ago_wants_nobody_out() -> None:
    court = banned(A, B)
    assert court.judge.is_wanted_out(D, BEFORE)
    court.judge.wants_out(court.node(B), BansChanged(sites=()))
    assert court.judge.is_wanted_out(D, BEFORE), "whoever leads may not know it yet (seed 820, 6 sites)"
    court.world.now_s += HEARD_S
    assert not court.judge.is_wanted_out(D, BEFORE)
    court = banned(A, B)
    court.judge.started(court.node(A))
    assert not court.judge.is_wanted_out(D, BEFORE)


def test_a_newcomer_whose_peers_have_all_given_up_is_told_of_another_site() -> None:
    """Seed 785 with seven sites: nothing else leads it to the run."""
    world = World(0)
    founder, gone = world.add("a", founder=True), world.add("b", peers=("a",))
    newcomer, other = world.add("c", peers=("b",)), world.add("d", peers=("a", "b"))
    world.bans.gone.add(gone.site)
    Outside(world).look(roster_of(SiteId(founder.site), SiteId(gone.site)))
    assert newcomer.peers == (founder.site,)
    assert other.peers == (founder.site, gone.site) and founder.peers == ()


@pytest.mark.parametrize("inside", [False, True])
def test_a_founder_that_is_out_of_the_run_and_knows_of_no_other_site_is_told_of_one(inside: bool) -> None:
    """It had named no peer, and the one that it had met gave up (`--operators`, seed 2671, 3 sites)."""
    world = World(0)
    founder, gone, other = world.add("a", founder=True), world.add("b", peers=("a",)), world.add("c", peers=("b",))
    founder.disk.snapshot = object()  # type: ignore[assignment]
    knows = SimpleNamespace(site_ids=lambda: (founder.site,))
    heard = SimpleNamespace(neighbours={gone.site: None})
    pause: Any = SimpleNamespace(pause=SimpleNamespace(why=lambda: None))
    machine: Any = SimpleNamespace(roster=knows, links=heard, handle=lambda event, now_s: [], participation=pause)
    founder.machine = machine
    world.bans.gone.add(gone.site)
    run = roster_of(SiteId(other.site), *([SiteId(founder.site)] if inside else []))
    Outside(world).look(run)
    assert founder.peers == (() if inside else (other.site,))


def test_a_state_at_a_site_that_no_member_is_linked_with_is_had_when_an_operator_links_it() -> None:
    """It had left when others had the state, who lost theirs in a blackout, and the members' neighbours could not be
    let in without one (row 214)."""
    story = run_trial(Trial(seed=9437343, sites=5)).story
    (named,) = (at for at, line in enumerate(story) if line.endswith("!! the operator of e names a as its peer"))
    assert any("01a (no site of the run has a link with it" in line for line in story[:named])
    assert any("restore-point a: done" in line for line in story[named:])


def test_a_founder_whose_journal_knows_nobody_who_is_there_comes_back_without_it() -> None:
    """It says so, and its operator does what it says (`--operators`, seed 2671, 3 sites)."""
    story = run_trial(Trial(seed=2671, sites=3, operators=True)).story
    assert any("moves its journal away" in line for line in story)


@pytest.mark.parametrize("disk", [Disk, JournalDisk])
def test_a_site_whose_journal_was_moved_away_is_new_to_the_run_and_counts_its_starts_on(disk: type[Disk]) -> None:
    one = disk()
    for start in (1, 2):
        one.open()
        one.count_start()
        assert one.incarnation == start
    one.persist(Persist(hard_state=HardState(3, None), truncate_from=None, entries=(), snapshot=None))
    one.move_journal_away()
    one.open()
    one.count_start()
    assert (one.incarnation, one.hard_state, one.snapshot, one.entries) == (3, HardState(0, None), None, ())


def test_what_an_operator_says_counts_from_the_moment_in_which_his_site_hears_it() -> None:
    """It may be the scheduler, and go on without that site in the same step (seed 1346, 4 sites)."""
    court = banned(A)
    court.judge.hears(court.node(B), BansChanged(sites=(D,)))
    assert court.judge.is_wanted_out(D, BEFORE)


def test_whose_vote_a_majority_needs_is_told_from_what_lies_in_the_journals_of_the_others() -> None:
    """Seed 811, 3 sites: C has an entry that takes its own vote, and grants none to B, whose log is shorter."""
    lagging = {B: ((2, 9), (A, B, C)), C: ((2, 10), (A, B))}
    assert not any(could_be_elected(site, lagging) for site in lagging)
    level = {B: ((2, 10), (A, B, C)), C: ((2, 10), (A, B, C))}
    assert could_be_elected(B, level) and could_be_elected(C, level)
    assert not could_be_elected(B, {B: ((2, 10), (A, B, C)), C: ((0, 0), ())}), "an empty log grants nothing (spec 5.6)"


def test_operators_act_in_a_run_with_them_and_in_no_other_one() -> None:
    told = attempt(Trial(seed=15, sites=5, operators=True))
    assert not told.invariant, told.told
    acts = [number for number in told.strikes if number > 100]
    assert acts and all(number < 100 for number in attempt(Trial(seed=15, sites=5)).strikes)
    assert told.trial.command().endswith("--operators")
