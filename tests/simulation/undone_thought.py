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
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._unspoken",
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
                "running.asked_again(request.incarnation, request.keeps)",
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
                "or not stay or",
                "or",
            ),
        ),
        stories=(165,),
        test="test_leaver_with_the_state:test_where_all_end_at_once_nobody_is_left_to_wait",
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
                "chaos_protocols.scheduler.restore_point:RestorePoint._is_taken_unasked",
                "and not is_given_up(self._facts.roster, one.age)",
                "",
            ),
        ),
        stories=(168,),
        test="test_operators_word:test_what_an_operator_has_given_up_is_taken_again_on_an_operators_word_alone",
    ),
    Undone(
        row=170,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._newest",
                "if is_given_up(roster, age)",
                "if False",
            ),
        ),
        test="test_operators_word:test_nobody_is_waited_for_with_what_an_operator_has_given_up",
    ),
    Undone(
        row=170,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._is_newer",
                "and not is_given_up(self._facts.roster, age)",
                "",
            ),
        ),
        test="test_operators_word:test_nobody_is_waited_for_with_what_an_operator_has_given_up",
    ),
)
