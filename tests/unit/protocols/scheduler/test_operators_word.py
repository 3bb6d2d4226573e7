"""How long an operator's word on the state that a run goes on from holds: as long as the run stands, and until who was
chosen has read it, whoever schedules by then."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.unit.protocols.one_site import MODEL, SETTINGS, A, B, Bench, C, D, leader_of, records, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import acknowledge, alive, elect, report
from tests.unit.protocols.scheduler.test_operator import decides, spoken, standing
from tests.unit.protocols.scheduler.test_restore_point import LATEST, adopted, asks, disk, hello, without_state

from chaos_protocols import events
from chaos_protocols.agreement.roster import Departure
from chaos_protocols.wire.control import StateRequest
from chaos_protocols.wire.versions import LINEAGES_SINCE, SPOKEN, Versions


def says(bench: Bench, *, active: bool = False, rests: str = "") -> None:
    """The report of C, whose daemon has a checkpoint in its memory."""
    said = msgspec.structs.replace(report(bench, active=active), done_round=LATEST, known_round=LATEST)
    bench.hear(C, msgspec.structs.replace(said, memory_checkpoint=True, rests=rests))


def goes_on_after(*, rests: str) -> Bench:
    """An operator wants the run to begin anew; C's worker gets the state back from its daemon's memory before that is
    done. Later both workers are lost."""
    bench = standing(B, C)
    says(bench)
    asks(bench, B)
    hello(bench)
    assert decides(bench, "", at=B) is None, "it is under way: C's daemon has a state in its memory"
    says(bench, active=not rests, rests=rests)
    answer = decides(bench, "", at=B)
    told = "a script that has the state pauses" if rests else "members train"
    assert answer is not None and not answer.done and told in answer.reason
    alive(bench, B, C, seconds=1.0)
    says(bench)
    asks(bench, B, checkpoint=disk(LATEST - 1))
    alive(bench, B, C, seconds=2 * SETTINGS.transfer_stall_s)
    return bench


def test_an_operators_word_is_over_once_the_run_goes_on() -> None:
    """Also where the one that has the state pauses, so that nothing is to be recovered either."""
    for rests in ("", "it evaluates"):
        assert adopted(goes_on_after(rests=rests)) is None, "C may have more, and nobody has decided otherwise since"


def test_an_operator_hears_which_state_he_has_chosen_though_rounds_were_resolved_since() -> None:
    """The answer was lost, and he asks again: he heard of a round that he has not named."""
    bench = standing(B, C, restored_by="user-1", restored_from=(C, 1), restore_epoch=3, resolved_round=LATEST)
    answer = decides(bench, C, LATEST - 3)
    assert answer is not None and answer.done and f"the state of round {LATEST - 3} of site c" in answer.reason


def test_a_word_that_is_asked_again_before_its_entry_is_agreed_on_is_not_refused() -> None:
    """What it takes is offered no more by then (seed 868, 6 sites, with operators)."""
    bench = Bench(A, roster_of(A, B, C, **spoken(roster_of(A, B, C))), voters=(A, B, C)).up(B, C)
    elect(bench)
    for site in (B, C):
        bench.hear(site, msgspec.structs.replace(report(bench, active=False), done_round=LATEST, known_round=LATEST))
    for _ in range(round(20 * SETTINGS.failure_timeout_s)):
        alive(bench, B, C, seconds=0.1)
        acknowledge(bench, B, C)
    asks(bench, B, checkpoint=disk(LATEST - 1))
    epoch = bench.machine.roster.epoch
    for _ in range(2):
        assert decides(bench, B, LATEST - 1) is None and bench.machine.roster.epoch == epoch
    acknowledge(bench, B, C)
    answer = decides(bench, B, LATEST - 1)
    assert bench.machine.roster.restored_by == "user-1" and answer is not None and answer.done


def test_an_operator_hears_at_once_that_those_who_have_the_state_only_pause() -> None:
    """Nothing is carried out meanwhile: he was told after a while that no scheduler has done it."""
    bench = standing(B, C)
    asks(bench, B, checkpoint=disk(LATEST - 1))
    says(bench, rests="it evaluates")
    answer = decides(bench, "", at=B)
    assert answer is not None and not answer.done and "pause" in answer.reason


def test_who_was_chosen_may_read_its_checkpoint_though_another_site_schedules_by_then() -> None:
    """An operator had decided for it, though others have a newer one. That takes long, and the scheduler was lost."""
    big = msgspec.structs.replace(MODEL, state_bytes=50_000_000_000)
    for chosen_start, awaited in ((1, True), (0, False)):
        bench = without_state(
            B, C, done=3, restore_epoch=3, resolved_round=3, model=big, restored_from=(B, chosen_start)
        )
        newer = disk(LATEST, lineage=2)
        request = StateRequest(incarnation=1, worker_round=0, model=big, reason="", checkpoint=newer)
        bench.hear(C, request)
        bench.handle(events.WorkerReady(model=big, round=0))
        bench.hear(B, msgspec.structs.replace(report(bench, active=False), checkpoint=disk(3, lineage=2)))
        alive(bench, B, C, seconds=SETTINGS.restore_wait_s + 2 * SETTINGS.transfer_stall_s)
        assert (adopted(bench) is None) == awaited
        bench.hear(B, msgspec.structs.replace(request, checkpoint=disk(3, lineage=2)))
        alive(bench, B, C, seconds=1.0)
        assert adopted(bench) == (C, LATEST), "it asks again: it could not be read"


def gone_back(*, by: str, back_to: int = 3, here: int = 3, asks_too: bool = True, **changes: Any) -> Bench:
    """The run had gone on from round `back_to` again, and nothing is left of what came of that. B has a checkpoint of
    round `here` of the history before, C one of a later round than any that was gone back to."""
    bench = standing(B, C, restore_epoch=5, resolved_round=back_to, restored_by=by, **changes)
    newer = disk(LATEST, lineage=2)
    for site in (B, C):
        said = msgspec.structs.replace(report(bench, active=False), known_round=back_to + 1, done_round=back_to + 1)
        bench.hear(site, msgspec.structs.replace(said, checkpoint=newer if site == C else None))
    asks(bench, B, checkpoint=disk(here, lineage=2))
    if asks_too:
        asks(bench, C, checkpoint=newer)
    hello(bench)
    alive(bench, B, C, seconds=1.0 if asks_too else SETTINGS.restore_wait_s)
    return bench


def test_what_an_operator_has_given_up_is_taken_again_on_an_operators_word_alone() -> None:
    assert adopted(gone_back(by="")) == (C, LATEST), "the rules had taken what there was"
    bench = gone_back(by="user-0")
    assert adopted(bench) == (B, 3)
    roster = bench.machine.roster
    assert (roster.restore_epoch > 5, roster.restored_by) == (True, "user-0"), "his word is heeded the next time, too"
    assert records(bench.out, "restore-point")[-1].cause == "no member has the training state"
    anew = gone_back(by="user-0", back_to=0)
    assert anew.machine.roster.restored_from is not None and anew.machine.roster.resolved_round == 0
    assert anew.machine.roster.restored_by == "user-0"


def test_nobody_is_waited_for_with_what_an_operator_has_given_up() -> None:
    """Not one that is gone, nor one whose worker is away; a state that is not given up is waited for."""
    assert adopted(gone_back(by="", asks_too=False)) is None
    assert adopted(gone_back(by="user-0", asks_too=False)) == (B, 3)
    gone = Departure(site=D, incarnation=1, last_round=1, cause="failed", reason="", lineage=2, newest_round=LATEST)
    assert adopted(gone_back(by="user-0", departed=(gone,))) == (B, 3)
    assert adopted(gone_back(by="user-0", here=2, departed=(gone,))) is None, "it may have round 3"


def chose_an_older_history(*, lineage: int, here: int = 7, **changes: Any) -> Bench:
    """An operator had the run go on from round 7, of history 2, as B has it on its disk; nothing came of that. C has
    round 2 of history 4, which had begun since, and ended."""
    bench = standing(B, C, restore_epoch=5, resolved_round=7, restored_by="user-0", restored_lineage=lineage, **changes)
    asks(bench, B, checkpoint=disk(here, lineage=2))
    asks(bench, C, checkpoint=disk(2, lineage=4))
    hello(bench)
    alive(bench, B, C, seconds=1.0)
    return bench


def test_a_history_that_began_before_an_operator_chose_a_state_of_an_older_one_is_given_up_too() -> None:
    """Its rounds have lower numbers than that one's (seeds 1456, 6 sites, and 1467, 5 sites, with operators)."""
    bench = chose_an_older_history(lineage=2)
    assert adopted(bench) == (B, 7) and bench.machine.roster.restored_lineage == 2
    assert adopted(chose_an_older_history(lineage=0)) == (C, 2), "where it is not known which history he has chosen"


def test_who_took_a_history_along_that_was_given_up_may_have_what_the_operator_chose() -> None:
    gone = Departure(site=D, incarnation=1, last_round=1, cause="failed", reason="", lineage=4, newest_round=3)
    assert adopted(chose_an_older_history(lineage=2, departed=(gone,))) == (B, 7)
    assert adopted(chose_an_older_history(lineage=2, here=6, departed=(gone,))) is None, "it may have round 7"


def test_of_which_history_a_state_is_that_an_operator_chooses_is_agreed_where_all_know_of_it() -> None:
    """Not of a fresh worker, which is of none."""
    older = Versions(oldest=SPOKEN.oldest, newest=LINEAGES_SINCE - 1)
    for versions, origin, number, told in ((SPOKEN, B, 3, 2), (SPOKEN, "", 0, 0), (older, B, 3, 0)):
        bench = standing(B, C, versions=versions, restore_epoch=5)
        asks(bench, B, checkpoint=disk(3, lineage=2))
        decides(bench, origin, number)
        alive(bench, B, C, seconds=0.5)
        roster = bench.machine.roster
        assert (roster.restored_by, roster.resolved_round, roster.restored_lineage) == ("user-1", number, told)
    bench = without_state(B, restore_epoch=2)
    asks(bench, B, worker_round=LATEST)
    hello(bench)
    assert adopted(bench) == (B, LATEST) and not bench.machine.roster.restored_lineage, "the rules have chosen it"


def test_a_state_that_was_given_up_is_told_to_operators_where_there_is_no_other() -> None:
    bench = standing(B, restore_epoch=5, resolved_round=3, restored_by="user-0")
    asks(bench, B, checkpoint=disk(LATEST, lineage=2))
    hello(bench)
    alive(bench, B, seconds=1.0)
    told = bench.machine.scheduler.term.restore_point.waiting
    assert adopted(bench) is None and f"a state of round {LATEST}, which an operator has given up" in told
    decides(bench, "site b", LATEST)
    alive(bench, B, seconds=1.0)
    assert adopted(bench) == (B, LATEST)


def test_a_site_whose_name_would_end_the_command_in_the_text_is_named_by_its_id() -> None:
    """What stands behind the mark was taken for text, in which ids become names."""
    roster = roster_of(A, B, C)
    sites = tuple(msgspec.structs.replace(one, name="`99999999") if one.site == B else one for one in roster.sites)
    bench = leader_of(roster=msgspec.structs.replace(roster, sites=sites))
    bench.hear(B, msgspec.structs.replace(report(bench, active=False), done_round=9, known_round=9))
    bench.hear(C, msgspec.structs.replace(report(bench, active=False), memory_checkpoint=True))
    for _ in range(round(SETTINGS.restore_wait_s)):
        bench.hear(B, StateRequest(incarnation=1, worker_round=7, model=MODEL, reason=""))
        alive(bench, B, C, seconds=1.0, step_s=0.5)
    assert f"`chaosd recover --from {B[:8]}:7` goes on from there" in bench.machine.scheduler.term.restore_point.waiting
