"""Of which history a worker's state is: what its site says of it when a run needs one to go on from."""

from __future__ import annotations

from typing import Any

from tests.unit.protocols.follower import Follower, finish_round, hello, of, plan, views
from tests.unit.protocols.one_site import MODEL, A, B, D, record, roster_of, sent

from chaos_protocols import events
from chaos_protocols.agreement.commands import Replicate, SetRestorePoint
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import NoteReached, ToWorker
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import StateRequest
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.worker import LoadState

OLD, NEW = 3, 5
"""Restore epochs."""


def fetched(reached: Reached, round_number: int = 4) -> Follower:
    """D's worker has loaded a state of the history NEW; its journal was at `reached` before."""
    bench = Follower(D, roster_of(A, B, D, first_round=4, restore_epoch=NEW), reached=reached)
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 5), replication=plan(D, B, round_number=round_number)))
    bench.handle(events.TransferFinished(transfer="t"))
    bench.handle(events.WorkerLoaded(round=round_number))
    return bench


def adopted(bench: Follower, site: SiteId, round_number: int) -> list[Any]:
    """The run goes on from the state of that round at `site`."""
    view = make_view(
        bench.machine.planner, first_round=round_number + 1, members=(A, B, D), listeners=(), links=bench.roster.links
    )
    return bench.agreed(SetRestorePoint(record=record(site), links=(), round=round_number, model=MODEL, views=(view,)))


def test_a_state_in_which_no_round_was_done_since_is_offered_as_one_of_its_own_history() -> None:
    bench = fetched(Reached(lineage=OLD, round=9))
    assert bench.machine.state.lineage() == NEW
    noted = of(bench.taken(), NoteReached)[-1].reached
    assert (noted.held, noted.active) == (NEW, False)


def test_who_was_given_a_state_knows_how_far_the_run_has_come_though_no_round_was_done_there() -> None:
    """Else it would begin the run anew, once it is alone after a loss of power (seed 9103629, 5 sites)."""
    bench = fetched(Reached(lineage=OLD, round=9, active=True))
    noted = of(bench.taken(), NoteReached)[-1].reached
    assert (noted.lineage, noted.round, noted.active) == (NEW, 4, False)
    assert noted.applied == bench.roster.epoch
    again = Follower(D, bench.roster, reached=noted)
    reached = again.machine.participation.reached
    assert reached.of(bench.roster) == 4
    assert not reached.outlived_training(bench.roster, 4), "others may have done rounds since it was given that"


def test_a_worker_without_which_two_rounds_may_have_been_done_did_not_train_to_the_end() -> None:
    """Its daemon gave weight 0 to the second one, and never heard what came of it (seed 6011772 with a guest)."""
    for open_round, trained in ((5, True), (6, False)):
        reached = Reached(lineage=NEW, round=4, held=NEW, active=True)
        bench = Follower(D, roster_of(A, B, D, first_round=open_round, restore_epoch=NEW), reached=reached)
        (_, asked), *_ = sent(hello(bench, 4) + bench.alive(1.0), StateRequest)
        assert bench.machine.rounds.running is not None and bench.machine.rounds.running.round == open_round
        assert (asked.worker_round, asked.trained) == (4, trained)


def test_a_state_of_a_history_that_was_given_up_says_nothing_of_the_present_one() -> None:
    bench = fetched(Reached(lineage=OLD, round=9))
    reached = bench.machine.participation.reached
    before = reached.noted
    reached.holds(NEW - 1, 17, bench.roster)
    assert (reached.noted.lineage, reached.noted.round) == (before.lineage, before.round)


def test_a_state_that_is_older_than_what_is_known_takes_nothing_back() -> None:
    bench = fetched(Reached(lineage=OLD, round=9))
    reached = bench.machine.participation.reached
    reached.holds(NEW, 2, bench.roster)
    assert reached.of(bench.roster) == 4


def test_what_was_noted_of_a_workers_state_holds_for_it_when_its_daemon_is_another_one() -> None:
    bench = Follower(D, roster_of(A, B, D, first_round=4, restore_epoch=NEW), reached=Reached(lineage=OLD, held=NEW))
    (_, asked), *_ = sent(hello(bench, 4) + bench.alive(1.0), StateRequest)
    assert (asked.worker_round, asked.lineage) == (4, NEW)


def told_to_load(had: int) -> Reached:
    """What the journal says when D's worker, with the state of round `had` of OLD, is told to load that of round 4 of
    NEW, and nobody hears whether it does."""
    bench = Follower(D, roster_of(A, B, D, first_round=4, restore_epoch=NEW), reached=Reached(lineage=OLD, round=9))
    hello(bench, had)
    bench.agreed(Replicate(views=views(bench, 5), replication=plan(D, B, round_number=4)))
    noted = Reached(lineage=OLD, round=9)
    for effect in bench.handle(events.TransferFinished(transfer="t")):
        if isinstance(effect, ToWorker) and isinstance(effect.message, LoadState):
            break
        noted = effect.reached if isinstance(effect, NoteReached) else noted
    return noted


def test_a_state_that_was_loaded_when_no_daemon_heard_it_any_more_is_of_the_history_that_it_came_from() -> None:
    """The daemon died before its worker said so, and the next one took it for an old one (seed 1381, 3 sites)."""
    noted = told_to_load(had=2)
    for worker_round, lineage in ((4, NEW), (2, OLD)):
        bench = Follower(D, roster_of(A, B, D, first_round=4, restore_epoch=NEW), reached=noted)
        (_, asked), *_ = sent(hello(bench, worker_round) + bench.alive(1.0), StateRequest)
        assert (asked.worker_round, asked.lineage) == (worker_round, lineage)


def test_what_the_worker_was_told_to_load_is_kept_while_rounds_are_done_without_it() -> None:
    bench = Follower(D, roster_of(A, B, D, first_round=4, restore_epoch=NEW), reached=told_to_load(had=2))
    adopted(bench, B, 2)
    finish_round(bench)
    noted = of(bench.out, NoteReached)[-1].reached
    assert (noted.round, noted.held, noted.told_round, noted.told_lineage) == (3, OLD, 4, NEW)


def test_two_states_of_one_round_are_not_told_apart_by_it() -> None:
    assert told_to_load(had=4) == Reached(lineage=OLD, round=9)


def test_a_worker_that_missed_the_newest_history_does_not_offer_its_state_as_one_of_that() -> None:
    """Its site takes part in the new history without it, and notes that one."""
    bench = fetched(Reached(lineage=OLD, round=9))
    adopted(bench, B, 2)
    finish_round(bench)
    noted = of(bench.out, NoteReached)[-1].reached
    assert (noted.lineage, noted.round, noted.held) == (bench.roster.restore_epoch, 3, NEW)
    assert bench.machine.state.session.round == 4 and bench.machine.state.lineage() == NEW


def test_the_state_that_the_run_goes_on_from_is_of_its_history_at_once() -> None:
    bench = fetched(Reached(lineage=OLD, round=9))
    adopted(bench, D, 4)
    assert bench.machine.state.lineage() == bench.roster.restore_epoch > NEW


def test_a_state_whose_transfer_was_given_up_is_of_the_history_in_which_that_was_agreed() -> None:
    bench = Follower(D, roster_of(A, B, D, first_round=4, restore_epoch=NEW), reached=Reached(lineage=OLD, round=9))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 5), replication=plan(D, B, round_number=4)))
    bench.handle(events.TransferFinished(transfer="t"))
    adopted(bench, B, 2)
    bench.handle(events.WorkerLoaded(round=4))
    assert (bench.machine.state.session.round, bench.machine.state.lineage()) == (4, NEW)


def test_a_journal_of_a_release_before_says_one_lineage_for_both() -> None:
    bench = Follower(D, roster_of(A, B, D, restore_epoch=NEW), reached=Reached(lineage=OLD, round=9))
    hello(bench, 9)
    assert bench.machine.state.lineage() == OLD
