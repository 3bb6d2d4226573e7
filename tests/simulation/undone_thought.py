"""Rows 163 and later of docs/found-by-simulation.md, see `undone`."""

from __future__ import annotations

from tests.simulation.mutants.planting import Patch
from tests.simulation.undoing import Undone

THOUGHT = (
    Undone(
        row=163,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint.step",
                'self._inactive_since_s, self.waiting, self._order = None, "", None',
                'self._inactive_since_s, self.waiting = None, ""',
            ),
        ),
        test="test_operators_word:test_an_operators_word_is_over_once_the_run_goes_on",
    ),
    Undone(
        row=164,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._inside",
                'report.worker_round and record.state == "member"',
                "False",
            ),
        ),
        stories=(167,),
        test="test_leaver_with_the_state:test_a_leaver_that_cannot_go_yet_and_alone_has_the_state_is_waited_for",
    ),
    Undone(
        row=165,
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission.leave_requested",
                "running.keeps = request.keeps",
                "pass",
            ),
        ),
        test="test_leaver_with_the_state:test_a_leaver_that_cannot_go_yet_takes_along_what_it_has_by_then",
    ),
    Undone(
        row=166,
        patches=(
            Patch(
                "chaos_protocols.scheduler.removals:_taken_along",
                "(situation.active | situation.ending) - {site}",
                "situation.active - {site}",
            ),
        ),
        stories=(165, 166),
        test="test_leaver_with_the_state:test_of_several_that_end_at_once_the_last_one_takes_the_state_along",
    ),
    Undone(
        row=167,
        patches=(
            Patch("chaos_protocols.scheduler.reports:Reports.done_rounds", "if one.epoch >= resolved", "if True"),
        ),
        test="test_progress:test_what_a_site_had_done_before_its_restart_releases_no_leaver",
    ),
    Undone(
        row=168,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint._offered",
                "if one.record.site not in banned",
                "if True",
            ),
        ),
        test="test_bans:test_whom_most_members_want_out_is_not_let_in_for_its_state",
    ),
    Undone(
        row=168,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._departed", "or gone.site in banned", "or False"
            ),
        ),
        test="test_bans:test_whom_most_members_want_out_is_not_let_in_for_its_state",
    ),
    Undone(
        row=169,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint._who_loads", "if not self._looked:", "if False:"
            ),
        ),
        test="test_operators_word:test_who_was_chosen_may_read_its_checkpoint_though_another_site_schedules_by_then",
    ),
    Undone(
        row=170,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._newest",
                "gone.lineage != self._facts.roster.restore_epoch or",
                "",
            ),
        ),
        test="test_leaver_with_the_state:test_how_far_a_later_history_has_come_says_nothing_of_a_leavers_last_rounds",
    ),
)
