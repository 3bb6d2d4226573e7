"""Rows 211 and later of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import Undone

STEADY = (
    Undone(
        row=211,
        patches=(
            Patch(
                "chaos_protocols.scheduler.pace:Pace.entry_took",
                "self.commit_s = sorted(self._commits_s)[(len(self._commits_s) - 1) // 2]",
                "self.commit_s = smoothed(self.commit_s, took_s)",
            ),
        ),
        test="test_scheduler:test_an_entry_that_waited_for_a_majority_puts_no_later_change_off",
    ),
    Undone(
        row=212,
        patches=(
            Patch(
                "chaos_protocols.scheduler.waits:_is_missing",
                "if report.open is None:",
                "if report.open is None and (report.active or leaves):",
            ),
        ),
        test="test_waits:test_so_is_one_that_fetches_it_without_a_worker",
    ),
    Undone(
        row=213,
        patches=(
            Patch(
                "chaos_protocols.rounds.reduce.results:ResultExchange.checked",
                "and fetch.pulled_from:",
                "and False:",
            ),
        ),
        test="test_results:test_who_goes_on_with_what_another_has_begun_is_not_blamed_for_the_whole",
    ),
    Undone(
        row=214,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._outside",
                "awaited = offered[1] > 0 and",
                "awaited = offered[1] > 0 and gone.lineage > 0 and",
            ),
        ),
        test="test_awaited:test_who_left_while_others_had_the_state_is_waited_for_if_it_offers_a_newer_one",
    ),
    Undone(
        row=215,
        patches=(Patch("chaos_protocols.state.machine:WorkerState.lost", "if not self.last.awaits_copy:", "if True:"),),
        test="test_last_checkpoint:test_a_last_copy_is_made_though_its_worker_falls_behind_meanwhile",
    ),
    Undone(
        row=216,
        patches=(
            Patch(
                "chaos_protocols.rounds.machine:RoundMachine.result_missed",
                " or not self.delivery.is_awaited",
                "",
            ),
        ),
        test="test_rounds_of_a_site:test_a_listener_without_the_state_has_none_to_give_up",
    ),
)
