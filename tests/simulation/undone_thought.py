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
                "chaos_protocols.scheduler.restore_awaited:AwaitedSites._departed", "and gone.site not in banned", ""
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
                "heeded(self._facts.roster, age)",
                "age",
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
    Undone(
        row=171,
        patches=(
            Patch(
                "chaos_protocols.scheduler.proposals:_planned",
                "if not may_hold or min(spoken",
                "if min(spoken",
            ),
        ),
        test="test_held_in_vain:test_the_rounds_do_not_wait_again_for_a_member_that_has_not_asked_for_it",
    ),
    Undone(
        row=172,
        patches=(
            Patch(
                "chaos_protocols.membership.scheduler_client:SchedulerClient.bounds_wanted",
                "in (begins, 0)",
                "== begins",
            ),
        ),
        test="test_bounding:test_a_wish_lasts_where_the_run_goes_on_from_another_state_under_the_same_bounds",
    ),
    Undone(
        row=173,
        patches=(
            Patch(
                "chaos_protocols.membership.catch_up:CatchUp.report",
                "rounds.caught_up or (membership.is_member and not self._fetch.has_worker)",
                "rounds.caught_up",
            ),
        ),
        test="test_catch_up:test_a_member_whose_worker_is_gone_says_that_the_transfer_to_it_is_over",
    ),
    Undone(
        row=174,
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission.link_requested",
                "return answer(True, NO_SUCH_LINK)",
                "return answer(False, NO_SUCH_LINK)",
            ),
        ),
        test="test_admission:test_a_removal_whose_answer_was_lost_is_done_when_the_next_scheduler_is_asked",
    ),
    Undone(
        row=175,
        patches=(
            Patch(
                "chaos_protocols.membership.pause:Pause._why_no_state",
                "if self._waits.resting",
                "if False",
            ),
        ),
        test="test_missing_state:test_a_state_is_not_called_lost_while_those_that_have_it_rest",
    ),
    Undone(
        row=176,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint.ordered",
                "if self._reports.anybody_rests():",
                "if False:",
            ),
        ),
        test="test_operators_word:test_an_operator_hears_at_once_that_those_who_have_the_state_only_pause",
    ),
    Undone(
        row=177,
        patches=(
            Patch(
                "chaos_protocols.scheduler.admission:Admission.state_requested",
                "request.outrun or not in_vain",
                "True",
            ),
        ),
        test="test_held_in_vain:test_who_was_waited_for_in_vain_is_waited_for_again_only_when_it_is_outrun",
    ),
    Undone(
        row=178,
        patches=(
            Patch(
                "chaos_protocols.membership.recovering:Recovering.agreed",
                "isinstance(command, SetRestorePoint)",
                "False",
            ),
        ),
        test="test_recovering:test_it_is_carried_out_by_an_entry_and_not_asked_again_whatever_comes_of_the_answer",
    ),
    Undone(
        row=179,
        patches=(
            Patch(
                "chaos_protocols.scheduler.restore_point:RestorePoint.ordered",
                "of round {request.round} of",
                "of round {roster.resolved_round} of",
            ),
        ),
        test="test_operators_word:test_an_operator_hears_which_state_he_has_chosen_though_rounds_were_resolved_since",
    ),
    Undone(
        row=180,
        patches=(
            Patch(
                "chaos_protocols.membership.recovering:Recovering.ask",
                'f"no scheduler has answered: {NOT_KNOWN}"',
                '"no scheduler has carried it out; see chaosd status for what is missing"',
            ),
        ),
        test="test_recovering:test_a_user_does_not_wait_for_ever_for_a_scheduler",
    ),
)
